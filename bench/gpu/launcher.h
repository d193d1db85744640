#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cairn/status.h"

namespace cairn::bench {

/// Work in a stream of its own, by the driver's own functions, without anything of Cairn. For one thread.
class Launcher {
 public:
  /// On GPU 0. Unsupported without a driver.
  [[nodiscard]] static Result<std::unique_ptr<Launcher>> Open();
  virtual ~Launcher() = default;
  /// A memset of four bytes: a training's launch, as far as the driver sees it. DeviceError with the driver's number.
  virtual Status Launch() = 0;
  /// One copy between the GPU and pinned memory.
  virtual Status Copy(const std::byte* from, std::byte* to, std::uint64_t bytes) = 0;
  /// Waits until what was launched has run, so that the stream's own queue is never full.
  virtual Status Synchronize() = 0;
  /// What is launched later waits until the flag, in pinned memory, is at least `value`.
  virtual Status Hold(const std::uint32_t* flag, std::uint32_t value) = 0;
  /// The driver's handle.
  [[nodiscard]] virtual std::uintptr_t stream() const = 0;
};

}  // namespace cairn::bench
