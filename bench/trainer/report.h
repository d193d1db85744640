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
  // By the loop's own clock. On a GPU this is how long the host was held up: kernels run on behind it, and wait in
  // their stream for what Fence has put there.
  double seconds = 0;               ///< The whole step, with what the save and the fence took of it.
  double model_seconds = 0;         ///< Of it, data, forward and backward: while they ran, a save could read the state.
  double fence_seconds = 0;         ///< Of it, how long Fence held the loop up.
  double stall_seconds = 0;         ///< Of it, how long Save and Fence held the loop up.
  std::size_t saves_in_flight = 0;  ///< At its begin.
};

struct SaveRecord {
  cairn::SaveStats stats;
  cairn::Status status;
};

/// What a run did.
struct Report {
  std::optional<std::uint64_t> resumed_from;
  const char* stopped_by = nullptr;  ///< The signal that ended it; null for none.
  std::uint64_t samples = 0;
  std::int64_t sequence = 0;  ///< Tokens of a sample; 0 where it has none.
  int threads = 0;
  std::vector<StepRecord> steps;
  std::vector<SaveRecord> saves;
  std::optional<cairn::CheckpointerStats> checkpointer;
  std::string weights_digest;
};

/// CRC-64/XZ over the tensors' names and bytes, in their order, as 16 hexadecimal digits.
std::string Digest(const std::vector<NamedTensor>& tensors);

/// Writes the report, with peak memory and the CPU seconds of Cairn's threads until now, as JSON: whole or not at all.
/// Throws std::runtime_error where it cannot.
void WriteReport(const Flags& flags, const Report& report);

}  // namespace cairn::trainer
