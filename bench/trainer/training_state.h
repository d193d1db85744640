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

/// The position of a run between two steps, without its tensors.
struct RunPosition {
  /// Number of optimizer steps done.
  std::uint64_t step = 0;
  DataPosition data;
};

/// Everything that the next step depends on, as a cairn::State: parameters and buffers by name, the optimizer's state,
/// the random generators ("rng.cpu", "rng.cuda"), the progress, and the run's flags.
///
/// The described tensors must outlive this object and must not move.
class TrainingState {
 public:
  /// `data` is the data set's name. Throws std::runtime_error if a tensor cannot be described.
  TrainingState(const Flags& flags, const std::string& data, at::Device device, const Model& model,
                const std::vector<NamedTensor>& optimizer);

  /// Records generators and progress as they are now, and returns the state to save.
  const cairn::State& Capture(const RunPosition& progress);
  /// The state to restore into.
  [[nodiscard]] const cairn::State& target() const { return state_; }
  /// Call after the tensors have been restored: sets the generators and returns the progress. Throws std::runtime_error
  /// if a value is missing.
  RunPosition Resume(const cairn::Values& values);

  /// Throws std::runtime_error if the checkpoint's model, data or optimizer differs from this run's. Returns a warning
  /// for each other difference that makes the resumed run not bit-exact.
  [[nodiscard]] std::vector<std::string> Compare(const cairn::Values& values) const;

 private:
  void Add(const std::string& name, const at::Tensor& tensor);

  cairn::State state_;
  struct Generator {
    at::Generator generator;
    /// On the CPU, always at the same address.
    at::Tensor state;
  };
  std::vector<Generator> generators_;
};

}  // namespace cairn::trainer
