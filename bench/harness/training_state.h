#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/emulation/device_state.h"
#include "bench/emulation/gpu.h"
#include "bench/harness/shapes.h"
#include "cairn/status.h"
#include "device/buffer_pool.h"

namespace cairn::bench {

/// The state of a training: one block of the GPU's memory, cut into tensors, whose every byte follows from the step.
///
/// An optimizer step writes one word in each sector, so that it costs little and a checkpoint that mixes two steps is
/// detected: 512 bytes of an emulated GPU's memory (the unit in which disks write), 16 KiB of a CUDA one's,
/// where the words come from the host, and a smaller mixture is not. Not safe for concurrent use.
class TrainingState : public DeviceState {
 public:
  /// The state of no step. InvalidArgument unless bytes is a multiple of 4096 and each tensor gets 512;
  /// ResourceExhausted. The GPU outlives it.
  [[nodiscard]] static Result<std::unique_ptr<TrainingState>> Make(Gpu& gpu, std::uint64_t bytes,
                                                                   std::uint64_t tensors);
  /// One with these tensors, of whole sectors of 512 bytes. Parts of one state, each in a process of its own, differ in
  /// every byte if `first` is the number of bytes before each.
  [[nodiscard]] static Result<std::unique_ptr<TrainingState>> Make(Gpu& gpu, const std::vector<NamedBytes>& tensors,
                                                                   std::uint64_t first = 0);

  /// The state of step 0.
  Status Initialize();
  /// The optimizer step, of the state of another step: what the state is after `step`.
  Status Update(std::uint64_t step);
  [[nodiscard]] Result<bool> Is(std::uint64_t step) const override;
  [[nodiscard]] Status Clear() const override;

  [[nodiscard]] MutableBytes memory() const { return memory_; }

 private:
  enum class Access : std::uint8_t { kRead, kWrite };

  TrainingState(Gpu& gpu, MutableBytes memory, const std::vector<NamedBytes>& tensors, std::uint64_t first,
                std::unique_ptr<BufferPool> words);
  // Calls `visit` with the words from one on, piece by piece, until it returns false.
  Status Visit(Access access,
               const std::function<bool(std::uint64_t first, std::span<std::uint64_t> words)>& visit) const;
  [[nodiscard]] std::uint64_t sectors() const;
  [[nodiscard]] std::uint64_t WordAfter(std::uint64_t word, std::uint64_t step) const;

  Gpu& gpu_;
  const MutableBytes memory_;
  const std::uint64_t first_word_;  // What the words of this part are numbered from.
  const std::uint64_t sector_words_;
  const std::unique_ptr<BufferPool> words_;  // What an update writes; null if the CPU writes it in place.
};

}  // namespace cairn::bench
