#include "group/store_group.h"

#include <unistd.h>

#include <utility>

namespace cairn {
namespace {

Deadline Later(Deadline deadline, std::chrono::nanoseconds by) {
  return deadline.when() > Deadline::Clock::time_point::max() - by ? Deadline::Infinite()
                                                                   : Deadline::At(deadline.when() + by);
}

}  // namespace

StoreGroup::StoreGroup(int rank, int size)
    : process_(::getpid()), rank_(rank), size_(size), mailbox_(std::make_shared<Mailbox>(rank, size, watch_)) {}

StoreGroup::~StoreGroup() { Stop(); }

void StoreGroup::Send(const std::string& key, std::string message) {
  if (rank_ != 0 && !mailbox_->has_left(0)) Enqueue(key, std::move(message));
}

void StoreGroup::Announce(const std::string& key, std::string message) {
  if (rank_ == 0 && size_ > 1) Enqueue(key, std::move(message));
}

void StoreGroup::Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) {
  mailbox_->Collect(key, deadline, std::move(on_message), std::move(end));
  NotifyListener();
}

void StoreGroup::Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) {
  mailbox_->Await(key, Later(deadline, kGrace), std::move(on_announced));
  NotifyListener();
}

Result<StoreGroup::Message> StoreGroup::NextMessage(Deadline deadline) {
  MutexLock lock(mutex_);
  while (messages_.empty()) {
    if (stopped_) return Status(StatusCode::kCancelled, "the group was closed");
    if (deadline.passed()) return Status(StatusCode::kDeadlineExceeded, "no message is to be sent");
    changed_.WaitUntil(mutex_, deadline);
  }
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

Status StoreGroup::WaitUntilWanted(Deadline deadline) {
  MutexLock lock(mutex_);
  while (!stopped_) {
    if (mailbox_->waiting()) return Status::Ok();
    if (deadline.passed()) return {StatusCode::kDeadlineExceeded, "nothing is waited for"};
    changed_.WaitUntil(mutex_, deadline);
  }
  return {StatusCode::kCancelled, "the group was closed"};
}

void StoreGroup::Stop() {
  if (::getpid() != process_) return;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  mailbox_->Close();
}

void StoreGroup::Enqueue(const std::string& key, std::string message) {
  if (mailbox_->failed()) return;  // Stopped, or the store is lost: nobody would take it.
  {
    MutexLock lock(mutex_);
    messages_.push_back({key, std::move(message)});
  }
  changed_.NotifyAll();
}

void StoreGroup::NotifyListener() {
  // Taking the lock once makes sure that the listener sees the new wait or is already waiting to be woken.
  { const MutexLock lock(mutex_); }
  changed_.NotifyAll();
}

}  // namespace cairn
