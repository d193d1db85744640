#include "store_group.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"

namespace cairn {
namespace {

Deadline Later(Deadline deadline, std::chrono::nanoseconds by) {
  return deadline.when() > Deadline::Clock::time_point::max() - by ? Deadline::Infinite()
                                                                   : Deadline::At(deadline.when() + by);
}

}  // namespace

StoreGroup::StoreGroup(int rank, int size) : process_(::getpid()), rank_(rank), size_(static_cast<std::size_t>(size)) {
  Result<std::thread> watch = StartThread("cairn-group", [this] { WatchDeadlines(); });
  if (watch.ok()) {
    watch_ = *std::move(watch);
  } else {
    Fail(watch.status());  // Without it no deadline is kept: every gather answers why.
  }
}

StoreGroup::~StoreGroup() {
  if (::getpid() != process_) {
    // The thread is the parent's; its handle may be neither joined nor destroyed.
    static_cast<void>(new std::thread(std::move(watch_)));
    return;
  }
  Stop();
  if (watch_.joinable()) watch_.join();
}

void StoreGroup::AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) {
  Status refused;
  {
    MutexLock lock(mutex_);
    refused = ended_;
    if (refused.ok() && waiting_.contains(key)) {
      refused = Error(StatusCode::kInternal, "the key \"{}\" was given twice", key);
    }
    if (refused.ok()) {
      waiting_.emplace(key, Waiter{deadline, std::move(done)});
      words_.push_back({key, std::move(bytes)});
    }
  }
  if (!refused.ok()) return done(refused);
  changed_.NotifyAll();
}

Result<StoreGroup::Word> StoreGroup::TakeWord(Deadline deadline) {
  MutexLock lock(mutex_);
  while (words_.empty()) {
    if (stopped_) return Status(StatusCode::kCancelled, "the group was closed");
    if (deadline.passed()) return Status(StatusCode::kDeadlineExceeded, "no word is to be sent");
    changed_.WaitUntil(mutex_, deadline);
  }
  Word word = std::move(words_.front());
  words_.pop_front();
  return word;
}

Result<Deadline> StoreGroup::WaitForGather(Deadline deadline) {
  MutexLock lock(mutex_);
  while (waiting_.empty()) {
    if (stopped_) return Status(StatusCode::kCancelled, "the group was closed");
    if (deadline.passed()) return Status(StatusCode::kDeadlineExceeded, "no answer is wanted");
    changed_.WaitUntil(mutex_, deadline);
  }
  return Earliest();
}

std::vector<std::string> StoreGroup::Wanted(bool late) const {
  MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, waiter] : waiting_) {
    if (!late || waiter.deadline.passed()) keys.push_back(key);
  }
  return keys;
}

void StoreGroup::Answer(const std::string& key, const Result<std::vector<std::string>>& words) {
  Gathered done;
  {
    MutexLock lock(mutex_);
    const auto it = waiting_.find(key);
    if (it == waiting_.end()) return;
    done = std::move(it->second.done);
    waiting_.erase(it);
  }
  if (words.ok() && words->size() != size_) {
    return done(
        Error(StatusCode::kInternal, "gathering \"{}\": expected {} words, found {}", key, size_, words->size()));
  }
  done(words);
}

void StoreGroup::Fail(const Status& why) { EndAll(why); }

void StoreGroup::Stop() {
  if (::getpid() != process_) return;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  EndAll(Status(StatusCode::kCancelled, "the group was closed"));
}

void StoreGroup::EndAll(const Status& why) {
  std::map<std::string, Waiter> ended;
  Status status;
  {
    MutexLock lock(mutex_);
    if (ended_.ok()) ended_ = why;
    status = ended_;
    ended.swap(waiting_);
  }
  changed_.NotifyAll();
  for (auto& [key, waiter] : ended) waiter.done(status);
}

Deadline StoreGroup::Earliest() const {
  Deadline next = Deadline::Infinite();
  for (const auto& [key, waiter] : waiting_) {
    if (waiter.deadline.when() < next.when()) next = waiter.deadline;
  }
  return next;
}

void StoreGroup::WatchDeadlines() {
  while (true) {
    std::vector<std::string> late;
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      for (const auto& [key, waiter] : waiting_) {
        if (Later(waiter.deadline, kGrace).passed()) late.push_back(key);
      }
      if (late.empty()) changed_.WaitUntil(mutex_, Later(Earliest(), kGrace));
    }
    for (const std::string& key : late) {
      Answer(key, Error(StatusCode::kDeadlineExceeded, "gathering \"{}\" from {} ranks: the store said nothing in time",
                        key, size_));
    }
  }
}

}  // namespace cairn
