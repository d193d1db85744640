#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/checkpointer_impl.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "cairn/cairn.h"
#include "conversions.h"
#include "py_calls.h"
#include "py_save.h"
#include "py_store_group.h"
#include "tree_tensors.h"
#include "watched_save.h"

namespace cairn {

inline constexpr std::size_t kMaxEvents = 1000;
inline constexpr std::chrono::seconds kEnding{2};
inline constexpr std::chrono::hours kUntilChecked{24 * 365};  // The Watcher checks it once it is captured.

using JsonArguments = std::vector<std::pair<std::string, std::string>>;  // (name, text)
/// (tensors, those of them that rank 0 writes, (name, text) of other values that must be equal on all ranks)
using ReplicaArguments = std::tuple<std::vector<std::string>, std::vector<std::string>, JsonArguments>;

/// The engine's events, until Python takes them.
class EventLog {
 public:
  void Add(const Event& event) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (events_.size() == kMaxEvents) events_.pop_front();
    events_.push_back(event);
  }
  /// (kind, severity, step or None, message) of what has happened since the last call.
  pybind11::list Take() CAIRN_EXCLUDES(mutex_) {
    std::deque<Event> taken;
    {
      MutexLock lock(mutex_);
      taken = std::exchange(events_, {});
    }
    pybind11::list all;
    for (const Event& event : taken) {
      all.append(pybind11::make_tuple(static_cast<int>(event.kind), static_cast<int>(event.severity), event.step,
                                      WithPythonNames(event.message.empty() ? event.status.message() : event.message)));
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

/// A Checkpointer and its events. After Close every call is refused.
class PyCheckpointer {
 public:
  PyCheckpointer(Options options, const PyStoreGroup* group, const std::optional<NodeRanks>& node,
                 UnfencedWrites::Then unfenced_writes)
      : close_timeout_(options.close_timeout),
        group_(group == nullptr ? nullptr : group->link()),
        writes_(std::make_shared<UnfencedWrites>(unfenced_writes, [events = events_](const Status& found) {
          events->Add({.severity = Severity::kWarning, .status = found, .message = found.message()});
        })) {
    options.on_event = [events = events_, watcher = watcher_, logs_now = logs_now_](const Event& event) {
      events->Add(event);
      if (event.severity == Severity::kInfo) return;
      *logs_now == std::this_thread::get_id() ? LogNow(events) : watcher->NudgeForEvents();
    };
    if (group_ != nullptr) options.group = std::shared_ptr<Group>(group_, &group_->group());
    checkpointer_ = ValueOrRaise(UnlockedAndLogged([&] { return Checkpointer::Open(options, {.node = node}); }));
  }
  ~PyCheckpointer() {
    if (checkpointer_ == nullptr) return;
    const Deadline begun = Deadline::In({});
    const auto limit = watcher_->EndOf(InSeconds(close_timeout_), /*by_caller=*/false);
    Status idle;
    do {
      idle = WaitIdleFor(kSignalInterval);
    } while (idle.code() == StatusCode::kDeadlineExceeded && !Inside::AbandonsBefore(limit(), begun).passed());
    if (OnlyRemoves(*checkpointer_, idle)) idle = Status::Ok();
    const Deadline end = idle.ok() ? Deadline::At(std::max(limit().when(), Deadline::In(kEnding).when())) : limit();
    const Status failure = idle.ok() ? Inside::Of(*checkpointer_).TakeUnheardFailure() : idle;
    ReleaseEngine(end);
    watcher_->ReleaseTensors();
    if (!failure.ok() && !watcher_->forked()) WriteUnraisable(failure);  // A child has lost nothing.
  }
  PyCheckpointer(const PyCheckpointer&) = delete;
  PyCheckpointer& operator=(const PyCheckpointer&) = delete;

  /// Sets `entry.save`, and appends the entry to `held` if the save reads after its call, before it returns: between
  /// the return and Python's next instruction a signal handler may raise, and then nobody would know of the save.
  pybind11::object Save(std::uint64_t step, TreeTensors& tensors, const JsonArguments& values,
                        const StreamArguments& streams, const StreamArguments& elsewhere, bool replace, bool pin,
                        const ReplicaArguments& replicas, double hold, const pybind11::object& held,
                        const pybind11::object& entry) {
    const PySave begun = Start(step, tensors, values, streams, elsewhere, replace, pin, replicas, hold);
    pybind11::object save = pybind11::cast(begun);
    entry.attr("save") = save;
    if (begun.watched() == nullptr) return save;
    held.attr("append")(entry);
    watcher_->Add(begun.watched());  // Last: its thread lets the entry go.
    return save;
  }
  /// Called instead of Save when this rank cannot save, because the other ranks wait for it.
  void GiveUp(std::uint64_t step, const std::string& why) {
    if (group_ == nullptr) return;
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return engine->GiveUp(step, Status(StatusCode::kFailedPrecondition, why)); }).status());
  }
  bool ShouldSave(std::uint64_t step) {
    const InUse engine = Use();
    return ValueOrRaise(Unlocked([&] { return engine->ShouldSave(step); }));
  }
  void SetUp(int cuda) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return engine->SetUp(DeviceFrom(cuda)); }));
  }
  void WaitForPlace(double timeout) {
    watcher_->EndStep();
    const Watcher::Waiting waiting(*watcher_);
    RaiseIfError(Wait(
        timeout, [](const InUse& engine, Deadline deadline) { return engine->WaitForPlace(deadline); },
        /*by_caller=*/false));
  }
  void Fence(int cuda, std::uintptr_t stream, std::optional<double> timeout) {
    const std::vector<std::shared_ptr<WatchedSave>> pending = watcher_->pending();
    RaiseIfError(Wait(timeout, [&](const InUse& engine, Deadline deadline) {
      return engine->Fence({DeviceFrom(cuda), stream}, deadline);
    }));
    for (const std::shared_ptr<WatchedSave>& save : pending) watcher_->Settle(save, Watcher::kShort);
  }
  [[nodiscard]] CopyPause PauseCopies(double at_most) const { return Use()->PauseCopies(SpanFrom(at_most)); }
  /// Called before each step of any optimizer.
  void BeginStep() { watcher_->BeginStep(); }
  /// Whether what a step has written matters to any save.
  [[nodiscard]] bool HasUnchecked() const {
    if (writes_->ignored()) return false;
    const std::vector<std::shared_ptr<WatchedSave>> pending = watcher_->pending();
    return std::any_of(pending.begin(), pending.end(), [](const auto& save) { return !save->checked(); });
  }
  /// The step is over, and has written this: (address, bytes).
  void EndStep(std::vector<std::pair<std::uintptr_t, std::uint64_t>> ranges) {
    const WrittenMemory written(std::move(ranges));
    const std::uint64_t step = watcher_->steps();
    for (const std::shared_ptr<WatchedSave>& save : watcher_->pending()) save->NoteWritten(written, step);
    watcher_->EndStep();
  }
  /// From now on versions tell nothing; see UnfencedWrites.
  void IgnoreVersions() { writes_->IgnoreVersions(); }
  void Drain(std::optional<double> timeout) {
    watcher_->EndStep();
    const Watcher::Waiting waiting(*watcher_);
    // Not Drain, because of the slices: it also returns DeadlineExceeded if that is how a save has failed.
    RaiseIfError(
        Wait(timeout, [](const InUse& engine, Deadline deadline) { return Inside::Of(*engine).WaitIdle(deadline); }));
    RaiseIfError(Inside::Of(*Use()).TakeUnheardFailure());
  }
  /// `wait()` is called first. `plan(chosen)`, with the manifest's fields, returns the rest of ReadPlan: (tensors,
  /// streams, own, page_cache, begin, finish).
  pybind11::dict Restore(std::optional<std::uint64_t> step, const std::string& folder, bool fall_back,
                         const pybind11::function& wait, const pybind11::function& plan, const PyProgress& progress) {
    using Planned = std::tuple<TreeTensors*, StreamArguments, bool, std::optional<bool>, std::function<void()>,
                               std::function<void()>>;
    const InUse engine = Use();
    const Selector selector = SelectorFrom(step, folder);
    const PyProgress no_progress;
    InterruptibleProgress reading(progress);
    InterruptibleProgress waiting(no_progress);
    RaisedStatus raised;
    const auto plan_read = [&](const CheckpointInfo& chosen) -> Result<ReadPlan> {
      ReadPlan read;
      CAIRN_RETURN_IF_ERROR(raised.Try([&] {
        const pybind11::object planned = plan(FromInfo(chosen));
        auto [tensors, streams, own, page_cache, begin, finish] = planned.cast<Planned>();
        TreeTensors::LastSave none;
        read = {.state = ValueOrRaise(tensors->Build(none)),
                .options = {.streams = StreamsFrom(streams), .progress = reading.callback(), .page_cache = page_cache},
                .own_shard = own,
                .begin = [&raised, begin = std::move(begin)] { return raised.Try(begin); },
                .finish = [&raised, finish = std::move(finish)] { return raised.Try(finish); }};
      }));
      return read;
    };
    const Status ready = raised.Try([&] { wait(); });
    const auto goes_on = [&] { return !raised.interrupted() && waiting.callback()(0, 0); };
    const Result<Restored> result = UnlockedAndLogged([&] {
      return Inside::Of(*engine).Restore(fall_back ? selector.FallBack() : selector,
                                         {.plan = plan_read, .ready = ready, .goes_on = goes_on});
    });
    waiting.RethrowIfRaised();
    reading.RethrowIfRaised();
    raised.RaiseIfError(result.status());
    return FromRestored(*result);
  }
  /// On this rank alone.
  pybind11::dict Read(std::optional<std::uint64_t> step, const std::string& folder, TreeTensors& tensors,
                      const StreamArguments& streams, bool resume, bool own, std::optional<bool> page_cache,
                      const PyProgress& progress) {
    TreeTensors::LastSave none;
    const State state = ValueOrRaise(tensors.Build(none));
    const RestoreOptions options{.streams = StreamsFrom(streams), .page_cache = page_cache};
    return FromRestored(RestoreAlone(SelectorFrom(step, folder), {state, options, own}, resume, progress));
  }
  /// The step of the newest checkpoint in which every byte is good.
  std::uint64_t VerifyNewest() {
    return RestoreAlone(Latest().FallBack(), {.verify = true}, /*resume=*/false, {}).step;
  }
  pybind11::list List() {
    const InUse engine = Use();
    pybind11::list all;
    for (const CheckpointInfo& info : ValueOrRaise(Unlocked([&] { return engine->List(); })))
      all.append(FromInfo(info));
    return all;
  }
  /// What the manifest says, or everything but the tensors' bytes, and "hold".
  pybind11::dict Choose(std::optional<std::uint64_t> step, const std::string& folder, bool inspect) {
    const InUse engine = Use();
    Chosen chosen =
        ValueOrRaise(Unlocked([&] { return Inside::Of(*engine).Choose(SelectorFrom(step, folder), inspect); }));
    pybind11::dict fields = inspect ? FromDetails(std::move(chosen.details)) : FromInfo(chosen.details.info);
    fields["hold"] = PyHold(std::move(chosen.hold));
    return fields;
  }
  pybind11::dict Inspect(const std::string& folder) {
    const InUse engine = Use();
    return FromDetails(ValueOrRaise(Unlocked([&] { return engine->Inspect(Folder(folder)); })));
  }
  pybind11::dict InspectPartOf(const std::string& folder, std::optional<std::uint64_t> rank,
                               std::vector<std::string> names) {
    const InUse engine = Use();
    return FromDetails(ValueOrRaise(Unlocked(
        [&] { return Inside::Of(*engine).Inspect(Folder(folder), {.rank = rank, .names = std::move(names)}); })));
  }
  void Verify(std::optional<std::uint64_t> step, const std::string& folder, const PyProgress& progress) {
    const InUse engine = Use();
    InterruptibleProgress interruptible(progress);
    const Status status =
        Unlocked([&] { return engine->Verify(SelectorFrom(step, folder), interruptible.callback()); });
    interruptible.RethrowIfRaised();
    RaiseIfError(status);
  }
  void Pin(std::uint64_t step, bool pinned) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return pinned ? engine->Pin(step) : engine->Unpin(step); }));
  }
  void PinBest(std::uint64_t step, bool pinned) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return Inside::Of(*engine).SetPinned(step, PinOwner::kBest, pinned); }));
  }
  void Remove(std::uint64_t step) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return engine->Remove(step); }));
  }
  void Publish(std::uint64_t step, const std::string& path, std::optional<double> timeout) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return engine->Publish(step, path, DeadlineFrom(timeout)); }));
  }
  void RemovePublished(const std::string& path, std::optional<double> timeout) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return engine->RemovePublished(path, DeadlineFrom(timeout)); }));
  }
  void RaiseLastFailure() { RaiseIfError(Use()->LastFailure()); }
  void WriteTrace(const std::string& path) {
    const InUse engine = Use();
    RaiseIfError(Unlocked([&] { return engine->WriteTrace(path); }));
  }
  pybind11::dict Stats() {
    const InUse engine = Use();
    return FromStats(Unlocked([&] { return engine->stats(); }));
  }
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
    const Status failure = Inside::Of(*Use()).TakeUnheardFailure();
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

 private:
  Restored RestoreAlone(const Selector& selector, ReadPlan plan, bool resume, const PyProgress& progress) {
    const InUse engine = Use();
    InterruptibleProgress interruptible(progress);
    plan.options.progress = interruptible.callback();
    const auto planned = [&](const CheckpointInfo& /*chosen*/) { return plan; };
    Result<Restored> result = UnlockedAndLogged(
        [&] { return Inside::Of(*engine).Restore(selector, {.plan = planned, .resume = resume, .alone = true}); });
    interruptible.RethrowIfRaised();
    return ValueOrRaise(std::move(result));
  }

  /// Runs the call without the GIL, and logs its events at once.
  template <typename Call>
  std::invoke_result_t<Call> UnlockedAndLogged(const Call& call) {
    *logs_now_ = std::this_thread::get_id();
    auto result = Unlocked(call);
    *logs_now_ = std::thread::id();
    return result;
  }
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

  PySave Start(std::uint64_t step, TreeTensors& tensors, const JsonArguments& values, StreamArguments streams,
               const StreamArguments& elsewhere, bool replace, bool pin, const ReplicaArguments& replicas,
               double hold) {
    const InUse engine = Use();
    Result<State> built = tensors.Build(last_save_);
    if (!built.ok()) GiveUp(step, built.status().message());
    State state = ValueOrRaise(std::move(built));
    const std::shared_ptr<const TensorTable> table = Unlocked([&] { return Inside::Of(*engine).Foresee(state); });
    if (table->waits_for_streams()) streams.insert(streams.end(), elsewhere.begin(), elsewhere.end());
    std::vector<TreeTensors::Source> read_later = tensors.ReadLater(*table, writes_->checked(), !writes_->ignored());
    const bool watch = !read_later.empty();
    SaveHandle save = ValueOrRaise(Unlocked([&]() -> Result<SaveHandle> {
      for (const auto& [name, text] : values) {
        if (Status set = state.Set(name, Json{text, true}); !set.ok()) {
          if (group_ != nullptr) static_cast<void>(engine->GiveUp(step, set));
          return set;
        }
      }
      const auto& [shared, rank0_tensors, identical_values] = replicas;
      return Inside::Of(*engine).Save(
          step, state,
          {.streams = StreamsFrom(streams),
           .if_exists = replace ? IfExists::kReplace : IfExists::kFail,
           .pin = pin,
           .replicated = {.tensors = shared, .rank0_tensors = rank0_tensors, .identical_values = identical_values}},
          hold > 0 ? SpanFrom(hold)
          : watch  ? kUntilChecked
                   : std::chrono::hours(0));
    }));
    if (table->bytes() == table->small_bytes()) return {std::move(save), nullptr, watcher_};
    auto watched =
        std::make_shared<WatchedSave>(save, table, tensors.torch(), std::move(read_later), writes_, hold == 0);
    return {std::move(save), std::move(watched), watcher_};
  }
  /// Raises if it is closed.
  [[nodiscard]] InUse Use() const {
    if (checkpointer_ != nullptr) return InUse(checkpointer_);
    Raise(Status(StatusCode::kFailedPrecondition, "this Checkpointer is closed"));
  }

  /// Waits in slices. Between them another thread may close it; then this raises.
  template <typename Call>
  Status Wait(std::optional<double> timeout, const Call& call, bool by_caller = true) const {
    return InSlices(watcher_->EndOf(timeout, by_caller), [&](Deadline slice) {
      const InUse engine = Use();
      return Unlocked([&] { return call(engine, slice); });
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
      open.reset();
      watcher_->Stop();
      if (group_ != nullptr) group_->Stop();
    });
  }

  const std::chrono::nanoseconds close_timeout_;
  TreeTensors::LastSave last_save_;  // Under the GIL.
  const std::shared_ptr<StoreLink> group_;
  const std::shared_ptr<EventLog> events_ = std::make_shared<EventLog>();
  const std::shared_ptr<Watcher> watcher_ = std::make_shared<Watcher>();
  const std::shared_ptr<UnfencedWrites> writes_;
  // The thread that opens, while the watcher's does not run yet, or that restores.
  const std::shared_ptr<std::atomic<std::thread::id>> logs_now_ = std::make_shared<std::atomic<std::thread::id>>();
  std::shared_ptr<Checkpointer> checkpointer_;
  std::weak_ptr<Checkpointer> released_;  // After Close.
};

void BindCheckpointer(pybind11::module_& module);

}  // namespace cairn
