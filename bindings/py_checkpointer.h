#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "cairn/cairn.h"
#include "conversions.h"
#include "open_engine.h"
#include "py_calls.h"
#include "py_save.h"
#include "tree_tensors.h"
#include "watched_save.h"

namespace cairn {

inline constexpr std::chrono::hours kUntilChecked{24 * 365};  // The Watcher checks it once it is captured.

using JsonArguments = std::vector<std::pair<std::string, std::string>>;  // (name, text)
/// (tensors, those of them that rank 0 writes, (name, text) of other values that must be equal on all ranks)
using ReplicaArguments = std::tuple<std::vector<std::string>, std::vector<std::string>, JsonArguments>;

/// A Checkpointer's calls, as Python makes them.
class PyCheckpointer : public OpenEngine {
 public:
  PyCheckpointer(Options options, const PyStoreGroup* group, const std::optional<NodeRanks>& node,
                 UnfencedWrites::Then unfenced_writes)
      : OpenEngine(std::move(options), group, node),
        writes_(std::make_shared<UnfencedWrites>(
            unfenced_writes,
            [events = events(), rank = group == nullptr ? 0 : group->link()->group().rank()](const Status& found) {
              events->Add({.severity = Severity::kWarning,
                           .status = found,
                           .message = found.message(),
                           .phase = "save",
                           .rank = rank});
            })) {}

