#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store_group.h"

namespace cairn {

/// A StoreGroup as Python has it: for the threads that serve it, and for words of Python's own. The GIL is released in
/// every call that waits.
class PyStoreGroup {
 public:
  PyStoreGroup(int rank, int size);

  [[nodiscard]] const std::shared_ptr<StoreGroup>& group() const { return group_; }
  /// (key, bytes) of the next word to send; None once it is closed.
  pybind11::object TakeWord();
  /// Seconds until the earliest deadline of an answer that is wanted; None once it is closed.
  std::optional<double> WaitForGather();
  void Answer(const std::string& key, const std::vector<std::string>& words);
  void AnswerError(const std::string& key, int code, const std::string& message);
  void Fail(int code, const std::string& message);
  void Stop();
  /// Waits for every rank's bytes under `key`, at most `timeout` seconds.
  pybind11::list AllGather(const std::string& key, std::string bytes, double timeout);

 private:
  const std::shared_ptr<StoreGroup> group_;
};

void BindStoreGroup(pybind11::module_& module);

}  // namespace cairn
