#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

/// The ranks that write one checkpoint together. [interface]
///
/// Never blocks. Rank 0 coordinates.
class Group {
 public:
  using Gathered = std::function<void(Result<std::vector<std::string>>)>;

  virtual ~Group() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Gives `bytes` under `key` and calls `done` once, from any thread (also from within this call), with what every
  /// rank gave under that key, by rank; or with DeadlineExceeded, naming the ranks that are missing. Each rank gives a
  /// key once; ranks may give keys in different orders, and early.
  virtual void AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) = 0;
};

}  // namespace cairn
