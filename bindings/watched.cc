#include "watched.h"

#include <utility>

#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "py_calls.h"

namespace py = pybind11;

namespace cairn {
namespace {

// Of any tensor or array; null where it has none any more.
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

Watched::Watched(SaveHandle save, std::shared_ptr<const TensorTable> table, std::shared_ptr<const TorchReader> torch,
                 std::vector<TreeTensors::Source> tensors, bool release)
    : save_(std::move(save)),
      torch_(std::move(torch)),
      release_(release),
      read_(std::make_shared<const Read>(Read{std::move(table), std::move(tensors)})) {}

void Watched::Look() {
  const std::shared_ptr<const Read> read = read_;
  if (read == nullptr) return;
  const Status same = Compare(*read);
  // Asking a tensor may have let another thread look meanwhile: then that was before the tensors could be changed, and
  // this may have been after.
  if (read_ == nullptr) return;
  read_ = nullptr;
  if (!same.ok()) {
    save_.Cancel(same);
  } else if (release_) {
    save_.Release();
  }
}

void Watched::Release() {
  release_ = true;
  if (read_ == nullptr) {
    save_.Release();
  } else {
    LookIfCaptured();  // Else that is still to come, and does it.
  }
}

Status Watched::Compare(const Read& read) const {
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

void Watcher::Add(std::shared_ptr<Watched> save) {
  MutexLock lock(mutex_);
  pending_.push_back(std::move(save));
  changed_.NotifyAll();
}

std::vector<std::shared_ptr<Watched>> Watcher::pending() const {
  if (::getpid() != process_) return {};
  MutexLock lock(mutex_);
  return {pending_.begin(), pending_.end()};
}

void Watcher::Run() {
  while (const std::shared_ptr<Watched> next = Unlocked([this] { return WaitForNext(); })) {
    try {
      next->Look();
    } catch (const std::exception& error) {  // No memory, say. The others are to be looked at all the same.
      next->save().Cancel(Error(StatusCode::kInternal, "step {}: {}", next->save().step(), error.what()));
    }
    MutexLock lock(mutex_);
    std::erase(pending_, next);
  }
}

std::shared_ptr<Watched> Watcher::WaitForNext() {
  std::shared_ptr<Watched> next;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopped_ && pending_.empty()) changed_.Wait(mutex_);
      if (stopped_) return nullptr;
      next = pending_.front();
    }
    const Deadline slice = Deadline::In(kSignalInterval);
    // A save may have failed by a deadline of its own, too.
    if (next->save().WaitCaptured(slice).code() != StatusCode::kDeadlineExceeded || !slice.passed()) return next;
  }
}

void Watcher::Stop() {
  if (::getpid() != process_) return;
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

void Watcher::Forget() {
  if (::getpid() != process_) return;
  std::deque<std::shared_ptr<Watched>> pending;
  {
    MutexLock lock(mutex_);
    pending.swap(pending_);
  }
  for (const std::shared_ptr<Watched>& save : pending) save->Look();
}

void BindWatcher(py::module_& module) {
  py::class_<Watcher, std::shared_ptr<Watcher>>(module, "Watcher")
      .def("run", &Watcher::Run)
      .def("stop", &Watcher::Stop);
}

}  // namespace cairn
