#include "optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace cairn::trainer {

Optimizer::Optimizer(OptimizerConfig config, const std::vector<NamedTensor>& parameters)
    : config_(config), rounded_(config.weights != at::kFloat) {
  const c10::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters) parameters_.push_back(parameter.tensor);
  UseMasters(parameters);
  if (config_.kind == OptimizerKind::kSgd) {
    first_ = Moments("momentum", parameters);
    return;
  }
  first_ = Moments("exp_avg", parameters);
  second_ = Moments("exp_avg_sq", parameters);
  steps_ = at::zeros({}, parameters_.front().options().dtype(at::kFloat));
  state_.push_back({"optimizer.step", steps_});
}

std::uint64_t Optimizer::BytesFor(const OptimizerConfig& config, const std::vector<NamedTensor>& parameters) {
  const std::uint64_t moments = config.kind == OptimizerKind::kSgd ? 1 : 2;
  // A rounded parameter needs two more fp32 tensors: its accumulated gradient and its master.
  const bool rounded = config.weights != at::kFloat;
  const std::uint64_t in_fp32 = moments + (rounded ? 1 : 0);
  const std::uint64_t in_its_type = rounded ? 2 : 1;  // The gradient, and the parameter's rounded copy.
  std::uint64_t bytes = 0;
  for (const NamedTensor& parameter : parameters) {
    bytes += parameter.tensor.numel() * (in_fp32 * sizeof(float) + in_its_type * c10::elementSize(config.weights));
  }
  return bytes;
}

void Optimizer::UseMasters(const std::vector<NamedTensor>& parameters) {
  if (!rounded_) {
    masters_ = parameters_;
    return;
  }
  for (const NamedTensor& parameter : parameters) {
    masters_.push_back(parameter.tensor.detach());
    parameter.tensor.set_data(masters_.back().to(config_.weights));
    state_.push_back({"optimizer.master." + parameter.name, masters_.back()});
  }
}

std::vector<at::Tensor> Optimizer::Moments(const char* what, const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> moments;
  for (const NamedTensor& parameter : parameters) {
    moments.push_back(at::zeros_like(parameter.tensor, parameter.tensor.options().dtype(at::kFloat)));
    state_.push_back({std::string("optimizer.") + what + "." + parameter.name, moments.back()});
  }
  return moments;
}

std::vector<at::Tensor> Optimizer::TakeGradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    gradients.push_back(parameter.grad().to(at::kFloat));
    parameter.mutable_grad().reset();
  }
  return gradients;
}

void Optimizer::Accumulate() {
  if (!rounded_) return;
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> more = TakeGradients();
  if (gradients_.empty()) {
    gradients_ = std::move(more);
  } else {
    at::_foreach_add_(gradients_, more);
  }
}

std::vector<at::Tensor> Optimizer::Gradients() const {
  if (rounded_) return gradients_;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  return gradients;
}

void Optimizer::Clip(const std::vector<at::Tensor>& gradients) const {
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)));
  // Computed on the device, so that the host need not wait for the norm.
  at::_foreach_mul_(gradients, norm.add(1e-6).reciprocal().mul(config_.clip_norm).clamp_max(1));
}

void Optimizer::Step(double learning_rate) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = rounded_ ? std::exchange(gradients_, {}) : TakeGradients();
  if (config_.clip_norm > 0) Clip(gradients);
  if (config_.kind == OptimizerKind::kSgd) {
    at::_fused_sgd_(masters_, gradients, first_, config_.weight_decay, config_.momentum, learning_rate,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
  } else {
    steps_.add_(1);
    const std::vector<at::Tensor> steps(masters_.size(), steps_);
    at::_fused_adamw_(masters_, gradients, first_, second_, /*max_exp_avg_sqs=*/{}, steps, learning_rate,
                      /*beta1=*/0.9, /*beta2=*/0.999, config_.weight_decay, /*eps=*/1e-8, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  if (rounded_) at::_foreach_copy_(parameters_, masters_);
}

}  // namespace cairn::trainer
