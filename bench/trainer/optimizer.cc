#include "optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace cairn::trainer {

Optimizer::Optimizer(OptimizerConfig config, const std::vector<NamedTensor>& parameters) : config_(config) {
  for (const NamedTensor& parameter : parameters) parameters_.push_back(parameter.tensor);
  if (config_.kind == OptimizerKind::kSgd) {
    first_ = Moments("momentum", parameters);
    return;
  }
  first_ = Moments("exp_avg", parameters);
  second_ = Moments("exp_avg_sq", parameters);
  steps_ = at::zeros({}, parameters_.front().options().dtype(at::kFloat));
  state_.push_back({"optimizer.step", steps_});
}

std::vector<at::Tensor> Optimizer::Moments(const char* what, const std::vector<NamedTensor>& parameters) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> moments;
  for (const NamedTensor& parameter : parameters) {
    moments.push_back(at::zeros_like(parameter.tensor));
    state_.push_back({std::string("optimizer.") + what + "." + parameter.name, moments.back()});
  }
  return moments;
}

void Optimizer::Step() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  if (config_.kind == OptimizerKind::kSgd) {
    at::_fused_sgd_(parameters_, gradients, first_, config_.weight_decay, config_.momentum, config_.learning_rate,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
  } else {
    steps_.add_(1);
    const std::vector<at::Tensor> steps(parameters_.size(), steps_);
    at::_fused_adamw_(parameters_, gradients, first_, second_, /*max_exp_avg_sqs=*/{}, steps, config_.learning_rate,
                      /*beta1=*/0.9, /*beta2=*/0.999, config_.weight_decay, /*eps=*/1e-8, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace cairn::trainer
