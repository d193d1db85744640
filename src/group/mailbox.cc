#include "group/mailbox.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::size_t kMostNamed = 64;  // Ranks in a message.

std::string Names(const std::vector<std::size_t>& ranks) {
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  std::string names = fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(named), ", "));
  if (named < ranks.size()) names += fmt::format(" and {} more", ranks.size() - named);
  return names;
}

}  // namespace

Mailbox::Mailbox(int rank, int size, DeadlineWatch& watch)
    : rank_(rank), size_(size), watch_(watch), left_(static_cast<std::size_t>(size)) {
  failure_ = watch_.status();
}

void Mailbox::Collect(const std::string& key, Deadline deadline, Group::OnWord on_word, Group::OnEnd end) {
  if (rank_ != 0) return end(Error(StatusCode::kInternal, "\"{}\": rank {} does not coordinate", key, rank_));
  Expect(key, {deadline, std::move(on_word), std::move(end), {}, 0});
}

void Mailbox::Await(const std::string& key, Deadline deadline, Group::OnAnnounced on_announced) {
  if (rank_ == 0) return on_announced(Error(StatusCode::kInternal, "\"{}\": the coordinator hears no other", key));
  // Callbacks come one at a time: the end finds the word.
  const auto word = std::make_shared<std::string>();
  Expect(key, {deadline,
               [word](int, std::string said) { *word = std::move(said); },
               [word, tell = std::move(on_announced)](Status status) {
                 status.ok() ? tell(std::move(*word)) : tell(std::move(status));
               },
               {},
               0});
}

void Mailbox::Expect(const std::string& key, Wait wait) {
  wait.heard.resize(static_cast<std::size_t>(size_));
  wait.missing = rank_ == 0 ? wait.heard.size() - 1 : 1;
  {
    MutexLock lock(mutex_);
    Status refused = failure_;
    if (refused.ok() && waits_.contains(key)) {
      refused = Error(StatusCode::kInternal, "the key \"{}\" was used twice", key);
    }
    if (!refused.ok()) {
      ready_.emplace_back([end = std::move(wait.end), refused] { end(refused); });
    } else {
      const auto it = waits_.emplace(key, std::move(wait)).first;
      Early early = TakeEarly(key);
      for (auto& [from, word] : early.words) Take(it->second, from, std::move(word));
      if (!EndIfDecided(it)) Arm(it->second.deadline);
    }
  }
  RunReady();
}

void Mailbox::Hear(int from, const std::string& key, std::string word) {
  {
    MutexLock lock(mutex_);
    if (!is_peer(from) || left_[static_cast<std::size_t>(from)] || !failure_.ok() || ended_.contains(key)) return;
    if (const auto it = waits_.find(key); it != waits_.end()) {
      Take(it->second, from, std::move(word));
      EndIfDecided(it);
    } else {
      Keep(key, from, std::move(word));
    }
  }
  RunReady();
}

void Mailbox::Leave(int peer) {
  {
    MutexLock lock(mutex_);
    if (!is_peer(peer)) return;
    left_[static_cast<std::size_t>(peer)] = true;
    any_left_ = true;
    for (auto it = waits_.begin(); it != waits_.end();) EndIfDecided(it++);
  }
  RunReady();
}

void Mailbox::Fail(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
    for (auto it = waits_.begin(); it != waits_.end();) it = End(it, failure_);
    early_.clear();
    early_keys_.clear();
    early_words_ = 0;
  }
  RunReady();
}

void Mailbox::Close() {
  Fail(Status(StatusCode::kCancelled, "the group was closed"));
  MutexLock lock(mutex_);
  while (runs_ready_ != std::thread::id() && runs_ready_ != std::this_thread::get_id()) ran_.Wait(mutex_);
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

void Mailbox::EndLate() {
  {
    MutexLock lock(mutex_);
    armed_ = DeadlineWatch::TimePoint::max();
    Deadline next = Deadline::Infinite();
    for (auto it = waits_.begin(); it != waits_.end();) {
      if (it->second.deadline.passed()) {
        it = End(it, Late(it->first, it->second));
      } else {
        if (it->second.deadline.when() < next.when()) next = it->second.deadline;
        ++it;
      }
    }
    Arm(next);
  }
  RunReady();
}

void Mailbox::Take(Wait& wait, int from, std::string word) {
  if (wait.heard[static_cast<std::size_t>(from)]) return;
  wait.heard[static_cast<std::size_t>(from)] = true;
  --wait.missing;
  ready_.emplace_back(
      [on_word = wait.on_word, from, word = std::move(word)]() mutable { on_word(from, std::move(word)); });
}

void Mailbox::Keep(const std::string& key, int from, std::string word) {
  const auto [it, fresh] = early_.try_emplace(key);
  if (fresh) {
    it->second.arrival = arrivals_++;
    early_keys_.emplace(it->second.arrival, key);
  }
  it->second.words.emplace_back(from, std::move(word));
  ++early_words_;
  const std::size_t most = kEarlyWords + kEarlyWordsPerRank * left_.size();
  while (early_words_ > most) static_cast<void>(TakeEarly(std::string(early_keys_.begin()->second)));
}

Mailbox::Early Mailbox::TakeEarly(const std::string& key) {
  const auto it = early_.find(key);
  if (it == early_.end()) return {};
  Early early = std::move(it->second);
  early_words_ -= early.words.size();
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
  ready_.emplace_back(
      [end = std::move(wait->second.end), status = std::move(status)]() mutable { end(std::move(status)); });
  return waits_.erase(wait);
}

bool Mailbox::EndIfDecided(Waits::iterator wait) {
  if (wait->second.missing == 0) {
    End(wait, Status::Ok());
    return true;
  }
  if (!any_left_) return false;
  std::vector<std::size_t> gone;
  for (std::size_t rank = 0; rank < left_.size(); ++rank) {
    if (left_[rank] && !wait->second.heard[rank]) gone.push_back(rank);
  }
  if (gone.empty()) return false;
  End(wait,
      Error(StatusCode::kFailedPrecondition, "\"{}\": rank {} has closed its Checkpointer", wait->first, Names(gone)));
  return true;
}

void Mailbox::Arm(Deadline deadline) {
  if (deadline.when() >= armed_) return;
  watch_.Arm(shared_from_this(), armed_, deadline.when());
  armed_ = deadline.when();
}

void Mailbox::RunReady() {
  mutex_.Lock();
  if (runs_ready_ == std::thread::id()) {
    runs_ready_ = std::this_thread::get_id();
    while (!ready_.empty()) {
      std::function<void()> call = std::move(ready_.front());
      ready_.pop_front();
      mutex_.Unlock();
      call();
      call = nullptr;  // What it holds may end with it, and call back.
      mutex_.Lock();
    }
    runs_ready_ = std::thread::id();
    ran_.NotifyAll();
  }
  mutex_.Unlock();
}

bool Mailbox::is_peer(int rank) const { return rank_ == 0 ? rank > 0 && rank < size_ : rank == 0; }

Status Mailbox::Late(const std::string& key, const Wait& wait) const {
  if (rank_ != 0) return Error(StatusCode::kDeadlineExceeded, "waiting for \"{}\": nothing from rank 0 in time", key);
  std::vector<std::size_t> missing;
  for (std::size_t rank = 1; rank < wait.heard.size(); ++rank) {
    if (!wait.heard[rank]) missing.push_back(rank);
  }
  return Error(StatusCode::kDeadlineExceeded, "gathering \"{}\" from {} ranks: nothing from rank {}", key, size_,
               Names(missing));
}

}  // namespace cairn
