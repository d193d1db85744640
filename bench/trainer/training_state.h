#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/checkpointer.h"
#include "flags.h"
#include "models/model.h"
#include "sampler.h"

namespace cairn::trainer {

/// The position of a run between two steps, without its tensors.
struct RunPosition {
  /// Number of optimizer steps done.
  std::uint64_t step = 0;
  DataPosition data;
};

/// Everything that the next step depends on, as a cairn::State: parameters and buffers by name, the optimizer's state,
/// the progress, and the run's flags. The random generators are not part of it: the loop seeds them for each batch by
/// the position in the data, so that they do not depend on the number of ranks.
///
/// The described tensors must outlive this object and must not move.
class TrainingState {
 public:
  /// `data` is the data set's name. Throws std::runtime_error if a tensor cannot be described.
  TrainingState(const Flags& flags, int ranks, const std::string& data, const Model& model,
                const std::vector<NamedTensor>& optimizer);

  /// Records the progress, and returns the state to save.
  const cairn::State& Capture(const RunPosition& progress);
  /// The state to restore into.
  [[nodiscard]] const cairn::State& target() const { return state_; }
  /// The progress in a checkpoint's values. Throws std::runtime_error if one is missing.
  [[nodiscard]] static RunPosition PositionIn(const cairn::Values& values);

  /// For ranks, which all hold the whole state: each tensor is written once, and the flags must be the same.
  [[nodiscard]] cairn::Replicated Replicated() const;

  /// Throws std::runtime_error if the checkpoint's model, data or optimizer differs from this run's. Returns a warning
  /// for each other difference that makes the resumed run not bit-exact.
  [[nodiscard]] std::vector<std::string> Compare(const cairn::Values& values) const;

 private:
  cairn::State state_;
};

}  // namespace cairn::trainer
