#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/status.h"
#include "cairn/tensor.h"
#include "flags.h"
#include "models/model.h"
#include "sampler.h"

namespace cairn::trainer {

/// Where a run stands between two steps, beside its tensors.
struct RunPosition {
  std::uint64_t step = 0;  ///< Optimizer steps done.
  DataPosition data;
};

/// Everything that the next step depends on, as a cairn::State: parameters and buffers under their own names, the
/// optimizer's state, the random generators ("rng.cpu", "rng.cuda") and the progress, plus what the run was given.
///
/// The described tensors must stay where they are while this lives.
class TrainingState {
 public:
  /// `data` is the data set's name. Throws std::runtime_error where a tensor cannot be described.
  TrainingState(const Flags& flags, const std::string& data, at::Device device, const Model& model,
                const std::vector<NamedTensor>& optimizer);

  /// The state to save: takes down the generators and the progress as they are now.
  const cairn::State& Capture(const RunPosition& progress);
  /// The state to restore into.
  [[nodiscard]] const cairn::State& target() const { return state_; }
  /// Once the tensors have been restored: sets the generators, returns the progress. Throws std::runtime_error for
  /// values that are missing.
  RunPosition Resume(const cairn::Values& values);

  /// Throws std::runtime_error where the checkpoint's model, data or optimizer is not this run's. Returns a warning for
  /// each further difference that keeps the run from going on bit by bit as it would have.
  [[nodiscard]] std::vector<std::string> Compare(const cairn::Values& values) const;

 private:
  void Add(const std::string& name, const at::Tensor& tensor);

  cairn::State state_;
  struct Generator {
    at::Generator generator;
    at::Tensor state;  ///< On the CPU, always the same memory.
  };
  std::vector<Generator> generators_;
};

}  // namespace cairn::trainer
