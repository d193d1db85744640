#include "watched_save.h"

#include <fmt/format.h>
#include <pybind11/functional.h>

#include <string>

#include "api/checkpointer_impl.h"
#include "base/status_macros.h"
#include "base/tensor_table.h"

namespace py = pybind11;

namespace cairn {
namespace {

// The address of any tensor or array; null if it has none any more.
const void* AddressOf(const TorchReader* torch, py::handle tensor) {
  if (torch != nullptr && torch->Knows(tensor)) return torch->Address(tensor);
  try {
    const py::object address = py::hasattr(tensor, "data_ptr")
                                   ? tensor.attr("data_ptr")()
                                   : tensor.attr("__array_interface__")["data"][py::int_(0)];
    const void* found = PyLong_AsVoidPtr(address.ptr());
    PyErr_Clear();
    return found;
  } catch (const py::error_already_set&) {
    return nullptr;
  }
}

}  // namespace

WrittenMemory::WrittenMemory(std::vector<std::pair<std::uintptr_t, std::uint64_t>> ranges) {
  std::ranges::sort(ranges);
  for (const auto& [address, bytes] : ranges) {
    if (!ranges_.empty() && address <= ranges_.back().second) {
      ranges_.back().second = std::max(ranges_.back().second, address + bytes);
    } else {
      ranges_.emplace_back(address, address + bytes);
    }
  }
}

bool WrittenMemory::Overlaps(std::uintptr_t address, std::uint64_t bytes) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                      [](std::uintptr_t at, const auto& range) { return at < range.second; });
  return after != ranges_.end() && after->first < address + bytes;
}

WatchedSave::WatchedSave(SaveHandle save, std::shared_ptr<const TensorTable> table,
                         std::shared_ptr<const TorchReader> torch, std::vector<TreeTensors::Source> tensors,
                         std::shared_ptr<const UnfencedWrites> writes, bool release)
    : save_(std::move(save)),
      torch_(std::move(torch)),
      writes_(std::move(writes)),
      release_(release),
      read_(tensors.empty() ? nullptr : std::make_shared<const Read>(Read{std::move(table), std::move(tensors)})) {}

bool WatchedSave::CheckMemory() {
  const std::shared_ptr<const Read> read = read_;
  if (read == nullptr) return !failed_;
  std::vector<std::uint32_t> written = written_;
  const Status moved = FindMoved(*read, written);
  // Asking a tensor may let another thread run this check. Then that check counts: it came before the tensors could be
  // changed, and this one may have come after.
  if (read_ == nullptr) return !failed_;
  read_ = nullptr;
  const Status same = moved.ok() ? Judge(*read, std::move(written)) : moved;
  failed_ = !same.ok();
  if (failed_) {
    Inside::Of(save_).RequestCancel(same);
  } else if (release_) {
    Inside::Of(save_).Release();
  }
  return !failed_;
}

void WatchedSave::Release() {
  release_ = true;
  // Otherwise the check releases it. Not made here, because the main thread may be in the midst of a write.
  if (read_ == nullptr && !failed_) Inside::Of(save_).Release();
}

void WatchedSave::NoteWritten(const WrittenMemory& written, std::uint64_t step) {
  if (read_ == nullptr || writes_->ignored() || born_ >= step) return;
  for (const TreeTensors::Source& source : read_->tensors) {
    const auto address = reinterpret_cast<std::uintptr_t>(source.data);
    if (written.Overlaps(address, (*read_->table)[source.entry].bytes())) written_.push_back(source.entry);
  }
}

Status WatchedSave::FindMoved(const Read& read, std::vector<std::uint32_t>& written) const {
  const bool versions = torch_ != nullptr && writes_->checked();
  for (const TreeTensors::Source& source : read.tensors) {
    const TensorEntry& entry = (*read.table)[source.entry];
    const void* const address = AddressOf(torch_.get(), source.tensor);
    // What was freed and allocated anew may lie where it was.
    const bool resized = source.room > 0 && torch_->Room(source.tensor, DTypeSize(entry.dtype)) != source.room;
    if (address != source.data || resized) {
      return Error(
          StatusCode::kFailedPrecondition,
          "step {}: tensor \"{}\": its memory was moved, freed or resized before the save had read it (expected at {}, "
          "found at {}): call fence() or Save.captured() before a storage is resized or a tensor given other data",
          save_.step(), entry.name, source.data, address);
    }
    const bool counted = versions && source.version != TorchReader::kNoVersion;
    if ((counted && torch_->Version(source.tensor, source.counters) != source.version) ||
        (source.ends && TreeTensors::EndsOf(entry.layout) != *source.ends)) {
      written.push_back(source.entry);
    }
  }
  return Status::Ok();
}

