#include "py_store_group.h"

#include <pybind11/stl.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
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

bool InterpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// On a daemon thread without the GIL, before it takes it. Once the interpreter ends that would end the thread, in the
/// midst of C++: it stays here instead, until the process has ended.
void StayOutOfTheEnd() {
  while (InterpreterEnds()) std::this_thread::sleep_for(kSignalInterval);
}

/// Calls the store, whose exceptions mean that it is lost. From a thread without the GIL.
template <typename Call>
auto InStore(const Call& call) -> Result<decltype(call())> {
  StayOutOfTheEnd();
  const py::gil_scoped_acquire acquire;
  try {
    return call();
  } catch (py::error_already_set& error) {
    const py::object line = py::module_::import("cairn._ranks.stores").attr("first_line")(error.value());
    return Error(StatusCode::kIoError, "torch.distributed's store failed: {}", line.cast<std::string>());
  }
}

/// The calls of a Connection, which outlives them.
KeyValueStore StoreOf(py::handle connection) {
  const auto set = [connection](const char* name, const std::string& key, const std::string& value) {
    return InStore([&] { return connection.attr(name)(key, py::bytes(value)).cast<bool>(); });
  };
  return {
      .set = [set](const std::string& key, const std::string& value) { return set("set", key, value).status(); },
      .set_if_absent = [set](const std::string& key,
                             const std::string& value) { return set("set_if_absent", key, value); },
      .get = [connection](const std::string& key) -> Result<std::string> {
        const auto value = InStore([&] { return connection.attr("get")(key).cast<std::optional<std::string>>(); });
        CAIRN_RETURN_IF_ERROR(value.status());
        return *value ? Result<std::string>(**value) : Status(StatusCode::kNotFound, key);
      },
      .check =
          [connection](const std::string& key) {
            return InStore([&] { return connection.attr("check")(key).cast<bool>(); });
          },
      .wait =
          [connection](const std::string& key, std::chrono::milliseconds timeout) {
            return InStore([&] { return connection.attr("wait")(key, InSeconds(timeout)).cast<bool>(); });
          },
      .add =
          [connection](const std::string& key, std::int64_t amount) {
            return InStore([&] { return connection.attr("add")(key, amount).cast<std::int64_t>(); });
          },
      .erase =
          [connection](const std::string& key) {
            return InStore([&] { return connection.attr("erase")(key).cast<bool>(); }).status();
          },
  };
}

}  // namespace

PyStoreGroup::PyStoreGroup(const std::string& root, int rank, int size, double timeout, double close_timeout)
    : link_(std::make_shared<StoreLink>(StoreGroupOptions{.rank = rank,
                                                          .size = size,
                                                          .name = root,
                                                          .open_timeout = SpanFrom(timeout),
                                                          .close_timeout = SpanFrom(close_timeout)},
                                        root)) {}

void PyStoreGroup::Run(void (StoreLink::*work)(const StoreLink::Connect&), const py::object& connect) {
  py::object connection;  // Until the work is done.
  const std::shared_ptr<StoreLink> link = link_;
  Unlocked([&] {
    ((*link).*work)([&]() -> Result<KeyValueStore> {
      CAIRN_RETURN_IF_ERROR(InStore([&] {
                              connection = connect();
                              return true;
                            }).status());
      return StoreOf(connection);
    });
    StayOutOfTheEnd();
  });
}

void PyStoreGroup::Stop() {
  Unlocked([&] { link_->Stop(); });
}

void PyStoreGroup::Send(const std::string& key, std::string message) {
  Unlocked([&] { group().Send(key, std::move(message)); });
}

void PyStoreGroup::Announce(const std::string& key, std::string message) {
  Unlocked([&] { group().Announce(key, std::move(message)); });
}

py::tuple PyStoreGroup::Collect(const std::string& key, double timeout) {
  struct Collected {
    std::vector<std::optional<std::string>> messages;  // By rank.
    Status end;
  };
  const auto answer = std::make_shared<Answer<Collected>>();
  const auto all = std::make_shared<Collected>();
  all->messages.resize(static_cast<std::size_t>(group().size()));
  Unlocked([&] {
    group().Collect(
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
    group().Await(key, DeadlineFrom(timeout),
                  [answer](Result<std::string> message) { answer->Set(std::move(message)); });
  });
  return {answer->Wait()};
}

NodeRanks PyStoreGroup::CountNodeRanks(double timeout) {
  const auto answer = std::make_shared<Answer<NodeRanks>>();
  Unlocked([&] {
    MeetNodeRanks(group(), NodeName(), true, DeadlineFrom(timeout),
                  [answer](NodeRanks ranks) { answer->Set(std::move(ranks)); });
  });
  return answer->Wait();
}

void BindStoreGroup(py::module_& module) {
  using namespace py::literals;
  py::class_<NodeRanks>(module, "NodeRanks");
  module.def("node_name", &NodeName);
  py::class_<PyStoreGroup>(module, "StoreGroup")
      .def(py::init<const std::string&, int, int, double, double>(), "root"_a, "rank"_a, "size"_a, "timeout"_a,
           "close_timeout"_a)
      .def_property_readonly("rank", [](const PyStoreGroup& group) { return group.link()->group().rank(); })
      .def_property_readonly("size", [](const PyStoreGroup& group) { return group.link()->group().size(); })
      .def_property_readonly("opened", [](const PyStoreGroup& group) { return group.link()->opened(); })
      .def(
          "key", [](const PyStoreGroup& group, const std::string& name) { return group.link()->Key(name); }, "name"_a)
      .def("run_sender", &PyStoreGroup::RunSender, "connect"_a)
      .def("run_listener", &PyStoreGroup::RunListener, "connect"_a)
      .def("stop", &PyStoreGroup::Stop)
      .def("send", &PyStoreGroup::Send, "key"_a, "message"_a)
      .def("announce", &PyStoreGroup::Announce, "key"_a, "message"_a)
      .def("collect", &PyStoreGroup::Collect, "key"_a, "timeout"_a)
      .def("count_node_ranks", &PyStoreGroup::CountNodeRanks, "timeout"_a)
      .def("await_message", &PyStoreGroup::Await, "key"_a, "timeout"_a);
}

}  // namespace cairn
