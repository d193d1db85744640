#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "api/checkpointer_impl.h"
#include "base/mutex.h"
#include "cairn/cairn.h"
#include "conversions.h"
#include "py_calls.h"
#include "py_store_group.h"
#include "watched_save.h"

namespace cairn {

inline constexpr std::size_t kMaxEvents = 1000;
inline constexpr std::chrono::seconds kEnding{2};

/// The engine's events, until Python takes them.
class EventLog {
 public:
  void Add(const Event& event) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (events_.size() == kMaxEvents) events_.pop_front();
    events_.push_back(event);
  }
  /// (severity, message, fields) of what has happened since the last call. The fields are attributes of a record of
  /// Python's logging.
  pybind11::list Take() CAIRN_EXCLUDES(mutex_) {
    std::deque<Event> taken;
    {
      MutexLock lock(mutex_);
      taken = std::exchange(events_, {});
    }
    pybind11::list all;
    for (const Event& event : taken) {
      all.append(pybind11::make_tuple(static_cast<int>(event.severity),
                                      WithPythonNames(event.message.empty() ? event.status.message() : event.message),
                                      FromEvent(event)));
    }
    return all;
  }

 private:
  Mutex mutex_;
  std::deque<Event> events_ CAIRN_GUARDED_BY(mutex_);
};

/// Keeps the engine while a call is under way, also if another thread closes meanwhile: then the last such call
/// releases it. Made and destroyed with the GIL; the engine is released without it.
class InUse {
 public:
  explicit InUse(std::shared_ptr<Checkpointer> checkpointer) : checkpointer_(std::move(checkpointer)) {}
  ~InUse() {
    if (checkpointer_.use_count() == 1) Unlocked([this] { checkpointer_.reset(); });
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  Checkpointer* operator->() const { return checkpointer_.get(); }
  Checkpointer& operator*() const { return *checkpointer_; }

 private:
  std::shared_ptr<Checkpointer> checkpointer_;
};

/// An open root's engine and its events: how Python's calls reach it, wait for it, and end it. After Close every call
/// is refused.
class OpenEngine {
 public:
  OpenEngine(Options options, const PyStoreGroup* group, const std::optional<NodeRanks>& node)
      : close_timeout_(options.close_timeout), group_(group == nullptr ? nullptr : group->link()) {
    options.on_event = [events = events_, watcher = watcher_, logs_now = logs_now_](const Event& event) {
      events->Add(event);
      if (event.severity == Severity::kInfo) return;
      *logs_now == std::this_thread::get_id() ? LogNow(events) : watcher->NudgeForEvents();
    };
    if (group_ != nullptr) options.group = std::shared_ptr<Group>(group_, &group_->group());
    checkpointer_ = ValueOrRaise(UnlockedAndLogged([&] { return Checkpointer::Open(options, {.node = node}); }));
  }
  ~OpenEngine() {
    if (checkpointer_ == nullptr) return;
    const Deadline begun = Deadline::In({});
    const auto limit = watcher_->EndOf(InSeconds(close_timeout_), /*by_caller=*/false);
    Status idle;
    do {
      idle = WaitIdleFor(kSignalInterval);
    } while (AtItsDeadline(idle) && !Inside::AbandonsBefore(limit(), begun).passed());
    if (OnlyRemoves(*checkpointer_, idle)) idle = Status::Ok();
    const Deadline end = idle.ok() ? Deadline::At(std::max(limit().when(), Deadline::In(kEnding).when())) : limit();
    const Status failure = idle.ok() ? Inside::Of(*checkpointer_).TakeUnheardFailure() : idle;
    ReleaseEngine(end);
    watcher_->ReleaseTensors();
    if (!failure.ok() && !watcher_->forked()) WriteUnraisable(failure);  // A child has lost nothing.
  }
  OpenEngine(const OpenEngine&) = delete;
  OpenEngine& operator=(const OpenEngine&) = delete;

