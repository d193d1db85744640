#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cairn/tensor.h"

namespace cairn {

/// Tensors in memory of their own, with contents that a seed decides, and the State that names them.
class Tensors {
 public:
  explicit Tensors(DeviceId device = {}) : device_(device) {}

  /// A contiguous float tensor of `elements`, named `name`.
  void Add(const std::string& name, std::size_t elements, DType dtype = DType::kF32) {
    memory_.push_back(std::vector<std::byte>(elements * DTypeSize(dtype)));
    TensorView view{.data = memory_.back().data(),
                    .dtype = dtype,
                    .shape = {static_cast<std::int64_t>(elements)},
                    .strides = {},
                    .device = device_,
                    .bytes = memory_.back().size(),
                    .part = {}};
    if (const Status status = state_.Add(name, std::move(view)); !status.ok())
      throw std::runtime_error(status.ToString());
  }
  /// `count` tensors of `elements` floats each: "t0", "t1", ...
  static Tensors Many(std::size_t count, std::size_t elements, DeviceId device = {}) {
    Tensors tensors(device);
    for (std::size_t i = 0; i < count; ++i) tensors.Add("t" + std::to_string(i), elements);
    return tensors;
  }

  /// Fills every tensor with bytes that `seed` decides.
  void Fill(std::uint64_t seed);
  /// Whether every tensor holds what Fill(seed) puts there.
  [[nodiscard]] bool Holds(std::uint64_t seed) const;

  [[nodiscard]] State& state() { return state_; }
  [[nodiscard]] std::vector<std::vector<std::byte>>& memory() { return memory_; }

 private:
  const DeviceId device_;
  std::vector<std::vector<std::byte>> memory_;
  State state_;
};

}  // namespace cairn
