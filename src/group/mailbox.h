#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/group.h"
#include "group/deadline_watch.h"

namespace cairn {

/// The messages that one rank of a Group has received, and its waits. A transport delivers the messages. Safe from any
/// thread.
///
/// The coordinator receives from the other ranks, and these receive from the coordinator: its peers. Messages that
/// nobody waits for yet are kept, up to kEarlyMessages plus kEarlyMessagesPerRank for each rank. Beyond that the oldest
/// keys are dropped.
///
/// Callbacks run one at a time, in the order of their events, and never under a lock: on the thread that delivers the
/// message, on that of the watch, or on a concurrent caller's.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  static constexpr std::size_t kEarlyMessages = 4096;
  static constexpr std::size_t kEarlyMessagesPerRank = 64;
  static constexpr std::size_t kEndedKeys = 4096;

  /// Only std::make_shared may create it. If the watch has no thread, the mailbox has failed from the start. The watch
  /// must outlive the mailbox or its Close.
  Mailbox(int rank, int size, DeadlineWatch& watch);

  // For the rank: see Group.

  void Collect(const std::string& key, Deadline deadline, Group::OnMessage on_message, Group::OnEnd end);
  void Await(const std::string& key, Deadline deadline, Group::OnAnnounced on_announced);

  // For the transport.

  /// Delivers a peer's message. It is dropped if its wait has ended or has had one of this peer, or if the peer has
  /// left. While nobody waits for it, it replaces an earlier one of this peer.
  void Receive(int from, const std::string& key, std::string message) CAIRN_EXCLUDES(mutex_);
  /// The peer sends no more messages.
  void Leave(int peer) CAIRN_EXCLUDES(mutex_);
  /// Ends every wait, now and later. The first reason is kept.
  void Fail(const Status& why) CAIRN_EXCLUDES(mutex_);
  /// Fails with Cancelled. After it returns no callback runs on another thread.
  void Close() CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] bool waiting() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool failed() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool has_left(int peer) const CAIRN_EXCLUDES(mutex_);

  /// For the watch: ends the waits whose deadline has passed.
  void EndOverdue() CAIRN_EXCLUDES(mutex_);

 private:
  struct Wait {
    Deadline deadline;
    Group::OnMessage on_message;
    Group::OnEnd end;
    // By rank.
    std::vector<bool> received;
    std::size_t missing = 0;
  };
  // Messages under a key that nobody waits for yet.
  struct Early {
    std::uint64_t arrival = 0;
    // By rank.
    std::vector<std::pair<int, std::string>> messages;
  };
  using Waits = std::map<std::string, Wait>;

  void Expect(const std::string& key, Wait wait) CAIRN_EXCLUDES(mutex_);
  void Deliver(Wait& wait, int from, std::string message) CAIRN_REQUIRES(mutex_);
  void KeepEarly(const std::string& key, int from, std::string message) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Early TakeEarly(const std::string& key) CAIRN_REQUIRES(mutex_);
  Waits::iterator End(Waits::iterator wait, Status status) CAIRN_REQUIRES(mutex_);
  // Ends the wait if it is complete, or if a missing peer has left.
  bool EndIfComplete(Waits::iterator wait) CAIRN_REQUIRES(mutex_);
  void Arm(Deadline deadline) CAIRN_REQUIRES(mutex_);
  void RunCallbacks() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool is_peer(int rank) const;
  [[nodiscard]] Status DeadlineError(const std::string& key, const Wait& wait) const;

  const int rank_;
  const int size_;
  DeadlineWatch& watch_;
  mutable Mutex mutex_;
  Waits waits_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, Early> early_ CAIRN_GUARDED_BY(mutex_);
  // By arrival.
  std::map<std::uint64_t, std::string> early_keys_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t arrivals_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t early_messages_ CAIRN_GUARDED_BY(mutex_) = 0;
  // Keys whose waits ended incomplete, as a set and oldest first.
  std::set<std::string> ended_ CAIRN_GUARDED_BY(mutex_);
  std::deque<std::string> ended_keys_ CAIRN_GUARDED_BY(mutex_);
  // By rank.
  std::vector<bool> left_ CAIRN_GUARDED_BY(mutex_);
  bool any_left_ CAIRN_GUARDED_BY(mutex_) = false;
  Status failure_ CAIRN_GUARDED_BY(mutex_);
  DeadlineWatch::TimePoint armed_ CAIRN_GUARDED_BY(mutex_) = DeadlineWatch::TimePoint::max();
  // Callbacks to run, and the thread that runs them.
  std::deque<std::function<void()>> callbacks_ CAIRN_GUARDED_BY(mutex_);
  std::thread::id callback_thread_ CAIRN_GUARDED_BY(mutex_);
  CondVar idle_;
};

}  // namespace cairn