  /// Waits for saves in flight, then releases the engine and raises the first failure that nobody has heard, or that
  /// saves were abandoned: all of it within the timeout. A signal's exception leaves it open.
  void Close(double timeout, bool by_caller) {
    if (checkpointer_ == nullptr) return;
    watcher_->EndStep();
    Inside::Of(*Use()).EndPauses();
    const Watcher::Waiting waiting(*watcher_);
    const Deadline begun = Deadline::In({});
    const auto end = watcher_->EndOf(timeout, by_caller);
    const auto abandons = [&] { return Inside::AbandonsBefore(end(), begun); };
    Status idle = InSlices(abandons, [this](Deadline slice) {
      if (checkpointer_ == nullptr) return Status::Ok();  // Another thread has closed it.
      const InUse engine = Use();
      return Unlocked([&] { return Inside::Of(*engine).WaitIdle(slice); });
    });
    if (checkpointer_ == nullptr) return;
    if (OnlyRemoves(*Use(), idle)) idle = Status::Ok();
    if (idle.ok()) {
      static_cast<void>(InSlices(end, [this](Deadline slice) {
        if (checkpointer_ == nullptr) return Status::Ok();
        const InUse engine = Use();
        return Unlocked([&] { return Inside::Of(*engine).WaitMirrorsEnded(slice); });
      }));
      if (checkpointer_ == nullptr) return;
    }
    const Status failure = idle.ok() ? Inside::Of(*Use()).TakeDrainFailure() : Inside::Of(*Use()).TakeUnheardFailure();
    // With no save in flight the engine ends in a moment, also after the grace; or its removals go on behind.
    ReleaseEngine(idle.ok() ? Deadline::At(std::max(end().when(), Deadline::In(kEnding).when())) : end());
    watcher_->ReleaseTensors();
    if (!idle.ok()) Raise(Status(idle.code(), "abandoned at close: " + idle.message()));
    RaiseIfError(failure);
  }
  [[nodiscard]] bool closed() const { return checkpointer_ == nullptr; }
  /// Whether the engine is gone. After Close, calls of other threads may still use it, and it reads tensors till then.
  [[nodiscard]] bool released() const { return checkpointer_ == nullptr && released_.expired(); }
  [[nodiscard]] const std::shared_ptr<Watcher>& watcher() const { return watcher_; }
  [[nodiscard]] const std::shared_ptr<EventLog>& events() const { return events_; }
  /// The process is to end: no wait lasts longer than so many seconds from now.
  void EndWaitsIn(double seconds) const { watcher_->EndWaitsBy(DeadlineFrom(seconds)); }
  /// When that is, as time.monotonic() counts; infinite if the process is not to end.
  [[nodiscard]] double WaitsEnd() const {
    const Deadline end = watcher_->waits_end();
    return end.infinite() ? std::numeric_limits<double>::infinity() : InSeconds(end.when().time_since_epoch());
  }

 protected:
  /// Raises if it is closed.
  [[nodiscard]] InUse Use() const {
    if (checkpointer_ != nullptr) return InUse(checkpointer_);
    Raise(Status(StatusCode::kFailedPrecondition, "this Checkpointer is closed"));
  }

  /// What the engine answers, without the GIL meanwhile. Raises its error.
  template <typename Call>
  auto Ask(const Call& call) const {
    const InUse engine = Use();
    return ValueOrRaise(Unlocked([&] { return call(*engine); }));
  }
  /// Waits in slices. Between them another thread may close it; then this raises.
  template <typename Call>
  Status Wait(std::optional<double> timeout, const Call& call, bool by_caller = true) const {
    return InSlices(watcher_->EndOf(timeout, by_caller), [&](Deadline slice) {
      const InUse engine = Use();
      return Unlocked([&] { return call(engine, slice); });
    });
  }

  /// Runs the call without the GIL, and logs its events at once.
  template <typename Call>
  std::invoke_result_t<Call> UnlockedAndLogged(const Call& call) {
    *logs_now_ = std::this_thread::get_id();
    auto result = Unlocked(call);
    *logs_now_ = std::thread::id();
    return result;
  }
  /// Whether other ranks save with this one.
  [[nodiscard]] bool grouped() const { return group_ != nullptr; }

 private:
  // On the thread that opens or restores, which has released the GIL.
  static void LogNow(const std::shared_ptr<EventLog>& events) {
    Locked([&] {
      try {
        pybind11::module_::import("cairn._held").attr("log_events")(events);
      } catch (pybind11::error_already_set& error) {
        error.discard_as_unraisable("the log of cairn");
      }
    });
  }

  /// Also checks captured saves, as the Watcher does: this may run on the Watcher's thread, or after it has ended.
  Status WaitIdleFor(std::chrono::nanoseconds span) {
    for (const std::shared_ptr<WatchedSave>& save : watcher_->pending()) {
      if (save->save().stats().phase < SavePhase::kCaptured) continue;
      watcher_->Settle(save, Watcher::kLongest);
    }
    return Unlocked([&] { return Inside::Of(*checkpointer_).WaitIdle(Deadline::In(span)); });
  }

  // Whether a wait has ended early, but not for a save: what is removed has no caller to wait for it.
  static bool OnlyRemoves(const Checkpointer& open, const Status& idle) {
    return idle.code() == StatusCode::kDeadlineExceeded && !Inside::Of(open).HasSaves();
  }

  // The group's threads end with the engine.
  void ReleaseEngine(Deadline end) {
    std::shared_ptr<Checkpointer> open = std::exchange(checkpointer_, nullptr);
    released_ = open;
    Inside::Of(*open).CloseBy(end);
    Unlocked([&] {
      // Another thread's call may keep the engine beyond the end of the log.
      Inside::Of(*open).LeaveMirrors();
      open.reset();
      watcher_->Stop();
      if (group_ != nullptr) group_->Stop();
    });
  }

  const std::chrono::nanoseconds close_timeout_;
  const std::shared_ptr<StoreLink> group_;
  const std::shared_ptr<EventLog> events_ = std::make_shared<EventLog>();
  const std::shared_ptr<Watcher> watcher_ = std::make_shared<Watcher>();
  // The thread that opens, while the watcher's does not run yet, or that restores.
  const std::shared_ptr<std::atomic<std::thread::id>> logs_now_ = std::make_shared<std::atomic<std::thread::id>>();
  std::shared_ptr<Checkpointer> checkpointer_;
  std::weak_ptr<Checkpointer> released_;  // After Close.
};

}  // namespace cairn
