#include "py_store_group.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "py_calls.h"

namespace py = pybind11;

namespace cairn {
namespace {

/// The result of one wait.
template <typename T>
class Answer {
 public:
  void Set(Result<T> result) CAIRN_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      result_ = std::move(result);
    }
    changed_.NotifyAll();
  }
  /// Always ends, at the latest by the deadline. A signal's exception ends it too.
  T Wait() CAIRN_EXCLUDES(mutex_) {
    RaiseIfError(Interruptible(Deadline::Infinite, [&](Deadline slice) { return WaitUntil(slice); }));
    return ValueOrRaise(Get());
  }

 private:
  Status WaitUntil(Deadline deadline) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!result_ && changed_.WaitUntil(mutex_, deadline)) continue;
    return result_ ? Status::Ok() : Status(StatusCode::kDeadlineExceeded, "");
  }
  Result<T> Get() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return *std::move(result_);
  }

  Mutex mutex_;
  CondVar changed_;
  std::optional<Result<T>> result_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

PyStoreGroup::PyStoreGroup(int rank, int size) : group_(std::make_shared<StoreGroup>(rank, size)) {}

py::object PyStoreGroup::NextMessage(double timeout) {
  Result<StoreGroup::Message> message = Unlocked([&] { return group_->NextMessage(DeadlineFrom(timeout)); });
  if (message.status().code() == StatusCode::kCancelled) return py::none();
  RaiseIfError(message.status());
  return py::make_tuple(message->key, py::bytes(message->text));
}

bool PyStoreGroup::WaitUntilWanted() {
  return Unlocked([&] { return group_->WaitUntilWanted(Deadline::Infinite()); }).ok();
}

void PyStoreGroup::Hear(int from, const std::string& key, std::string message) {
  Unlocked([&] { group_->Hear(from, key, std::move(message)); });
}

void PyStoreGroup::Leave(int rank) {
  Unlocked([&] { group_->Leave(rank); });
}

void PyStoreGroup::Fail(int code, const std::string& message) {
  Unlocked([&] { group_->Fail(Status(static_cast<StatusCode>(code), message)); });
}

void PyStoreGroup::Stop() {
  Unlocked([&] { group_->Stop(); });
}

void PyStoreGroup::Send(const std::string& key, std::string message) {
  Unlocked([&] { group_->Send(key, std::move(message)); });
}

void PyStoreGroup::Announce(const std::string& key, std::string message) {
  Unlocked([&] { group_->Announce(key, std::move(message)); });
}

py::tuple PyStoreGroup::Collect(const std::string& key, double timeout) {
  struct Collected {
    std::vector<std::optional<std::string>> messages;  // By rank.
    Status end;
  };
  const auto answer = std::make_shared<Answer<Collected>>();
  const auto all = std::make_shared<Collected>();
  all->messages.resize(static_cast<std::size_t>(group_->size()));
  Unlocked([&] {
    group_->Collect(
        key, DeadlineFrom(timeout),
        [all](int rank, std::string message) { all->messages[static_cast<std::size_t>(rank)] = std::move(message); },
        [all, answer](Status end) {
          all->end = std::move(end);
          answer->Set(std::move(*all));
        });
  });
  const Collected collected = answer->Wait();
  py::list messages;
  for (std::size_t rank = 1; rank < collected.messages.size(); ++rank) {
    const std::optional<std::string>& message = collected.messages[rank];
    messages.append(message ? py::object(py::bytes(*message)) : py::none());
  }
  if (collected.end.ok()) return py::make_tuple(messages, py::none());
  const std::string kind(StatusCodeName(collected.end.code()));
  return py::make_tuple(messages, py::module_::import("cairn._errors").attr(kind.c_str())(collected.end.message()));
}

py::bytes PyStoreGroup::Await(const std::string& key, double timeout) {
  const auto answer = std::make_shared<Answer<std::string>>();
  Unlocked([&] {
    group_->Await(key, DeadlineFrom(timeout),
                  [answer](Result<std::string> message) { answer->Set(std::move(message)); });
  });
  return {answer->Wait()};
}

NodeRanks PyStoreGroup::CountNodeRanks(double timeout) {
  const auto answer = std::make_shared<Answer<NodeRanks>>();
  Unlocked([&] {
    MeetNodeRanks(*group_, NodeName(), true, DeadlineFrom(timeout),
                  [answer](NodeRanks ranks) { answer->Set(std::move(ranks)); });
  });
  return answer->Wait();
}

void BindStoreGroup(py::module_& module) {
  using namespace py::literals;
  py::class_<NodeRanks>(module, "NodeRanks");
  module.def("node_name", &NodeName);
  py::class_<PyStoreGroup>(module, "StoreGroup")
      .def(py::init<int, int>(), "rank"_a, "size"_a)
      .def_property_readonly("rank", [](const PyStoreGroup& group) { return group.group()->rank(); })
      .def_property_readonly("size", [](const PyStoreGroup& group) { return group.group()->size(); })
      .def_property_readonly("wanted", [](const PyStoreGroup& group) { return group.group()->wanted(); })
      .def("next_message", &PyStoreGroup::NextMessage, "timeout"_a)
      .def("wait_until_wanted", &PyStoreGroup::WaitUntilWanted)
      .def("hear", &PyStoreGroup::Hear, "rank"_a, "key"_a, "message"_a)
      .def("leave", &PyStoreGroup::Leave, "rank"_a)
      .def("fail", &PyStoreGroup::Fail, "code"_a, "message"_a)
      .def("stop", &PyStoreGroup::Stop)
      .def("send", &PyStoreGroup::Send, "key"_a, "message"_a)
      .def("announce", &PyStoreGroup::Announce, "key"_a, "message"_a)
      .def("collect", &PyStoreGroup::Collect, "key"_a, "timeout"_a)
      .def("count_node_ranks", &PyStoreGroup::CountNodeRanks, "timeout"_a)
      .def("await_message", &PyStoreGroup::Await, "key"_a, "timeout"_a);
}

}  // namespace cairn
