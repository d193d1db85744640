#include "group/mailbox.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxNamedRanks = 64;

/// "rank 2", "ranks 2, 4".
std::string RankNames(const std::vector<std::size_t>& ranks) {
  const auto named = std::min(ranks.size(), kMaxNamedRanks);
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  names += fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(named), ", "));
  if (named < ranks.size()) names += fmt::format(" and {} more", ranks.size() - named);
  return names;
}

}  // namespace

Mailbox::Mailbox(int rank, int size, DeadlineWatch& watch)
    : rank_(rank), size_(size), watch_(watch), left_(static_cast<std::size_t>(size)) {
  failure_ = watch_.status();
}

void Mailbox::Collect(const std::string& key, Deadline deadline, Group::OnMessage on_message, Group::OnEnd end) {
  if (rank_ != 0) return end(Error(StatusCode::kInternal, "\"{}\": rank {} is not the coordinator", key, rank_));
  Expect(key, {deadline, std::move(on_message), std::move(end), {}, 0});
}

void Mailbox::Await(const std::string& key, Deadline deadline, Group::OnAnnounced on_announced) {
  if (rank_ == 0) return on_announced(Error(StatusCode::kInternal, "\"{}\": rank 0 cannot await", key));
  // Callbacks run one at a time: at the end the message is there.
  const auto message = std::make_shared<std::string>();
  Expect(key, {deadline,
               [message](int, std::string said) { *message = std::move(said); },
               [message, call = std::move(on_announced)](Status status) {
                 status.ok() ? call(std::move(*message)) : call(std::move(status));
               },
               {},
               0});
}

void Mailbox::Expect(const std::string& key, Wait wait) {
  wait.received.resize(static_cast<std::size_t>(size_));
  wait.missing = rank_ == 0 ? wait.received.size() - 1 : 1;
  {
    MutexLock lock(mutex_);
    Status refused = failure_;
    if (refused.ok() && waits_.contains(key)) {
      refused = Error(StatusCode::kInternal, "key \"{}\" is used twice", key);
    }
    if (!refused.ok()) {
      callbacks_.emplace_back([end = std::move(wait.end), refused] { end(refused); });
    } else {
      const auto it = waits_.emplace(key, std::move(wait)).first;
      Early early = TakeEarly(key);
      for (auto& [from, message] : early.messages) Deliver(it->second, from, std::move(message));
      if (!EndIfComplete(it)) Arm(it->second.deadline);
    }
  }
  RunCallbacks();
}

void Mailbox::Receive(int from, const std::string& key, std::string message) {
  {
    MutexLock lock(mutex_);
    if (!is_peer(from) || left_[static_cast<std::size_t>(from)] || !failure_.ok() || ended_.contains(key)) return;
    if (const auto it = waits_.find(key); it != waits_.end()) {
      Deliver(it->second, from, std::move(message));
      EndIfComplete(it);
    } else {
      KeepEarly(key, from, std::move(message));
    }
  }
  RunCallbacks();
}

void Mailbox::Leave(int peer) {
  {
    MutexLock lock(mutex_);
    if (!is_peer(peer)) return;
    left_[static_cast<std::size_t>(peer)] = true;
    any_left_ = true;
    for (auto it = waits_.begin(); it != waits_.end();) EndIfComplete(it++);
  }
  RunCallbacks();
}

void Mailbox::Fail(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
    for (auto it = waits_.begin(); it != waits_.end();) it = End(it, failure_);
    early_.clear();
    early_keys_.clear();
    early_messages_ = 0;
  }
  RunCallbacks();
}

void Mailbox::Close() {
  Fail(Status(StatusCode::kCancelled, "the group was closed"));
  MutexLock lock(mutex_);
  while (callback_thread_ != std::thread::id() && callback_thread_ != std::this_thread::get_id()) idle_.Wait(mutex_);
}

bool Mailbox::waiting() const {
  MutexLock lock(mutex_);
  return !waits_.empty();
}

bool Mailbox::failed() const {
  MutexLock lock(mutex_);
  return !failure_.ok();
}

bool Mailbox::has_left(int peer) const {
  MutexLock lock(mutex_);
  return is_peer(peer) && left_[static_cast<std::size_t>(peer)];
}

