#include "models/model.h"

#include <array>
#include <stdexcept>

#include "models/bert.h"
#include "models/bloom.h"
#include "models/config_file.h"
#include "models/opt.h"
#include "models/transformer_xl.h"
#include "models/vgg16.h"

namespace cairn::trainer {
namespace {

struct Entry {
  const char* name;
  std::span<const DataKind> learns_from;
  Model (*make)(const ModelConfig&);
  /// Null if no one publishes a config.json for the model.
  const ConfigLayout* config_file;
};
constexpr std::array kPictures = {DataKind::kPictures};
constexpr std::array kText = {DataKind::kText};
constexpr std::array kTextStreams = {DataKind::kTextStreams};
constexpr std::array kPairsOrQuestions = {DataKind::kPairs, DataKind::kQuestions};
constexpr std::array kModels = {
    Entry{"vgg16", kPictures, MakeVgg16, nullptr},
    Entry{"bert-base", kPairsOrQuestions, MakeBert, &kBertConfig},
    Entry{"bert-large", kPairsOrQuestions, MakeBert, &kBertConfig},
    Entry{"opt-125m", kText, MakeOpt, &kOptConfig},
    Entry{"opt-350m", kText, MakeOpt, &kOptConfig},
    Entry{"opt-1.3b", kText, MakeOpt, &kOptConfig},
    Entry{"opt-2.7b", kText, MakeOpt, &kOptConfig},
    Entry{"bloom-560m", kText, MakeBloom, &kBloomConfig},
    Entry{"bloom-1b1", kText, MakeBloom, &kBloomConfig},
    Entry{"bloom-1b7", kText, MakeBloom, &kBloomConfig},
    Entry{"bloom-3b", kText, MakeBloom, &kBloomConfig},
    Entry{"transformer-xl-base", kTextStreams, MakeTransformerXl, nullptr},
    Entry{"transformer-xl-large", kTextStreams, MakeTransformerXl, nullptr},
};

const Entry& Find(const std::string& name) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry;
    known += std::string(" ") + entry.name;
  }
  throw std::runtime_error("--model " + name + ": unknown; known are:" + known);
}

}  // namespace

std::span<const DataKind> LearnsFrom(const std::string& model) { return Find(model).learns_from; }

Model MakeModel(const ModelConfig& config) { return Find(config.name).make(config); }

std::map<std::string, std::int64_t> SizesFrom(const std::string& folder, const std::string& model,
                                              const std::map<std::string, std::int64_t>& given) {
  const ConfigLayout* const layout = Find(model).config_file;
  if (layout == nullptr) return given;
  if (!given.empty()) {
    throw std::runtime_error("--size " + given.begin()->first +
                             ": not allowed with --init-from, whose config.json has the sizes");
  }
  return ReadSizes(folder, *layout);
}

std::int64_t TakeSize(std::map<std::string, std::int64_t>& sizes, const std::string& name, std::int64_t published) {
  const auto node = sizes.extract(name);
  const std::int64_t size = node.empty() ? published : node.mapped();
  if (size < 1 || size > kMaxSize) {
    throw std::runtime_error("--size " + name + ": expected 1 to " + std::to_string(kMaxSize) + ", found " +
                             std::to_string(size));
  }
  return size;
}

bool TakeFlag(std::map<std::string, std::int64_t>& sizes, const std::string& name, bool published) {
  const auto node = sizes.extract(name);
  const std::int64_t flag = node.empty() ? static_cast<std::int64_t>(published) : node.mapped();
  if (flag != 0 && flag != 1)
    throw std::runtime_error("--size " + name + ": expected 0 or 1, found " + std::to_string(flag));
  return flag == 1;
}

void RejectUnknownSizes(const std::map<std::string, std::int64_t>& sizes, const std::string& known) {
  if (sizes.empty()) return;
  throw std::runtime_error("--size " + sizes.begin()->first + ": unknown size; this model has: " + known);
}

void CheckHeads(std::int64_t hidden, std::int64_t heads) {
  if (hidden % heads == 0) return;
  throw std::runtime_error("size hidden: expected a multiple of heads, " + std::to_string(heads) + ", found " +
                           std::to_string(hidden));
}

void CheckVocabulary(const DataShape& data, std::int64_t vocabulary) {
  if (data.classes <= vocabulary) return;
  throw std::runtime_error("the data's vocabulary has " + std::to_string(data.classes) + " tokens, the model's " +
                           std::to_string(vocabulary));
}

void CheckPositions(const DataShape& data, std::int64_t positions) {
  if (data.sequence <= positions) return;
  throw std::runtime_error("the data's samples have " + std::to_string(data.sequence) +
                           " tokens (--sequence), the model " + std::to_string(positions) + " positions");
}

}  // namespace cairn::trainer
