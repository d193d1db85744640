#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "group/node_ranks.h"
#include "group/store_link.h"

namespace cairn {

/// A StoreLink for Python, which makes its threads, and a group for messages that Python itself sends. The GIL is
/// released in every call that waits.
class PyStoreGroup {
 public:
  PyStoreGroup(const std::string& root, int rank, int size, double timeout, double close_timeout);

  [[nodiscard]] const std::shared_ptr<StoreLink>& link() const { return link_; }

  // For Python's threads: see StoreLink. `connect` returns a cairn._ranks.stores.Connection.

  void RunSender(const pybind11::object& connect) { Run(&StoreLink::RunSender, connect); }
  void RunListener(const pybind11::object& connect) { Run(&StoreLink::RunListener, connect); }
  void Stop();

  // For messages that Python itself sends: see Group.

  void Send(const std::string& key, std::string message);
  void Announce(const std::string& key, std::string message);
  /// Waits for the messages of ranks 1, 2, ..., at most `timeout` seconds: (messages, None where one is missing; the
  /// error).
  pybind11::tuple Collect(const std::string& key, double timeout);
  pybind11::bytes Await(const std::string& key, double timeout);
  /// See FindNodeRanks; waits at most `timeout` seconds.
  NodeRanks CountNodeRanks(double timeout);

 private:
  void Run(void (StoreLink::*work)(const StoreLink::Connect&), const pybind11::object& connect);
  [[nodiscard]] StoreGroup& group() const { return link_->group(); }

  const std::shared_ptr<StoreLink> link_;
};

void BindStoreGroup(pybind11::module_& module);

}  // namespace cairn
