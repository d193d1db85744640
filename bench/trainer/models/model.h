#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace cairn::trainer {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What the training loop needs to know of a model.
struct Model {
  std::vector<NamedTensor> parameters;  ///< Trained; named as the model's reference implementation names them.
  std::vector<NamedTensor> buffers;     ///< Further state that a resumed run needs: running means, recurrent memory.
  /// The scalar that training lowers, with gradients recorded. Draws from the default generators only.
  std::function<at::Tensor(const Batch& batch)> loss;
};

struct ModelConfig {
  std::int64_t classes = 0;                   ///< Of the data set.
  std::map<std::string, std::int64_t> sizes;  ///< Sizes that differ from the published ones, by the model's own words.
  at::Device device = at::kCPU;
};

/// Makes a model with weights drawn from the default CPU generator, so that every device starts from the same ones.
/// Throws std::runtime_error for an unknown model or size, naming those that there are.
Model MakeModel(const std::string& name, const ModelConfig& config);

/// Takes a size out of `sizes`, or the published one. For the models' own files.
std::int64_t TakeSize(std::map<std::string, std::int64_t>& sizes, const std::string& name, std::int64_t published);
/// Throws for sizes that nobody took. For the models' own files.
void RefuseUnknownSizes(const std::map<std::string, std::int64_t>& sizes, const std::string& known);

}  // namespace cairn::trainer
