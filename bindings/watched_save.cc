#include "watched_save.h"

#include <utility>

#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "py_calls.h"

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

WatchedSave::WatchedSave(SaveHandle save, std::shared_ptr<const TensorTable> table,
                         std::shared_ptr<const TorchReader> torch, std::vector<TreeTensors::Source> tensors,
                         bool release)
    : save_(std::move(save)),
      torch_(std::move(torch)),
      release_(release),
      read_(std::make_shared<const Read>(Read{std::move(table), std::move(tensors)})) {}

void WatchedSave::CheckMemory() {
  const std::shared_ptr<const Read> read = read_;
  if (read == nullptr) return;
  const Status same = Compare(*read);
  // Asking a tensor may let another thread run this check. Then that check counts: it came before the tensors could be
  // changed, and this one may have come after.
  if (read_ == nullptr) return;
  read_ = nullptr;
  if (!same.ok()) {
    save_.Cancel(same);
  } else if (release_) {
    save_.Release();
  }
}

void WatchedSave::Release() {
  release_ = true;
  if (read_ == nullptr) {
    save_.Release();
  } else {
    CheckMemoryIfCaptured();  // If it is not captured yet, a later check releases it.
  }
}

Status WatchedSave::Compare(const Read& read) const {
  for (const TreeTensors::Source& source : read.tensors) {
    const void* address = AddressOf(torch_.get(), source.tensor);
    if (address == source.data) continue;
    return Error(
        StatusCode::kFailedPrecondition,
        "step {}: tensor \"{}\": its memory was moved or freed before the save had read it (expected at {}, "
        "found at {}): call fence() or Save.captured() before a storage is resized or a tensor given other data",
        save_.step(), (*read.table)[source.entry].name, source.data, address);
  }
  return Status::Ok();
}

void Watcher::Add(std::shared_ptr<WatchedSave> save) {
  MutexLock lock(mutex_);
  pending_.push_back(std::move(save));
  changed_.NotifyAll();
}

std::vector<std::shared_ptr<WatchedSave>> Watcher::pending() const {
  if (::getpid() != process_) return {};
  MutexLock lock(mutex_);
  return {pending_.begin(), pending_.end()};
}

void Watcher::Run() {
  while (const std::shared_ptr<WatchedSave> next = Unlocked([this] { return WaitForNext(); })) {
    try {
      next->CheckMemory();
    } catch (const std::exception& error) {  // Out of memory, for example. The other saves must still be checked.
      next->save().Cancel(Error(StatusCode::kInternal, "step {}: {}", next->save().step(), error.what()));
    }
    MutexLock lock(mutex_);
    std::erase(pending_, next);
  }
}

std::shared_ptr<WatchedSave> Watcher::WaitForNext() {
  std::shared_ptr<WatchedSave> next;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopped_ && pending_.empty()) changed_.Wait(mutex_);
      if (stopped_) return nullptr;
      next = pending_.front();
    }
    const Deadline slice = Deadline::In(kSignalInterval);
    if (next->save().WaitTensorsFree(slice)) return next;
  }
}

void Watcher::Stop() {
  if (::getpid() != process_) return;
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

void Watcher::ReleaseTensors() {
  if (::getpid() != process_) return;
  std::deque<std::shared_ptr<WatchedSave>> pending;
  {
    MutexLock lock(mutex_);
    pending.swap(pending_);
  }
  for (const std::shared_ptr<WatchedSave>& save : pending) save->CheckMemory();
}

void BindWatcher(py::module_& module) {
  py::class_<Watcher, std::shared_ptr<Watcher>>(module, "Watcher")
      .def("run", &Watcher::Run)
      .def("stop", &Watcher::Stop);
}

}  // namespace cairn
