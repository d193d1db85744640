#pragma once

#include <memory>
#include <vector>

#include "cairn/status.h"

namespace cairn::bench {

/// A training's launches, as far as the driver sees them: memsets of four bytes in a stream of their own, by the
/// driver's own functions. For one thread.
class Launcher {
 public:
  /// On GPU 0. Unsupported without a driver.
  [[nodiscard]] static Result<std::unique_ptr<Launcher>> Open();
  virtual ~Launcher() = default;
  /// Launches once. DeviceError with the driver's number.
  virtual Status Launch() = 0;
  /// Waits until what was launched has run, so that the stream's own queue is never full.
  virtual Status Synchronize() = 0;
};

}  // namespace cairn::bench
