#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "group/group.h"

namespace cairn {

/// Ranks that speak through a store that only Python can reach: torch.distributed's c10d Store.
///
/// Words given here wait until a thread of Python's takes them; what it then hears comes back by Answer. So no thread
/// of C++ ever enters Python. Deadlines are kept here, by a thread of the group's own, `kGrace` late: until then the
/// listening thread may answer more precisely. All calls are safe from any thread.
class StoreGroup : public Group {
 public:
  static constexpr std::chrono::milliseconds kGrace{500};
  struct Word {
    std::string key;
    std::string bytes;
  };

  /// `rank` is one of `size`.
  StoreGroup(int rank, int size);
  /// Stops first. In a forked child it does nothing.
  ~StoreGroup() override;
  StoreGroup(const StoreGroup&) = delete;
  StoreGroup& operator=(const StoreGroup&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(size_); }
  /// Once it has failed or stopped: answers from within the call.
  void AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) override
      CAIRN_EXCLUDES(mutex_);

  // For Python's threads.

  /// The next word to send. DeadlineExceeded; Cancelled once it is stopped and every word is taken.
  Result<Word> TakeWord(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Waits until an answer is wanted; the earliest deadline of those that are. DeadlineExceeded; Cancelled once
  /// stopped.
  Result<Deadline> WaitForGather(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Keys that want an answer; of `late` ones only those whose deadline has passed.
  [[nodiscard]] std::vector<std::string> Wanted(bool late) const CAIRN_EXCLUDES(mutex_);
  /// Ends a gather; one that has ended is left alone. A value has one word a rank.
  void Answer(const std::string& key, const Result<std::vector<std::string>>& words) CAIRN_EXCLUDES(mutex_);
  /// The store is lost: ends every gather, and all to come. The first call counts.
  void Fail(const Status& why) CAIRN_EXCLUDES(mutex_);
  /// No more gathers: those under way end Cancelled. Words already given can still be taken.
  void Stop() CAIRN_EXCLUDES(mutex_);

 private:
  struct Waiter {
    Deadline deadline;
    Gathered done;
  };

  void WatchDeadlines() CAIRN_EXCLUDES(mutex_);
  void EndAll(const Status& why) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Deadline Earliest() const CAIRN_REQUIRES(mutex_);

  const pid_t process_;
  const int rank_;
  const std::size_t size_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Waiter> waiting_ CAIRN_GUARDED_BY(mutex_);  // By key.
  std::deque<Word> words_ CAIRN_GUARDED_BY(mutex_);                 // To be sent, oldest first.
  Status ended_ CAIRN_GUARDED_BY(mutex_);                           // Why nothing more is gathered.
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread watch_;  // Constant after construction.
};

}  // namespace cairn
