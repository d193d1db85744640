#include "py_store_group.h"

#include <pybind11/stl.h>

#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "group/blocking.h"
#include "py_calls.h"

namespace py = pybind11;

namespace cairn {
namespace {

/// What comes of `waiting`, which always ends, at the latest by its deadline. A signal's exception ends the wait too.
template <typename T>
T Wait(std::future<T> waiting) {
  RaiseIfError(Interruptible(Deadline::Infinite, [&](Deadline slice) {
    const bool ended = waiting.wait_until(slice.when()) == std::future_status::ready;
    return ended ? Status::Ok() : Status(StatusCode::kDeadlineExceeded, "");
  }));
  return waiting.get();
}

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
  const CollectedMessages collected =
      Wait(Unlocked([&] { return CollectMessages(group(), key, DeadlineFrom(timeout)); }));
  py::list messages;
  for (int rank = 1; rank < group().size(); ++rank) {
    const auto message = collected.messages.find(rank);
    messages.append(message == collected.messages.end() ? py::object(py::none()) : py::bytes(message->second));
  }
  if (collected.end.ok()) return py::make_tuple(messages, py::none());
  const std::string kind(StatusCodeName(collected.end.code()));
  return py::make_tuple(messages, py::module_::import("cairn._errors").attr(kind.c_str())(collected.end.message()));
}

py::bytes PyStoreGroup::Await(const std::string& key, double timeout) {
  return {ValueOrRaise(Wait(Unlocked([&] { return AwaitMessage(group(), key, DeadlineFrom(timeout)); })))};
}

NodeRanks PyStoreGroup::CountNodeRanks(double timeout) {
  return Wait(Unlocked([&] { return FindNodeRanks(group(), true, DeadlineFrom(timeout)); }));
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
