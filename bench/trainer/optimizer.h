#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace cairn::trainer {

enum class OptimizerKind : std::uint8_t { kSgd, kAdamW };

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  /// For SGD only.
  double momentum = 0.9;
  double weight_decay = 5e-4;
  /// The maximum global norm of the gradients; 0 for no limit.
  double clip_norm = 0;
  /// The type that the parameters are converted to and the model computes with.
  at::ScalarType weights = at::kFloat;
};

/// SGD with momentum, or AdamW, with torch's fused kernels. Parameters below fp32 have fp32 master weights and moments,
/// which are part of the state; the parameters are rounded from the master weights.
///
/// All state exists from the start (torch.optim creates it at the first step), so that one cairn::State describes every
/// step of the run.
class Optimizer {
 public:
  /// Converts the parameters from fp32 to the configured type.
  Optimizer(OptimizerConfig config, const std::vector<NamedTensor>& parameters);
  /// The memory in bytes that training needs beside the parameters: optimizer state and gradients.
  static std::uint64_t BytesFor(const OptimizerConfig& config, const std::vector<NamedTensor>& parameters);
  /// Call after each backward pass: accumulates its gradients in fp32.
  void Accumulate();
  /// The accumulated gradients, for changing them in place before Step.
  [[nodiscard]] std::vector<at::Tensor> Gradients() const;
  /// Updates the parameters with the accumulated gradients, and clears these.
  void Step(double learning_rate);
  /// Everything that the next step depends on besides parameters and gradients: "optimizer.momentum.PARAMETER" and so
  /// on.
  [[nodiscard]] const std::vector<NamedTensor>& state() const { return state_; }

 private:
  /// Adds one fp32 tensor for each parameter to the state as "optimizer.WHAT.PARAMETER".
  std::vector<at::Tensor> Moments(const char* what, const std::vector<NamedTensor>& parameters);
  void UseMasters(const std::vector<NamedTensor>& parameters);
  /// Returns the gradients in fp32, and resets them.
  [[nodiscard]] std::vector<at::Tensor> TakeGradients() const;
  void Clip(const std::vector<at::Tensor>& gradients) const;

  const OptimizerConfig config_;
  std::vector<at::Tensor> parameters_;
  /// What Step updates: fp32 master weights, or the parameters themselves if they are fp32.
  std::vector<at::Tensor> masters_;
  /// Whether the parameters are rounded from masters.
  bool rounded_;
  /// SGD's momentum or AdamW's first moment.
  std::vector<at::Tensor> first_;
  /// AdamW's second moment.
  std::vector<at::Tensor> second_;
  /// Accumulated fp32 gradients; used only if autograd does not accumulate in fp32 itself.
  std::vector<at::Tensor> gradients_;
  /// The number of AdamW steps done, for its bias correction.
  at::Tensor steps_;
  std::vector<NamedTensor> state_;
};

}  // namespace cairn::trainer
