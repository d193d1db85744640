#include "models/vgg16.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <memory>

#include "models/published.h"

namespace cairn::trainer {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kPooled = 7;

/// Channels of each convolution, in multiples of the first block's width; 0 is a max pooling.
constexpr std::array<std::int64_t, 18> kLayers = {1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0};

nn::Conv2d MakeConvolution(std::int64_t in, std::int64_t out) {
  nn::Conv2d layer(nn::Conv2dOptions(in, out, 3).padding(1));
  nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  nn::init::zeros_(layer->bias);
  return layer;
}

nn::Linear MakeLinear(std::int64_t in, std::int64_t out) {
  nn::Linear layer(in, out);
  nn::init::normal_(layer->weight, 0, 0.01);
  nn::init::zeros_(layer->bias);
  return layer;
}

/// torchvision's AdaptiveAvgPool2d((7, 7)). Its backward pass on CUDA is not deterministic. Pictures of 32 and of 224
/// pixels do not need it.
at::Tensor PoolToSeven(const at::Tensor& x) {
  if (x.size(2) == kPooled && x.size(3) == kPooled) return x;
  if (x.size(2) == 1 && x.size(3) == 1) return x.expand({x.size(0), x.size(1), kPooled, kPooled});
  return at::adaptive_avg_pool2d(x, {kPooled, kPooled});
}

class Vgg16 : public nn::Module {
 public:
  Vgg16(std::int64_t width, std::int64_t classes) {
    std::int64_t channels = 3;
    for (const std::int64_t layer : kLayers) {
      if (layer == 0) {
        features_->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2).stride(2)));
        continue;
      }
      features_->push_back(MakeConvolution(channels, layer * width));
      features_->push_back(nn::ReLU(nn::ReLUOptions(true)));
      channels = layer * width;
    }
    const std::int64_t hidden = 64 * width;
    classifier_->push_back(MakeLinear(channels * kPooled * kPooled, hidden));
    classifier_->push_back(nn::ReLU(nn::ReLUOptions(true)));
    classifier_->push_back(nn::Dropout(0.5));
    classifier_->push_back(MakeLinear(hidden, hidden));
    classifier_->push_back(nn::ReLU(nn::ReLUOptions(true)));
    classifier_->push_back(nn::Dropout(0.5));
    classifier_->push_back(MakeLinear(hidden, classes));
    register_module("features", features_);
    register_module("classifier", classifier_);
  }

  at::Tensor Logits(const Batch& batch) {
    const at::Tensor pooled = PoolToSeven(features_->forward(batch.at("image")));
    return classifier_->forward(pooled.flatten(1)).to(at::kFloat);
  }
  at::Tensor Loss(const Batch& batch) { return at::cross_entropy_loss(Logits(batch), batch.at("label")); }

 private:
  nn::Sequential features_;
  nn::Sequential classifier_;
};

}  // namespace

Model MakeVgg16(const ModelConfig& config) {
  auto sizes = config.sizes;
  const std::int64_t width = TakeSize(sizes, "width", PublishedSizes(config.name));
  RejectUnknownSizes(sizes, "width");
  auto module = std::make_shared<Vgg16>(width, config.data.classes);
  module->to(config.device);
  Model model;
  for (const auto& item : module->named_parameters()) model.parameters.push_back({item.key(), item.value()});
  model.loss = [module](const Batch& batch) { return module->Loss(batch); };
  model.logits = [module](const Batch& batch) {
    const c10::NoGradGuard no_grad;
    module->eval();
    at::Tensor logits = module->Logits(batch);
    module->train();
    return logits;
  };
  return model;
}

}  // namespace cairn::trainer
