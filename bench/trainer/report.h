#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/stats.h"
#include "flags.h"
#include "models/model.h"

namespace cairn::trainer {

struct StepRecord {
  std::uint64_t step = 0;
  double loss = 0;
  double learning_rate = 0;
  // Host time. On a GPU, kernels run asynchronously and wait in their stream for Fence's event.
  /// The whole step, including save and fence.
  double seconds = 0;
  /// Part of `seconds`: data, forward and backward, while a save may read the state.
  double model_seconds = 0;
  /// Part of `seconds`: how long the ranks' gradients took to be summed; 0 for one rank.
  double reduce_seconds = 0;
  /// Part of `seconds`: how long Fence blocked the loop.
  double fence_seconds = 0;
  /// Part of `seconds`: how long Save and Fence blocked the loop.
  double stall_seconds = 0;
  /// At the start of the step.
  std::size_t saves_in_flight = 0;
};

struct SaveRecord {
  cairn::SaveStats stats;
  cairn::Status status;
};

/// What happened in a run.
struct Report {
  std::optional<std::uint64_t> resumed_from;
  /// The signal that ended the run, or null.
  const char* stopped_by = nullptr;
  std::uint64_t samples = 0;
  /// Tokens in a sample; 0 for data that is not text.
  std::int64_t sequence = 0;
  int threads = 0;
  int ranks = 1;
  std::vector<StepRecord> steps;
  std::vector<SaveRecord> saves;
  std::optional<cairn::CheckpointerStats> checkpointer;
  std::string weights_digest;
};

/// CRC-64/XZ over the tensors' names and bytes, in the given order, as 16 hexadecimal digits.
std::string Digest(const std::vector<NamedTensor>& tensors);

/// Writes the report as JSON, atomically, with peak memory and the CPU seconds of Cairn's threads so far. Throws
/// std::runtime_error on failure.
void WriteReport(const Flags& flags, const Report& report);

}  // namespace cairn::trainer
