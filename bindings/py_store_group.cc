#include "py_store_group.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "py_calls.h"

namespace py = pybind11;

namespace cairn {
namespace {

/// What one gather heard.
class Heard {
 public:
  void Set(const Result<std::vector<std::string>>& words) CAIRN_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      words_ = words;
    }
    changed_.NotifyAll();
  }
  Status Wait(Deadline deadline) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!words_ && changed_.WaitUntil(mutex_, deadline)) continue;
    return words_ ? Status::Ok() : Status(StatusCode::kDeadlineExceeded, "");
  }
  Result<std::vector<std::string>> Get() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return *words_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<Result<std::vector<std::string>>> words_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

PyStoreGroup::PyStoreGroup(int rank, int size) : group_(std::make_shared<StoreGroup>(rank, size)) {}

py::object PyStoreGroup::TakeWord() {
  Result<StoreGroup::Word> word = Unlocked([&] { return group_->TakeWord(Deadline::Infinite()); });
  if (!word.ok()) return py::none();
  return py::make_tuple(word->key, py::bytes(word->bytes));
}

std::optional<double> PyStoreGroup::WaitForGather() {
  const Result<Deadline> next = Unlocked([&] { return group_->WaitForGather(Deadline::Infinite()); });
  if (!next.ok()) return std::nullopt;
  return std::clamp(InSeconds(next->when() - Deadline::Clock::now()), 0.0, 1e9);
}

void PyStoreGroup::Answer(const std::string& key, const std::vector<std::string>& words) {
  Unlocked([&] { group_->Answer(key, words); });
}

void PyStoreGroup::AnswerError(const std::string& key, int code, const std::string& message) {
  Unlocked([&] { group_->Answer(key, Status(static_cast<StatusCode>(code), message)); });
}

void PyStoreGroup::Fail(int code, const std::string& message) {
  Unlocked([&] { group_->Fail(Status(static_cast<StatusCode>(code), message)); });
}

void PyStoreGroup::Stop() {
  Unlocked([&] { group_->Stop(); });
}

py::list PyStoreGroup::AllGather(const std::string& key, std::string bytes, double timeout) {
  const auto heard = std::make_shared<Heard>();
  Unlocked([&] {
    group_->AllGather(key, std::move(bytes), DeadlineFrom(timeout), [heard](const auto& words) { heard->Set(words); });
  });
  // Somebody always answers, if only the deadline.
  RaiseIfError(Interruptible(std::nullopt, [&](Deadline slice) { return heard->Wait(slice); }));
  py::list all;
  for (const std::string& word : ValueOrRaise(heard->Get())) all.append(py::bytes(word));
  return all;
}

void BindStoreGroup(py::module_& module) {
  using namespace py::literals;
  py::class_<PyStoreGroup>(module, "StoreGroup")
      .def(py::init<int, int>(), "rank"_a, "size"_a)
      .def_property_readonly("rank", [](const PyStoreGroup& group) { return group.group()->rank(); })
      .def_property_readonly("size", [](const PyStoreGroup& group) { return group.group()->size(); })
      .def("take_word", &PyStoreGroup::TakeWord)
      .def("wait_for_gather", &PyStoreGroup::WaitForGather)
      .def(
          "wanted", [](const PyStoreGroup& group, bool late) { return group.group()->Wanted(late); }, "late"_a)
      .def("answer", &PyStoreGroup::Answer, "key"_a, "words"_a)
      .def("answer_error", &PyStoreGroup::AnswerError, "key"_a, "code"_a, "message"_a)
      .def("fail", &PyStoreGroup::Fail, "code"_a, "message"_a)
      .def("stop", &PyStoreGroup::Stop)
      .def("all_gather", &PyStoreGroup::AllGather, "key"_a, "bytes"_a, "timeout"_a);
}

}  // namespace cairn