void Mailbox::EndOverdue() {
  {
    MutexLock lock(mutex_);
    armed_ = DeadlineWatch::TimePoint::max();
    Deadline next = Deadline::Infinite();
    for (auto it = waits_.begin(); it != waits_.end();) {
      if (it->second.deadline.passed()) {
        it = End(it, DeadlineError(it->first, it->second));
      } else {
        if (it->second.deadline.when() < next.when()) next = it->second.deadline;
        ++it;
      }
    }
    Arm(next);
  }
  RunCallbacks();
}

void Mailbox::Deliver(Wait& wait, int from, std::string message) {
  if (wait.received[static_cast<std::size_t>(from)]) return;
  wait.received[static_cast<std::size_t>(from)] = true;
  --wait.missing;
  callbacks_.emplace_back([on_message = wait.on_message, from, message = std::move(message)]() mutable {
    on_message(from, std::move(message));
  });
}

void Mailbox::KeepEarly(const std::string& key, int from, std::string message) {
  const auto [it, fresh] = early_.try_emplace(key);
  if (fresh) {
    it->second.arrival = arrivals_++;
    early_keys_.emplace(it->second.arrival, key);
  }
  auto& messages = it->second.messages;
  const auto before = std::ranges::find_if(messages, [&](const auto& one) { return one.first == from; });
  if (before != messages.end()) {
    before->second = std::move(message);
    return;
  }
  messages.emplace_back(from, std::move(message));
  ++early_messages_;
  const std::size_t most = kEarlyMessages + kEarlyMessagesPerRank * left_.size();
  while (early_messages_ > most) static_cast<void>(TakeEarly(std::string(early_keys_.begin()->second)));
}

Mailbox::Early Mailbox::TakeEarly(const std::string& key) {
  const auto it = early_.find(key);
  if (it == early_.end()) return {};
  Early early = std::move(it->second);
  early_messages_ -= early.messages.size();
  early_keys_.erase(early.arrival);
  early_.erase(it);
  return early;
}

Mailbox::Waits::iterator Mailbox::End(Waits::iterator wait, Status status) {
  if (wait->second.missing > 0 && ended_.insert(wait->first).second) {
    ended_keys_.push_back(wait->first);
    if (ended_keys_.size() > kEndedKeys) {
      ended_.erase(ended_keys_.front());
      ended_keys_.pop_front();
    }
  }
  callbacks_.emplace_back(
      [end = std::move(wait->second.end), status = std::move(status)]() mutable { end(std::move(status)); });
  return waits_.erase(wait);
}

bool Mailbox::EndIfComplete(Waits::iterator wait) {
  if (wait->second.missing == 0) {
    End(wait, Status::Ok());
    return true;
  }
  if (!any_left_) return false;
  std::vector<std::size_t> gone;
  for (std::size_t rank = 0; rank < left_.size(); ++rank) {
    if (left_[rank] && !wait->second.received[rank]) gone.push_back(rank);
  }
  if (gone.empty()) return false;
  End(wait, Error(StatusCode::kFailedPrecondition, "\"{}\": {} closed the Checkpointer", wait->first, RankNames(gone)));
  return true;
}

void Mailbox::Arm(Deadline deadline) {
  if (deadline.when() >= armed_) return;
  watch_.Arm(shared_from_this(), armed_, deadline.when());
  armed_ = deadline.when();
}

void Mailbox::RunCallbacks() {
  mutex_.Lock();
  if (callback_thread_ == std::thread::id()) {
    callback_thread_ = std::this_thread::get_id();
    while (!callbacks_.empty()) {
      std::function<void()> call = std::move(callbacks_.front());
      callbacks_.pop_front();
      mutex_.Unlock();
      call();
      call = nullptr;  // Its captures may be destroyed here, and call back.
      mutex_.Lock();
    }
    callback_thread_ = std::thread::id();
    idle_.NotifyAll();
  }
  mutex_.Unlock();
}

bool Mailbox::is_peer(int rank) const { return rank_ == 0 ? rank > 0 && rank < size_ : rank == 0; }

Status Mailbox::DeadlineError(const std::string& key, const Wait& wait) const {
  if (rank_ != 0) return Error(StatusCode::kDeadlineExceeded, "waiting for \"{}\": nothing from rank 0 in time", key);
  std::vector<std::size_t> missing;
  for (std::size_t rank = 1; rank < wait.received.size(); ++rank) {
    if (!wait.received[rank]) missing.push_back(rank);
  }
  return Error(StatusCode::kDeadlineExceeded, "collecting \"{}\" from {} ranks: nothing from {}", key, size_,
               RankNames(missing));
}

}  // namespace cairn
