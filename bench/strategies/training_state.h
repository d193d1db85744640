#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "bench/strategies/device_state.h"
#include "cairn/status.h"
#include "device/buffer_pool.h"

namespace cairn::bench {

/// The state of a training: one block of the emulated GPU's memory, cut into tensors, whose every byte follows from the
/// step.
///
/// What an optimizer step writes is one word in each sector of 512 bytes (the unit in which disks write), so that it
/// costs little and a checkpoint that mixes two steps is found out. Not safe for concurrent use.
class TrainingState : public DeviceState {
 public:
  /// All zeros: no step's. InvalidArgument unless bytes is a multiple of 4096 and each tensor gets a sector;
  /// ResourceExhausted.
  [[nodiscard]] static Result<std::unique_ptr<TrainingState>> Make(std::uint64_t bytes, std::uint64_t tensors);

  /// The state of step 0.
  void Initialize();
  /// The optimizer step, of the state of another step: what the state is after `step`.
  void Update(std::uint64_t step);
  [[nodiscard]] bool Is(std::uint64_t step) const override;

  [[nodiscard]] MutableBytes memory() const { return {memory_.data(), bytes()}; }

 private:
  TrainingState(std::unique_ptr<BufferPool> pool, BufferPool::Chunk memory, std::uint64_t bytes, std::uint64_t tensors);

  const std::unique_ptr<BufferPool> pool_;
  const BufferPool::Chunk memory_;
};

}  // namespace cairn::bench
