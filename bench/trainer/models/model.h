#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
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

/// What the training loop needs to know of a model.
struct Model {
  std::vector<NamedTensor> parameters;  ///< Trained; named as the model's reference implementation names them.
  std::vector<NamedTensor> buffers;     ///< Further state that a resumed run needs: running means, recurrent memory.
  /// Further names that the reference has for parameters, and theirs here. Read where they are there, never written.
  std::map<std::string, std::string> tied;
  /// How the names begin but for the heads', and what files of the model without heads leave out. Empty: nothing.
  std::string stem;
  /// How the names of this task's own parameters begin: weights of another task, which have none of them, may be read
  /// all the same, and these stay as drawn. Empty where there is no other task.
  std::string head;
  /// How the names of other tasks' own parameters begin: passed over where they are there.
  std::vector<std::string> other_heads;
  /// The scalar that training lowers, with gradients recorded. Draws from the default generators only.
  std::function<at::Tensor(const Batch& batch)> loss;
  /// What the model makes of a batch, without dropout and gradients: for comparing it with its reference.
  std::function<at::Tensor(const Batch& batch)> logits;
  /// Writes into the buffers what the batches since the last call left behind, for batches to come; null for a model
  /// without such. Neither loss nor logits writes buffers, since a save may still be reading them: the loop calls this
  /// where they may be overwritten.
  std::function<void()> advance;
};

struct ModelConfig {
  std::string name;                           ///< As --model has it.
  DataShape data;                             ///< What it is to learn from.
  std::map<std::string, std::int64_t> sizes;  ///< Sizes that differ from the published ones, by the model's own words.
  at::Device device = at::kCPU;
};

/// The kinds of data that a model takes, the usual one first. Throws std::runtime_error for an unknown one, naming
/// those that there are.
std::span<const DataKind> LearnsFrom(const std::string& model);

/// Makes a model with weights drawn from the default CPU generator, so that every device starts from the same ones.
/// Throws std::runtime_error for an unknown model or size, naming those that there are, and for data that it cannot
/// take. The data must be of a kind that it learns from.
Model MakeModel(const ModelConfig& config);

/// The sizes that FOLDER/config.json gives a model, or those given where that model has no config.json. Throws
/// std::runtime_error for a field that does not fit, and where sizes come from both.
std::map<std::string, std::int64_t> SizesFrom(const std::string& folder, const std::string& model,
                                              const std::map<std::string, std::int64_t>& given);

/// What a published model's sizes are, as a model's own file lists them.
template <typename Sizes>
struct Published {
  const char* name;  ///< As --model has it.
  Sizes sizes;
};
/// Those of the one of this name, which must be there.
template <typename All>
auto PublishedSizes(const All& published, const std::string& name) {
  return std::ranges::find_if(published, [&](const auto& one) { return name == one.name; })->sizes;
}

/// Takes a size out of `sizes`, or the published one. For the models' own files.
std::int64_t TakeSize(std::map<std::string, std::int64_t>& sizes, const std::string& name, std::int64_t published);
/// The same for one that is 1 or 0.
bool TakeFlag(std::map<std::string, std::int64_t>& sizes, const std::string& name, bool published);
/// Throws for sizes that nobody took. For the models' own files.
void RefuseUnknownSizes(const std::map<std::string, std::int64_t>& sizes, const std::string& known);
/// Throws where the heads do not share `hidden` evenly. For the models' own files.
void CheckHeads(std::int64_t hidden, std::int64_t heads);
/// Throws for data with tokens that a model of this vocabulary has not. For the models' own files.
void CheckVocabulary(const DataShape& data, std::int64_t vocabulary);
/// Throws for samples longer than this. For the models' own files.
void CheckPositions(const DataShape& data, std::int64_t positions);

}  // namespace cairn::trainer
