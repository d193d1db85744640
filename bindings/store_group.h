#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "cairn/group.h"
#include "group/deadline_watch.h"
#include "group/mailbox.h"

namespace cairn {

/// Ranks that speak through a store that only Python can reach: torch.distributed's c10d Store.
///
/// Words given here wait until a thread of Python's takes them; what it hears comes back by Hear. So no thread of C++
/// ever enters Python. Deadlines are kept here, by a thread of the group's own, whatever the store does. All calls are
/// safe from any thread.
class StoreGroup : public Group {
 public:
  /// How much longer than its deadline Await waits: the coordinator, whose own wait ends at the same moment, can still
  /// say whom it missed.
  static constexpr std::chrono::milliseconds kGrace{500};
  struct Word {
    std::string key;
    std::string text;
  };

  /// `rank` is one of `size`.
  StoreGroup(int rank, int size);
  /// Stops first. In a forked child it does nothing.
  ~StoreGroup() override;
  StoreGroup(const StoreGroup&) = delete;
  StoreGroup& operator=(const StoreGroup&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void Send(const std::string& key, std::string word) override CAIRN_EXCLUDES(mutex_);
  void Collect(const std::string& key, Deadline deadline, OnWord on_word, OnEnd end) override CAIRN_EXCLUDES(mutex_);
  void Announce(const std::string& key, std::string word) override CAIRN_EXCLUDES(mutex_);
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override CAIRN_EXCLUDES(mutex_);

  // For Python's threads.

  /// The next word for the store: to the coordinator, or on rank 0 to all. DeadlineExceeded; Cancelled once it is
  /// stopped and every word is taken.
  Result<Word> TakeWord(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Whether anything is waited for.
  [[nodiscard]] bool wanted() const { return mailbox_->waiting(); }
  /// Ok as soon as anything is waited for, and so the store to be listened to. DeadlineExceeded; Cancelled once
  /// stopped.
  Status WaitUntilWanted(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// What came from the store, and who closed: see Mailbox.
  void Hear(int from, const std::string& key, std::string word) { mailbox_->Receive(from, key, std::move(word)); }
  void Leave(int peer) { mailbox_->Leave(peer); }
  /// The store is lost: ends every wait, and all to come. The first call counts.
  void Fail(const Status& why) { mailbox_->Fail(why); }
  /// No more waits: those under way end Cancelled. Words already given can still be taken.
  void Stop() CAIRN_EXCLUDES(mutex_);

 private:
  void Give(const std::string& key, std::string word) CAIRN_EXCLUDES(mutex_);
  void TellListener() CAIRN_EXCLUDES(mutex_);

  const pid_t process_;
  const int rank_;
  const int size_;
  DeadlineWatch watch_;
  const std::shared_ptr<Mailbox> mailbox_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Word> words_ CAIRN_GUARDED_BY(mutex_);  // For the store, oldest first.
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