  /// Sets `entry.save`, and appends the entry to `held` if the save reads after its call, before it returns: between
  /// the return and Python's next instruction a signal handler may raise, and then nobody would know of the save.
  pybind11::object Save(std::uint64_t step, TreeTensors& tensors, JsonArguments values, const StreamArguments& streams,
                        const StreamArguments& elsewhere, bool replace, bool pin, const ReplicaArguments& replicas,
                        double hold, const pybind11::object& held, const pybind11::object& entry) {
    const PySave begun = Start(step, tensors, std::move(values), streams, elsewhere, replace, pin, replicas, hold);
    pybind11::object save = pybind11::cast(begun);
    entry.attr("save") = save;
    if (begun.watched() == nullptr) return save;
    held.attr("append")(entry);
    watcher()->Add(begun.watched());  // Last: its thread lets the entry go.
    return save;
  }
  /// Called instead of Save when this rank cannot save: the save counts as a failed one, and the other ranks wait for
  /// it. They hear what Python has raised as text.
  void GiveUp(std::uint64_t step, const std::string& why, int code) {
    const Status refused(grouped() ? StatusCode::kFailedPrecondition : static_cast<StatusCode>(code), why);
    const InUse engine = Use();
    Unlocked([&] { Inside::Of(*engine).Refuse(step, refused); });
  }
  bool ShouldSave(std::uint64_t step) {
    return Ask([&](Checkpointer& engine) { return engine.ShouldSave(step); });
  }
  void SetUp(int cuda) {
    Ask([&](Checkpointer& engine) { return engine.SetUp(DeviceFrom(cuda)); });
  }
  void WaitForPlace(double timeout) {
    watcher()->EndStep();
    const Watcher::Waiting waiting(*watcher());
    RaiseIfError(Wait(
        timeout, [](const InUse& engine, Deadline deadline) { return engine->WaitForPlace(deadline); },
        /*by_caller=*/false));
  }
  void WaitMirrored(std::uint64_t step, const std::string& target, std::optional<double> timeout) {
    RaiseIfError(Wait(
        timeout, [&](const InUse& engine, Deadline deadline) { return engine->WaitMirrored(step, target, deadline); }));
  }
  void Fence(int cuda, std::uintptr_t stream, std::optional<double> timeout) {
    const std::vector<std::shared_ptr<WatchedSave>> pending = watcher()->pending();
    RaiseIfError(Wait(timeout, [&](const InUse& engine, Deadline deadline) {
      return engine->Fence({DeviceFrom(cuda), stream}, deadline);
    }));
    for (const std::shared_ptr<WatchedSave>& save : pending) watcher()->Settle(save, Watcher::kShort);
  }
  [[nodiscard]] CopyPause PauseCopies(double at_most) const { return Use()->PauseCopies(SpanFrom(at_most)); }
  /// Called before each step of any optimizer.
  void BeginStep() { watcher()->BeginStep(); }
  /// Whether what a step has written matters to any save.
  [[nodiscard]] bool HasUnchecked() const {
    if (writes_->ignored()) return false;
    const std::vector<std::shared_ptr<WatchedSave>> pending = watcher()->pending();
    return std::any_of(pending.begin(), pending.end(), [](const auto& save) { return !save->checked(); });
  }
  /// The step is over, and has written this: (address, bytes).
  void EndStep(std::vector<std::pair<std::uintptr_t, std::uint64_t>> ranges) {
    const WrittenMemory written(std::move(ranges));
    const std::uint64_t step = watcher()->steps();
    for (const std::shared_ptr<WatchedSave>& save : watcher()->pending()) save->NoteWritten(written, step);
    watcher()->EndStep();
  }
  /// Whether a save has frozen tensors, which NoteStep then sees written: a step's parameter groups and state.
  [[nodiscard]] bool HasFrozen() const { return torch_ != nullptr && !last_save_.frozen.empty(); }
  void NoteStep(pybind11::handle groups, pybind11::handle state) {
    if (HasFrozen()) TreeTensors::NoteStep(last_save_, *torch_, groups, state);
  }
  /// From now on versions tell nothing; see UnfencedWrites.
  void IgnoreVersions() { writes_->IgnoreVersions(); }
  void Drain(std::optional<double> timeout) {
    watcher()->EndStep();
    const Watcher::Waiting waiting(*watcher());
    // Not Drain, because of the slices: it also returns DeadlineExceeded if that is how a save has failed.
    RaiseIfError(
        Wait(timeout, [](const InUse& engine, Deadline deadline) { return Inside::Of(*engine).WaitIdle(deadline); }));
    RaiseIfError(Inside::Of(*Use()).TakeDrainFailure());
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
                .values = false,
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
    return FromRestored(
        RestoreAlone(SelectorFrom(step, folder), {state, options, own, /*values=*/false}, resume, progress));
  }
  /// The step of the newest checkpoint in which every byte is good.
  std::uint64_t VerifyNewest() {
    return RestoreAlone(Latest().FallBack(), {.verify = true}, /*resume=*/false, {}).step;
  }
  pybind11::list List() {
    pybind11::list all;
    for (const CheckpointInfo& info : Ask([](Checkpointer& engine) { return engine.List(); })) {
      all.append(FromInfo(info));
    }
    return all;
  }
  /// What the manifest says, or everything but the tensors' bytes, and "hold".
  pybind11::dict Choose(std::optional<std::uint64_t> step, const std::string& folder, bool inspect) {
    const Selector selector = SelectorFrom(step, folder);
    Chosen chosen = Ask([&](Checkpointer& engine) { return Inside::Of(engine).Choose(selector, inspect); });
    pybind11::dict fields = inspect ? FromDetails(std::move(chosen.details)) : FromInfo(chosen.details.info);
    fields["hold"] = PyHold(std::move(chosen.hold));
    return fields;
  }
  pybind11::dict Inspect(const std::string& folder) {
    return FromDetails(Ask([&](Checkpointer& engine) { return engine.Inspect(Folder(folder)); }));
  }
  pybind11::dict InspectPartOf(const std::string& folder, std::optional<std::uint64_t> rank,
                               std::vector<std::string> names) {
    const InspectPart part{.rank = rank, .names = std::move(names)};
    return FromDetails(Ask([&](Checkpointer& engine) { return Inside::Of(engine).Inspect(Folder(folder), part); }));
  }
  void Verify(std::optional<std::uint64_t> step, const std::string& folder, const PyProgress& progress) {
    const InUse engine = Use();
    InterruptibleProgress interruptible(progress);
    const Status status =
        Unlocked([&] { return engine->Verify(SelectorFrom(step, folder), interruptible.callback()); });
    interruptible.RethrowIfRaised();
    RaiseIfError(status);
  }
  void Pin(std::uint64_t step, bool pinned) { SetPinned(step, PinOwner::kUser, pinned); }
  void PinBest(std::uint64_t step, bool pinned) { SetPinned(step, PinOwner::kBest, pinned); }
  void Remove(std::uint64_t step) {
    Ask([&](Checkpointer& engine) { return engine.Remove(step); });
  }
  void Publish(std::uint64_t step, const std::string& path, std::optional<double> timeout) {
    Ask([&](Checkpointer& engine) { return engine.Publish(step, path, DeadlineFrom(timeout)); });
  }
  void RemovePublished(const std::string& path, std::optional<double> timeout) {
    Ask([&](Checkpointer& engine) { return engine.RemovePublished(path, DeadlineFrom(timeout)); });
  }
  void Check() { RaiseIfError(Use()->CheckFailures()); }
  /// What the caller asked for as one restore, or load, has ended: Restore and Read do not count.
  void CountRestore(bool done) const { Inside::Of(*Use()).CountRestore(done); }
  [[nodiscard]] std::string MetricsText() const {
    const InUse engine = Use();
    return Unlocked([&] { return engine->MetricsText(); });
  }
  void WriteTrace(const std::string& path) {
    Ask([&](Checkpointer& engine) { return engine.WriteTrace(path); });
  }
  pybind11::dict Stats() {
    const InUse engine = Use();
    return FromStats(Unlocked([&] { return engine->stats(); }));
  }

