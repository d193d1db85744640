#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace cairn::trainer {

enum class OptimizerKind : std::uint8_t { kSgd, kAdamW };

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;  ///< Of SGD.
  double weight_decay = 5e-4;
  double clip_norm = 0;                 ///< Most that the gradients' norm, over all of them, may be; 0 for no limit.
  at::ScalarType weights = at::kFloat;  ///< What the parameters become, for the model to compute with.
};

/// SGD with momentum, or AdamW, by torch's own fused kernels. Parameters of less than fp32 are updated in fp32: their
/// master weights and moments are state, and the parameters are rounded from those.
///
/// All state exists from the start (torch.optim makes it at the first step), so that one cairn::State describes every
/// step of the run.
class Optimizer {
 public:
  /// Rounds the parameters, which are in fp32, to the type that is asked for.
  Optimizer(OptimizerConfig config, const std::vector<NamedTensor>& parameters);
  /// The memory that training by it takes beside the parameters: its state and the gradients.
  static std::uint64_t BytesFor(const OptimizerConfig& config, const std::vector<NamedTensor>& parameters);
  /// After each backward pass: adds its gradients to those before, in fp32.
  void Accumulate();
  /// Updates the parameters by what was accumulated, and drops it.
  void Step(double learning_rate);
  /// Everything that the next step depends on beside parameters and gradients: "optimizer.momentum.PARAMETER" and so
  /// on.
  [[nodiscard]] const std::vector<NamedTensor>& state() const { return state_; }

 private:
  /// One fp32 tensor for each parameter, in the state under "optimizer.WHAT.PARAMETER".
  std::vector<at::Tensor> Moments(const char* what, const std::vector<NamedTensor>& parameters);
  void UseMasters(const std::vector<NamedTensor>& parameters);
  [[nodiscard]] std::vector<at::Tensor> TakeGradients() const;  ///< In fp32.
  void Clip(const std::vector<at::Tensor>& gradients) const;

  const OptimizerConfig config_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;    ///< What is updated: the parameters themselves where they are fp32.
  bool rounded_;                       ///< The parameters are the masters, rounded.
  std::vector<at::Tensor> first_;      ///< Momentum, or AdamW's first moment.
  std::vector<at::Tensor> second_;     ///< AdamW's second moment.
  std::vector<at::Tensor> gradients_;  ///< Accumulated, where autograd does not do that in fp32 itself.
  at::Tensor steps_;                   ///< AdamW: steps done, for its bias correction.
  std::vector<NamedTensor> state_;
};

}  // namespace cairn::trainer
