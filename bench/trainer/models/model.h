#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace cairn::trainer {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A model, as the training loop uses it.
struct Model {
  /// Trained parameters, with the names of the model's reference implementation.
  std::vector<NamedTensor> parameters;
  /// Other state that a resumed run needs: running means, recurrent memory.
  std::vector<NamedTensor> buffers;
  /// The reference's additional names for parameters, each with its name in `parameters`. Read if present, never
  /// written.
  std::map<std::string, std::string> tied;
  /// The prefix of all names except the heads'; files of the model without heads leave it out. May be empty.
  std::string stem;
  /// The prefix of the parameters of this task's head. Weights of another task, which lack them, can be loaded too; the
  /// head then keeps its initial weights. Empty if there is no other task.
  std::string head;
  /// The prefixes of other tasks' heads, which are skipped.
  std::vector<std::string> other_heads;
  /// The scalar to minimise, with autograd. Draws from the default generators only.
  std::function<at::Tensor(const Batch& batch)> loss;
  /// The model's output, without dropout and gradients, for comparison with the reference.
  std::function<at::Tensor(const Batch& batch)> logits;
  /// Updates the buffers with the results of the batches since the last call; null for a model without such buffers.
  /// Neither loss nor logits writes buffers, since a save may still be reading them; the loop calls this when they may
  /// be overwritten.
  std::function<void()> advance;
};

struct ModelConfig {
  /// The value of --model.
  std::string name;
  /// The data that it is trained on.
  DataShape data;
  /// Sizes that differ from the published ones, by the model's names for them.
  std::map<std::string, std::int64_t> sizes;
  at::Device device = at::kCPU;
};

/// The kinds of data that a model accepts, the usual one first. Throws std::runtime_error for an unknown model, naming
/// the known ones.
std::span<const DataKind> LearnsFrom(const std::string& model);

/// Makes a model with weights drawn from the default CPU generator, so that they are the same on every device. Throws
/// std::runtime_error for an unknown model or size, naming the known ones, and for data that does not fit. The data
/// must be of a kind that the model accepts.
Model MakeModel(const ModelConfig& config);

/// The sizes in FOLDER/config.json, or `given` for a model without a config.json. Throws std::runtime_error for a field
/// that does not fit, and if sizes come from both.
std::map<std::string, std::int64_t> SizesFrom(const std::string& folder, const std::string& model,
                                              const std::map<std::string, std::int64_t>& given);

/// Removes a size from `sizes` and returns it, or the published one. For the models' files.
std::int64_t TakeSize(std::map<std::string, std::int64_t>& sizes, const std::string& name,
                      const std::map<std::string, std::int64_t>& published);
/// Like TakeSize, for a size that is 1 or 0.
bool TakeFlag(std::map<std::string, std::int64_t>& sizes, const std::string& name,
              const std::map<std::string, std::int64_t>& published);
/// Throws if sizes are left that were not taken. For the models' files.
void RejectUnknownSizes(const std::map<std::string, std::int64_t>& sizes, const std::string& known);
/// Throws if `hidden` is not a multiple of `heads`. For the models' files.
void CheckHeads(std::int64_t hidden, std::int64_t heads);
/// Throws if the data's vocabulary is larger than the model's. For the models' files.
void CheckVocabulary(const DataShape& data, std::int64_t vocabulary);
/// Throws if samples are longer than `positions`. For the models' files.
void CheckPositions(const DataShape& data, std::int64_t positions);

}  // namespace cairn::trainer
