#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "models/model.h"

namespace cairn::trainer {

/// Draws a model's weights from the default CPU generator, and names them with their layer's prefix.
class Weights {
 public:
  static constexpr double kDeviation = 0.02;  // The initial deviation of all these models.

  Weights(at::Device device, std::vector<NamedTensor>& parameters) : device_(device), parameters_(parameters) {}

  /// For the weights inside this layer.
  [[nodiscard]] Weights Under(const std::string& layer) const {
    Weights under = *this;
    under.prefix_ += layer + ".";
    return under;
  }
  at::Tensor Normal(const std::string& name, at::IntArrayRef shape, double deviation = kDeviation) {
    // Otherwise the kernel would kill the process without a message.
    CheckMemory(at::kCPU, prefix_ + name, c10::multiply_integers(shape) * sizeof(float));
    return Add(name, at::empty(shape, at::kFloat).normal_(0, deviation));
  }
  at::Tensor Constant(const std::string& name, std::int64_t size, double value) {
    return Add(name, at::full({size}, value, at::kFloat));
  }

 private:
  at::Tensor Add(const std::string& name, const at::Tensor& drawn) {
    at::Tensor tensor = drawn.to(device_);
    tensor.requires_grad_(true);
    parameters_.push_back({prefix_ + name, tensor});
    return tensor;
  }

  at::Device device_;
  std::vector<NamedTensor>& parameters_;
  std::string prefix_;
};

struct Linear {
  at::Tensor weight, bias;

  Linear(Weights weights, std::int64_t in, std::int64_t out)
      : weight(weights.Normal("weight", {out, in})), bias(weights.Constant("bias", out, 0)) {}
  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
};

struct LayerNorm {
  at::Tensor weight, bias;
  double epsilon;

  LayerNorm(Weights weights, std::int64_t size, double eps = 1e-5)
      : weight(weights.Constant("weight", size, 1)), bias(weights.Constant("bias", size, 0)), epsilon(eps) {}
  at::Tensor operator()(const at::Tensor& x) const { return at::layer_norm(x, weight.sizes(), weight, bias, epsilon); }
};

/// [n, length, heads * d] to [n, heads, length, d], and back.
inline at::Tensor SplitHeads(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}
inline at::Tensor JoinHeads(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

/// The tokens from which a causal language model predicts the next ones.
inline at::Tensor AllButLast(const at::Tensor& ids) { return ids.slice(1, 0, ids.size(1) - 1); }
/// The loss of `logits` [n, length - 1, vocabulary], computed from all but the last of `ids` [n, length].
inline at::Tensor NextTokenLoss(const at::Tensor& logits, const at::Tensor& ids) {
  return at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), ids.slice(1, 1).flatten());
}

}  // namespace cairn::trainer
