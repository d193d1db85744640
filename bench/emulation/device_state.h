#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/strided.h"
#include "cairn/status.h"

namespace cairn::bench {

/// What a training has on its device and strategies checkpoint: tensors, each with its own memory. [interface]
///
/// A checkpoint holds their bytes one tensor after the other; `begin` is a tensor's place in that. Tensors stay where
/// they are as long as the state lives.
class DeviceState {
 public:
  struct Tensor {
    std::string name;
    StridedLayout layout;  ///< Contiguous.
    std::uint64_t begin = 0;

    [[nodiscard]] std::uint64_t end() const { return begin + layout.bytes; }
    [[nodiscard]] MutableBytes memory() const { return {layout.base, layout.bytes}; }
  };

  DeviceState() = default;
  virtual ~DeviceState() = default;
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  /// Whether every byte is what it was after `step`.
  [[nodiscard]] virtual Result<bool> Is(std::uint64_t step) const = 0;
  /// Overwrites everything, so that what a restore leaves out is noticed.
  [[nodiscard]] virtual Status Clear() const = 0;

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] std::uint64_t bytes() const { return tensors_.empty() ? 0 : tensors_.back().end(); }

 protected:
  void Add(std::string name, MutableBytes memory) {
    tensors_.push_back({.name = std::move(name),
                        .layout = {.base = memory.data(), .row_bytes = memory.size(), .bytes = memory.size()},
                        .begin = bytes()});
  }

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace cairn::bench
