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

/// Ranks that talk through a key-value store, such as torch.distributed's c10d Store, which calls may block.
///
/// Messages to be sent wait until a thread of the store's takes them with NextMessage. It passes on what it receives
/// with Hear: see StoreLink. So no caller of the group ever enters the store. A thread of the group keeps the
/// deadlines, whatever the store does. All calls are safe from any thread.
class StoreGroup : public Group {
 public:
  /// How much longer than its deadline Await waits. The coordinator's wait ends at the same deadline, and this leaves
  /// it time to say which ranks are missing.
  static constexpr std::chrono::milliseconds kGrace{500};
  struct Message {
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
  void Send(const std::string& key, std::string message) override CAIRN_EXCLUDES(mutex_);
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override
      CAIRN_EXCLUDES(mutex_);
  void Announce(const std::string& key, std::string message) override CAIRN_EXCLUDES(mutex_);
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override CAIRN_EXCLUDES(mutex_);

  // For the threads that serve the store.

  /// The next message for the store: to the coordinator, or on rank 0 to all. DeadlineExceeded; Cancelled once it is
  /// stopped and every message is taken.
  Result<Message> NextMessage(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Whether anybody waits for a message.
  [[nodiscard]] bool wanted() const { return mailbox_->waiting(); }
  /// Ok as soon as anybody waits for a message, so that the store must be read. DeadlineExceeded; Cancelled once
  /// stopped.
  Status WaitUntilWanted(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// A message from the store, and a rank that has closed: see Mailbox.
  void Hear(int from, const std::string& key, std::string message) { mailbox_->Receive(from, key, std::move(message)); }
  void Leave(int peer) { mailbox_->Leave(peer); }
  /// The store is lost: ends every wait, and each later one at once. Only the first call counts.
  void Fail(const Status& why) { mailbox_->Fail(why); }
  /// Ends all waits as Cancelled. Messages that are already queued can still be taken.
  void Stop() CAIRN_EXCLUDES(mutex_);

 private:
  void Enqueue(const std::string& key, std::string message) CAIRN_EXCLUDES(mutex_);
  void NotifyListener() CAIRN_EXCLUDES(mutex_);

  const pid_t process_;
  const int rank_;
  const int size_;
  DeadlineWatch watch_;
  const std::shared_ptr<Mailbox> mailbox_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Message> messages_ CAIRN_GUARDED_BY(mutex_);  // For the store, oldest first.
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
