#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cairn/group.h"
#include "group/store_entry.h"
#include "group/store_group.h"
#include "group/store_meeting.h"

namespace cairn {

/// Serves a StoreGroup through a key-value store, on two threads of its owner's, each with its own connection: in C++
/// the library's, in Python daemon threads.
///
/// The sender puts this rank's messages into the store. The listener, while anybody waits for a message, blocks in the
/// store until the next message comes. To open, the ranks agree on a session: see StoreMeeting. Keys, under
/// `cairn/<name>/<session>/`:
///   inbox, inbox/<i>   how many entries, and entry i: a rank's message to rank 0, or that it has closed. Rank 0
///                      removes it. If an entry was counted and does not come (its rank died), rank 0 fills it, so that
///                      later ones can be read. It stays; a rank that finds its entry filled takes the next one.
///   log/<i>            entry i: what rank 0 announces to all others, that it has closed, or why it did not open after
///                      all. Each reads them in order. A rank that closes while it waits for an entry fills it.
///   read/<i>           how many ranks have read it; the last removes both. An entry says how many readers it has.
///   end                how far rank 0 had written and read when it left
///   left               how many ranks have left; the last removes what is left of all this.
/// So a save costs each rank except rank 0 a few calls and bytes, however many ranks there are.
class StoreLink {
 public:
  using Connect = std::function<Result<KeyValueStore>()>;

  /// `options.size` is above 1. `title` begins its errors.
  StoreLink(StoreGroupOptions options, std::string title);

  StoreGroup& group() { return group_; }
  /// What the owner's two threads do. Each returns once it is stopped, or if the store is lost: then the group breaks.
  /// The sender, last, waits for the listener.
  void RunSender(const Connect& connect) CAIRN_EXCLUDES(mutex_);
  void RunListener(const Connect& connect) CAIRN_EXCLUDES(mutex_);
  /// Both threads end within the close_timeout, once what is queued is sent, unless they hang in the store. In a forked
  /// child it does nothing.
  void Stop() CAIRN_EXCLUDES(mutex_);
  /// Whether both have ended by then. Never in a forked child.
  bool WaitUntilEnded(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Whether all ranks have met.
  bool opened() CAIRN_EXCLUDES(mutex_);
  /// A key that all ranks know, and nobody else; once it is opened.
  [[nodiscard]] std::string Key(const std::string& name) const {
    return "cairn/" + options_.name + "/" + meeting_.session() + "/" + name;
  }

 private:
  enum class Phase : std::uint8_t { kOpening, kOpened, kEnded };

  /// The store; while it is full, each call is tried again, until then or the end of closing.
  KeyValueStore WhileFull(const KeyValueStore& store, Deadline until) CAIRN_EXCLUDES(mutex_);
  template <typename Call>
  auto TryWhileFull(const Call& call, Deadline until) CAIRN_EXCLUDES(mutex_);
  Status Send(const Connect& connect) CAIRN_EXCLUDES(mutex_);
  Status Listen(const Connect& connect) CAIRN_EXCLUDES(mutex_);
  void BreakIfLost(const Status& status);
  void SetPhase(Phase phase) CAIRN_EXCLUDES(mutex_);
  Phase WaitWhileOpening() CAIRN_EXCLUDES(mutex_);
  bool ListenerHasEnded(Deadline deadline) CAIRN_EXCLUDES(mutex_);

  // Sending.
  Status Append(const KeyValueStore& store, StoreEntry entry);
  Status FillGap(const KeyValueStore& store);
  /// On rank 0: breaks the group, and writes why into the log.
  Status GiveUpOpening(const KeyValueStore& store, const Status& why, int readers);

  // Listening.
  Status ReadInbox(const KeyValueStore& store);
  Status ReadLog(const KeyValueStore& store);
  Result<StoreEntry> Read(const KeyValueStore& store, const std::string& name) const;
  Status Leave(const KeyValueStore& store) CAIRN_EXCLUDES(mutex_);
  Status LeaveAsCoordinator(const KeyValueStore& store);
  Status RemoveRest(const KeyValueStore& store);

  [[nodiscard]] std::string Key(const std::string& name, std::int64_t number) const {
    return Key(name + "/" + std::to_string(number));
  }
  /// The entry that the listener waits for.
  [[nodiscard]] std::string AwaitedKey() const { return Key(leads_ ? "inbox" : "log", next_); }

  const pid_t process_;
  const StoreGroupOptions options_;
  const std::string title_;
  const bool leads_;
  StoreGroup group_;

  Mutex mutex_;
  CondVar changed_;
  Phase phase_ CAIRN_GUARDED_BY(mutex_) = Phase::kOpening;  // The sender's.
  bool listening_ CAIRN_GUARDED_BY(mutex_) = true;
  // When closing gives up.
  std::atomic<Deadline::Clock::time_point> close_by_{Deadline::Clock::time_point::max()};

  // The sender's; constant once all have met.
  StoreMeeting meeting_;
  // Written by the listener; by the sender once the listener has ended.
  std::atomic<std::int64_t> next_{1};
  std::atomic<int> readers_;          // Of an entry of the log.
  std::vector<std::int64_t> filled_;  // Entries of the inbox that were filled.
  std::set<int> gone_;                // Ranks that have closed, as far as this one knows.
  // The sender's.
  std::int64_t missing_ = 0;  // The entry that was counted but missing at rank 0's last check.
  std::int64_t written_ = 0;  // The log's last entry, on rank 0.
};

}  // namespace cairn
