#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/group.h"
#include "group/deadline_watch.h"

namespace cairn {

/// What one rank of a Group has heard and waits for; the transport brings the words. Safe from any thread.
///
/// The coordinator hears the other ranks, the others hear the coordinator: its peers. Words that nobody asked for yet
/// are kept, up to kEarlyWords and kEarlyWordsPerRank for each rank; beyond that the keys that came first go.
///
/// Callbacks come one at a time, in the order of what they tell, and never under a lock: on the thread that brings the
/// word, on the watch's, or on one that calls meanwhile.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  static constexpr std::size_t kEarlyWords = 4096;
  static constexpr std::size_t kEarlyWordsPerRank = 64;
  static constexpr std::size_t kEndedKeys = 4096;

  /// Made by std::make_shared alone. Where the watch has no thread the mailbox has failed from the start. The watch
  /// must live until the mailbox is closed.
  Mailbox(int rank, int size, DeadlineWatch& watch);

  // What the rank asks: see Group.

  void Collect(const std::string& key, Deadline deadline, Group::OnWord on_word, Group::OnEnd end);
  void Await(const std::string& key, Deadline deadline, Group::OnAnnounced on_announced);

  // What the transport tells.

  /// A word of a peer's; dropped where its wait has ended, where it came before, and after the rank left.
  void Hear(int from, const std::string& key, std::string word) CAIRN_EXCLUDES(mutex_);
  /// A peer says nothing any more.
  void Leave(int peer) CAIRN_EXCLUDES(mutex_);
  /// Ends every wait, and all to come. The first reason counts.
  void Fail(const Status& why) CAIRN_EXCLUDES(mutex_);
  /// Fails Cancelled; on return no callback runs on another thread, nor will.
  void Close() CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] bool waiting() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool failed() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool has_left(int peer) const CAIRN_EXCLUDES(mutex_);

  /// For the watch: ends the waits whose deadline has passed.
  void EndLate() CAIRN_EXCLUDES(mutex_);

 private:
  struct Wait {
    Deadline deadline;
    Group::OnWord on_word;
    Group::OnEnd end;
    std::vector<bool> heard;  // By rank.
    std::size_t missing = 0;
  };
  // Words under a key that nobody asked for yet.
  struct Early {
    std::uint64_t arrival = 0;
    std::vector<std::pair<int, std::string>> words;  // (rank, word)
  };
  using Waits = std::map<std::string, Wait>;

  void Expect(const std::string& key, Wait wait) CAIRN_EXCLUDES(mutex_);
  void Take(Wait& wait, int from, std::string word) CAIRN_REQUIRES(mutex_);
  void Keep(const std::string& key, int from, std::string word) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Early TakeEarly(const std::string& key) CAIRN_REQUIRES(mutex_);
  Waits::iterator End(Waits::iterator wait, Status status) CAIRN_REQUIRES(mutex_);
  // Ends it where it is complete, or waits for a peer that has left.
  bool EndIfDecided(Waits::iterator wait) CAIRN_REQUIRES(mutex_);
  void Arm(Deadline deadline) CAIRN_REQUIRES(mutex_);
  void RunReady() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool is_peer(int rank) const;
  [[nodiscard]] Status Late(const std::string& key, const Wait& wait) const;

  const int rank_;
  const int size_;
  DeadlineWatch& watch_;
  mutable Mutex mutex_;
  Waits waits_ CAIRN_GUARDED_BY(mutex_);                                      // By key.
  std::map<std::string, Early> early_ CAIRN_GUARDED_BY(mutex_);               // By key.
  std::map<std::uint64_t, std::string> early_keys_ CAIRN_GUARDED_BY(mutex_);  // By arrival.
  std::uint64_t arrivals_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t early_words_ CAIRN_GUARDED_BY(mutex_) = 0;
  // Keys that ended with words missing: the set, and the same, oldest first.
  std::set<std::string> ended_ CAIRN_GUARDED_BY(mutex_);
  std::deque<std::string> ended_keys_ CAIRN_GUARDED_BY(mutex_);
  std::vector<bool> left_ CAIRN_GUARDED_BY(mutex_);  // By rank.
  bool any_left_ CAIRN_GUARDED_BY(mutex_) = false;
  Status failure_ CAIRN_GUARDED_BY(mutex_);
  DeadlineWatch::TimePoint armed_ CAIRN_GUARDED_BY(mutex_) = DeadlineWatch::TimePoint::max();
  std::deque<std::function<void()>> ready_ CAIRN_GUARDED_BY(mutex_);  // Callbacks to be made.
  std::thread::id runs_ready_ CAIRN_GUARDED_BY(mutex_);               // The thread that makes them.
  CondVar ran_;
};

}  // namespace cairn