 private:
  void SetPinned(std::uint64_t step, PinOwner owner, bool pinned) const {
    Ask([&](Checkpointer& engine) { return Inside::Of(engine).SetPinned(step, owner, pinned); });
  }
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

  PySave Start(std::uint64_t step, TreeTensors& tensors, JsonArguments values, StreamArguments streams,
               const StreamArguments& elsewhere, bool replace, bool pin, const ReplicaArguments& replicas,
               double hold) {
    const InUse engine = Use();
    Result<State> built = tensors.Build(last_save_);
    torch_ = tensors.torch();
    if (!built.ok()) GiveUp(step, built.status().message(), static_cast<int>(built.status().code()));
    const State state = ValueOrRaise(std::move(built));
    const std::shared_ptr<const TensorTable> table = Unlocked([&] { return Inside::Of(*engine).Foresee(state); });
    if (table->waits_for_streams()) streams.insert(streams.end(), elsewhere.begin(), elsewhere.end());
    std::vector<TreeTensors::Source> read_later = tensors.ReadLater(*table, writes_->checked(), !writes_->ignored());
    const bool watch = !read_later.empty();
    SaveHandle save = ValueOrRaise(Unlocked([&]() -> Result<SaveHandle> {
      Values beside;
      for (auto& [name, text] : values) beside.insert_or_assign(name, Json{std::move(text), true});
      const auto& [shared, rank0_tensors, identical_values] = replicas;
      return Inside::Of(*engine).Save(
          step, state, std::move(beside),
          {.streams = StreamsFrom(streams),
           .if_exists = replace ? IfExists::kReplace : IfExists::kFail,
           .pin = pin,
           .replicated = {.tensors = shared, .rank0_tensors = rank0_tensors, .identical_values = identical_values}},
          hold > 0 ? SpanFrom(hold)
          : watch  ? kUntilChecked
                   : std::chrono::hours(0));
    }));
    if (table->bytes() == table->small_bytes()) return {std::move(save), nullptr, watcher()};
    auto watched =
        std::make_shared<WatchedSave>(save, table, tensors.torch(), std::move(read_later), writes_, hold == 0);
    return {std::move(save), std::move(watched), watcher()};
  }

  // Under the GIL.
  TreeTensors::LastSave last_save_;
  std::shared_ptr<const TorchReader> torch_;  // The last save's; null without torch.
  const std::shared_ptr<UnfencedWrites> writes_;
};

void BindCheckpointer(pybind11::module_& module);

}  // namespace cairn