Status WatchedSave::Judge(const Read& read, std::vector<std::uint32_t> written) const {
  std::ranges::sort(written);
  written.erase(std::unique(written.begin(), written.end()), written.end());
  if (written.empty()) return Status::Ok();
  const std::size_t more = written.size() - 1;
  return writes_->Judge(Error(
      StatusCode::kFailedPrecondition,
      "step {}: tensor \"{}\"{} was overwritten after save() with no fence in between, so the checkpoint may mix two "
      "steps: call protect(optimizer), or fence() before writing (a module's buffers: give save() the module, not its "
      "state_dict())",
      save_.step(), (*read.table)[written.front()].name,
      more == 0 ? std::string() : fmt::format(" (and {} more)", more)));
}

Status UnfencedWrites::Judge(const Status& found) const {
  if (then_ == Then::kFail) return found;
  warn_(found);
  return Status::Ok();
}

void Watcher::Add(std::shared_ptr<WatchedSave> save) {
  MutexLock lock(mutex_);
  save->set_born(steps_);
  pending_.push_back(std::move(save));
  changed_.NotifyAll();
}

std::vector<std::shared_ptr<WatchedSave>> Watcher::pending() const {
  if (forked()) return {};
  MutexLock lock(mutex_);
  return {pending_.begin(), pending_.end()};
}

void Watcher::Run(const std::function<void()>& on_events, const std::function<void()>& on_checked) {
  const auto call = [](const std::function<void()>& function) {
    StayingAtExit([&] {
      try {
        function();
      } catch (py::error_already_set& error) {  // Such as SystemExit: saves must still be checked.
        error.discard_as_unraisable("the thread that watches cairn's saves");
      }
    });
  };
  while (true) {
    std::shared_ptr<WatchedSave> save;
    switch (Unlocked([&] { return WaitForNext(save); })) {
      case Next::kStop:
        return;
      case Next::kEvents:
        call(on_events);
        break;
      case Next::kSave: {
        AskMainThread(save);
        Settle(save, kLongest);
        {
          MutexLock lock(mutex_);
          std::erase(pending_, save);
          changed_.NotifyAll();
        }
        call(on_checked);
      }
    }
  }
}

void Watcher::NudgeForEvents() {
  MutexLock lock(mutex_);
  events_ = true;
  changed_.NotifyAll();
}

void Watcher::Settle(const std::shared_ptr<WatchedSave>& save, std::chrono::nanoseconds longest) {
  struct Suspect {
    ThreadIdent thread;
    ThreadPlace first;
    Deadline until;
    std::chrono::nanoseconds run_time;
    Deadline still;
  };
  std::vector<Suspect> suspects;
  const auto suspect = [&](ThreadIdent thread, std::chrono::nanoseconds wait) {
    if (thread == ThisThread() || save->checked() || forked()) return;
    if (const std::optional<ThreadPlace> place = LookAt(thread)) {
      suspects.push_back({thread, *place, Deadline::In(wait), RunTimeOf(thread), Deadline::In(kStill)});
    }
  };
  const auto is_clear = [this](Suspect& one) {
    if (one.until.passed() || LookAt(one.thread) != one.first) return true;
    const std::chrono::nanoseconds run_time = RunTimeOf(one.thread);
    if (run_time != std::exchange(one.run_time, run_time)) one.still = Deadline::In(kStill);
    return one.still.passed();
  };
  if (save->caller() != ThisThread()) {
    suspect(save->caller(), longest);
    if (save->caller() != main_) suspect(main_, kShort);
  }

  const Deadline step_end = Deadline::In(longest);
  std::chrono::nanoseconds pause = std::chrono::milliseconds(1);
  bool stopped = false;
  while (!save->checked()) {
    std::erase_if(suspects, is_clear);
    if (stopped || (suspects.empty() && (!SteppingElsewhere() || step_end.passed()))) {
      Check(*save);
      return;
    }
    stopped = Unlocked([&] {
      MutexLock lock(mutex_);
      if (!stopped_) changed_.WaitUntil(mutex_, Deadline::In(pause));
      return stopped_;
    });
    pause = std::min<std::chrono::nanoseconds>(2 * pause, std::chrono::milliseconds(20));
  }
}

