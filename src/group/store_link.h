#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cairn/group.h"
#include "group/store_entry.h"
#include "group/store_group.h"

namespace cairn {

/// Serves a StoreGroup through a key-value store, with two threads. Once it is open the protocol is that of Python's
/// ranks (bindings/cairn/_ranks/store_link.py), and so are the entries.
///
/// The sender puts this rank's messages into the store. The listener, while anybody waits for a message, blocks in the
/// store until the next message comes. Each has its own connection.
///
/// Keys, under `cairn/<name>/`. To open, rank r sets `hello/<r>` to a fresh id, which ends with the size that it was
/// told. Rank 0 removes it and answers `welcome/<id>` = the session, another fresh id: so a group that is made again
/// never reads old messages; or `!` and why it refuses. Rank r removes the answer. If it does not, it had died, and
/// rank 0 answers a later hello of its rank. Under `<session>/`:
///   inbox, inbox/<i>   how many entries, and entry i: a rank's message to rank 0, or that it has closed. Rank 0
///   removes
///                      it. If an entry was counted and does not come (its rank died), rank 0 fills it, so that later
///                      ones can be read; a rank that finds its entry filled takes the next one.
///   log/<i>            entry i: what rank 0 announces to all others, or that it has closed. Each reads them in order.
///                      A rank that closes while it waits for an entry fills it.
///   read/<i>           how many ranks have read it; the last removes both. An entry says how many readers it has.
///   end                how far rank 0 had written and read when it left
///   left               how many ranks have left; the last removes what is left of all this.
/// So a save costs each rank except rank 0 a few calls and bytes, however many ranks there are.
class StoreLink : public std::enable_shared_from_this<StoreLink> {
 public:
  using Connect = std::function<Result<KeyValueStore>()>;

  StoreLink(StoreGroupOptions options, Connect connect);

  StoreGroup& group() { return group_; }
  /// Starts the threads. They keep this object alive.
  Status Start() CAIRN_EXCLUDES(mutex_) { return StartServing("cairn-send", &StoreLink::sender_, &StoreLink::Send); }
  /// Sends what is queued and ends the threads, within the close_timeout. Threads that hang in the store stay behind.
  void Close() CAIRN_EXCLUDES(mutex_);

 private:
  struct Served {
    std::thread thread;
    bool running = false;
  };

  /// An answered hello.
  struct Welcomed {
    std::string id;
    Status refusal;
  };

  /// The store; while it is full, each call is tried again, until then or the end of closing.
  KeyValueStore WhileFull(const KeyValueStore& store, Deadline until) CAIRN_EXCLUDES(mutex_);
  template <typename Call>
  auto TryWhileFull(const Call& call, Deadline until) CAIRN_EXCLUDES(mutex_);
  Status Send() CAIRN_EXCLUDES(mutex_);
  Status Listen() CAIRN_EXCLUDES(mutex_);
  /// Runs `work` on a thread, and breaks the group if it fails.
  Status StartServing(const char* name, Served StoreLink::*served, Status (StoreLink::*work)()) CAIRN_EXCLUDES(mutex_);
  /// Whether the thread has ended by then.
  bool HasEnded(const Served StoreLink::*served, Deadline deadline) CAIRN_EXCLUDES(mutex_);

  // Opening.
  Status Meet(const KeyValueStore& store, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  Status MeetAsCoordinator(const KeyValueStore& store, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  Status MeetCoordinator(const KeyValueStore& store, Deadline deadline);
  /// On rank 0: answers this rank's hello, which is there.
  Status Welcome(const KeyValueStore& store, int rank);
  /// On rank 0: waits until the ranks have taken their answers, and answers later hellos of those that have not. Fails
  /// if one has taken a refusal.
  Status WelcomeSuccessors(const KeyValueStore& store, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// On rank 0, which gives up: removes the answers that were not taken, and returns whose they are.
  Result<std::vector<int>> TakeBack(const KeyValueStore& store) const;
  /// That these ranks have not opened the group in time.
  [[nodiscard]] Status Late(const std::vector<int>& ranks) const;
  /// Whether the key is there by then, or by the end of closing.
  Result<bool> Await(const KeyValueStore& store, const std::string& key, Deadline deadline) const;

  // Sending.
  Status Append(const KeyValueStore& store, StoreEntry entry);
  Status FillGap(const KeyValueStore& store);

  // Listening.
  Status ReadInbox(const KeyValueStore& store);
  Status ReadLog(const KeyValueStore& store);
  Result<StoreEntry> Read(const KeyValueStore& store, const std::string& name) const;
  Status Leave(const KeyValueStore& store) CAIRN_EXCLUDES(mutex_);
  Status LeaveAsCoordinator(const KeyValueStore& store);
  Status RemoveRest(const KeyValueStore& store);

  [[nodiscard]] std::string BaseKey(const std::string& name) const { return "cairn/" + options_.name + "/" + name; }
  [[nodiscard]] std::string HelloKey(int rank) const { return BaseKey("hello/" + std::to_string(rank)); }
  [[nodiscard]] std::string WelcomeKey(const std::string& id) const { return BaseKey("welcome/" + id); }
  [[nodiscard]] std::string Key(const std::string& name) const { return BaseKey(session_ + "/" + name); }
  [[nodiscard]] std::string Key(const std::string& name, std::int64_t number) const {
    return Key(name + "/" + std::to_string(number));
  }
  /// The entry that the listener waits for.
  [[nodiscard]] std::string AwaitedKey() const { return Key(leads_ ? "inbox" : "log", next_); }

  const StoreGroupOptions options_;
  const Connect connect_;
  const bool leads_;
  StoreGroup group_;

  Mutex mutex_;
  CondVar ended_;
  Served sender_ CAIRN_GUARDED_BY(mutex_);
  Served listener_ CAIRN_GUARDED_BY(mutex_);
  // This object itself, if its threads hang.
  std::shared_ptr<StoreLink> left_behind_ CAIRN_GUARDED_BY(mutex_);

  // When closing ends.
  std::atomic<Deadline::Clock::time_point> close_by_{Deadline::Clock::time_point::max()};
  // Set by the sender before the listener starts.
  std::string session_;
  // Written by the listener; by the sender once the listener has ended.
  std::atomic<std::int64_t> next_{1};
  std::atomic<int> readers_;          // Of an entry of the log.
  std::vector<std::int64_t> filled_;  // Entries of the inbox that were filled.
  std::set<int> gone_;                // Ranks that have closed, as far as this one knows.
  // The sender's.
  std::map<int, Welcomed> welcomed_;  // On rank 0: the ranks that have not taken their answers.
  std::int64_t missing_ = 0;          // The entry that was counted but missing at rank 0's last check.
  std::int64_t written_ = 0;          // The log's last entry, on rank 0.
};

}  // namespace cairn
