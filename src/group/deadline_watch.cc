#include "group/deadline_watch.h"

#include <unistd.h>

#include <new>
#include <vector>

#include "base/thread.h"
#include "group/mailbox.h"

namespace cairn {

DeadlineWatch::DeadlineWatch() : process_(::getpid()) {
  Result<std::thread> thread = StartThread("cairn-group", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    status_ = thread.status();
  }
}

DeadlineWatch::~DeadlineWatch() {
  if (::getpid() != process_) {
    // The thread is the parent's: its handle may be neither joined nor destroyed here.
    static_cast<void>(new (std::nothrow) std::thread(std::move(thread_)));
    return;
  }
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void DeadlineWatch::Arm(const std::shared_ptr<Mailbox>& mailbox, TimePoint before, TimePoint when) {
  {
    MutexLock lock(mutex_);
    armed_.erase({before, mailbox.get()});
    armed_.insert_or_assign({when, mailbox.get()}, mailbox);
  }
  changed_.NotifyAll();
}

void DeadlineWatch::Run() {
  while (true) {
    std::vector<std::weak_ptr<Mailbox>> due;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      while (!armed_.empty() && Deadline::At(armed_.begin()->first.first).passed()) {
        due.push_back(std::move(armed_.begin()->second));
        armed_.erase(armed_.begin());
      }
      if (due.empty()) {
        changed_.WaitUntil(mutex_, armed_.empty() ? Deadline::Infinite() : Deadline::At(armed_.begin()->first.first));
      }
    }
    for (const std::weak_ptr<Mailbox>& one : due) {
      if (const std::shared_ptr<Mailbox> mailbox = one.lock()) mailbox->EndOverdue();
    }
  }
}

}  // namespace cairn
