#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "group/node_ranks.h"
#include "group/store_group.h"

namespace cairn {

/// A StoreGroup for Python: for the threads that serve it, and for messages that Python itself sends. The GIL is
/// released in every call that waits.
class PyStoreGroup {
 public:
  PyStoreGroup(int rank, int size);

  [[nodiscard]] const std::shared_ptr<StoreGroup>& group() const { return group_; }

  // For Python's threads: see StoreGroup.

  /// (key, message) of the next message for the store; None once it is closed. Waits at most `timeout` seconds.
  pybind11::object NextMessage(double timeout);
  /// False once it is closed.
  bool WaitUntilWanted();
  void Hear(int from, const std::string& key, std::string message);
  void Leave(int rank);
  void Fail(int code, const std::string& message);
  void Stop();

  // For messages that Python itself sends: see Group.

  void Send(const std::string& key, std::string message);
  void Announce(const std::string& key, std::string message);
  /// Waits for the messages of ranks 1, 2, ..., at most `timeout` seconds: (messages, None where one is missing; the
  /// error).
  pybind11::tuple Collect(const std::string& key, double timeout);
  pybind11::bytes Await(const std::string& key, double timeout);
  /// See MeetNodeRanks; waits at most `timeout` seconds.
  NodeRanks CountNodeRanks(double timeout);

 private:
  const std::shared_ptr<StoreGroup> group_;
};

void BindStoreGroup(pybind11::module_& module);

}  // namespace cairn