bool Watcher::WaitChecked(const WatchedSave& save, Deadline deadline) {
  bool stopped = forked();
  while (!save.checked() && !stopped) {
    if (deadline.passed()) return false;
    stopped = Unlocked([&] {
      MutexLock lock(mutex_);
      if (!stopped_) changed_.WaitUntil(mutex_, deadline);
      return stopped_;
    });
  }
  return true;
}

std::optional<ThreadPlace> Watcher::LookAt(ThreadIdent thread) const {
  {
    MutexLock lock(mutex_);
    if (waiting_.contains(thread)) return std::nullopt;
  }
  return PlaceOf(thread);
}

void Watcher::Check(WatchedSave& save) {
  try {
    save.CheckMemory();
  } catch (const std::exception& error) {  // Out of memory, for example. The other saves must still be checked.
    Inside::Of(save.save())
        .RequestCancel(Error(StatusCode::kInternal, "step {}: {}", save.save().step(), error.what()));
  }
}

int Watcher::TakeTurn(void* turn) {
  const std::unique_ptr<Turn> of(static_cast<Turn*>(turn));
  Watcher& watcher = *of->watcher;
  if (watcher.stepping()) return 0;
  Check(*of->save);
  MutexLock lock(watcher.mutex_);
  watcher.changed_.NotifyAll();
  return 0;
}

void Watcher::AskMainThread(const std::shared_ptr<WatchedSave>& save) {
  if (save->checked() || save->caller() != main_) return;
  auto turn = std::make_unique<Turn>(Turn{shared_from_this(), save});
  if (Py_AddPendingCall(&TakeTurn, turn.get()) == 0) static_cast<void>(turn.release());  // Else too many are pending.
}

Watcher::Waiting::Waiting(Watcher& watcher) : watcher_(watcher), thread_(ThisThread()) {
  if (watcher_.forked()) return;
  MutexLock lock(watcher_.mutex_);
  watcher_.waiting_.insert(thread_);
  watcher_.changed_.NotifyAll();
}

Watcher::Waiting::~Waiting() {
  if (watcher_.forked()) return;
  MutexLock lock(watcher_.mutex_);
  watcher_.waiting_.erase(watcher_.waiting_.find(thread_));
}

Watcher::Next Watcher::WaitForNext(std::shared_ptr<WatchedSave>& save) {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopped_ && !events_ && pending_.empty()) changed_.Wait(mutex_);
      if (stopped_) return Next::kStop;
      if (std::exchange(events_, false)) return Next::kEvents;
      save = pending_.front();
    }
    const Deadline slice = Deadline::In(kSignalInterval);
    if (Inside::Of(save->save()).WaitTensorsFree(slice)) return Next::kSave;
  }
}

void Watcher::BeginStep() {
  if (forked()) return;
  MutexLock lock(mutex_);
  stepping_ = ThisThread();
  ++steps_;
}

void Watcher::EndStep() {
  if (forked()) return;
  MutexLock lock(mutex_);
  if (stepping_ != ThisThread()) return;
  stepping_.reset();
  changed_.NotifyAll();
}

bool Watcher::stepping() const {
  if (forked()) return false;
  MutexLock lock(mutex_);
  return stepping_.has_value();
}

bool Watcher::SteppingElsewhere() const {
  if (forked()) return false;
  MutexLock lock(mutex_);
  return stepping_ && *stepping_ != ThisThread();
}

std::uint64_t Watcher::steps() const {
  if (forked()) return 0;
  MutexLock lock(mutex_);
  return steps_;
}

void Watcher::Stop() {
  if (forked()) return;
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

void Watcher::ReleaseTensors() {
  if (forked()) return;
  std::deque<std::shared_ptr<WatchedSave>> pending;
  {
    MutexLock lock(mutex_);
    pending.swap(pending_);
  }
  for (const std::shared_ptr<WatchedSave>& save : pending) save->CheckMemory();
}

void BindWatcher(py::module_& module) {
  using namespace py::literals;
  py::class_<Watcher, std::shared_ptr<Watcher>>(module, "Watcher")
      .def("run", &Watcher::Run, "on_events"_a, "on_checked"_a)
      .def("stop", &Watcher::Stop);
}

}  // namespace cairn
