#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace cairn::trainer {

enum class OptimizerKind : std::uint8_t { kSgd, kAdamW };

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 0.01;
  double momentum = 0.9;  ///< Of SGD.
  double weight_decay = 5e-4;
};

/// SGD with momentum, or AdamW, by torch's own fused kernels.
///
/// All state exists from the start (torch.optim makes it at the first step), so that one cairn::State describes every
/// step of the run.
class Optimizer {
 public:
  Optimizer(OptimizerConfig config, const std::vector<NamedTensor>& parameters);
  /// Updates the parameters by their gradients, and drops the gradients.
  void Step();
  /// Everything that the next step depends on beside parameters and gradients: "optimizer.momentum.PARAMETER" and so
  /// on.
  [[nodiscard]] const std::vector<NamedTensor>& state() const { return state_; }

 private:
  /// One tensor like each parameter, in the state under "optimizer.WHAT.PARAMETER".
  std::vector<at::Tensor> Moments(const char* what, const std::vector<NamedTensor>& parameters);

  const OptimizerConfig config_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> first_;   ///< Momentum, or AdamW's first moment.
  std::vector<at::Tensor> second_;  ///< AdamW's second moment.
  at::Tensor steps_;                ///< AdamW: steps done, for its bias correction.
  std::vector<NamedTensor> state_;
};

}  // namespace cairn::trainer
