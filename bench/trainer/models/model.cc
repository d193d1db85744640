#include "models/model.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

#include "models/bert.h"
#include "models/bloom.h"
#include "models/config_file.h"
#include "models/opt.h"
#include "models/published.h"
#include "models/transformer_xl.h"
#include "models/vgg16.h"

namespace cairn::trainer {
namespace {

/// The models of one file.
struct Family {
  /// As models.json calls it.
  std::string_view name;
  std::span<const DataKind> learns_from;
  Model (*make)(const ModelConfig&);
  /// Null if no one publishes a config.json for the models.
  const ConfigLayout* config_file;
};
constexpr std::array kPictures = {DataKind::kPictures};
constexpr std::array kText = {DataKind::kText};
constexpr std::array kTextStreams = {DataKind::kTextStreams};
constexpr std::array kPairsOrQuestions = {DataKind::kPairs, DataKind::kQuestions};
constexpr std::array kFamilies = {
    Family{"vgg", kPictures, MakeVgg16, nullptr},
    Family{"bert", kPairsOrQuestions, MakeBert, &kBertConfig},
    Family{"opt", kText, MakeOpt, &kOptConfig},
    Family{"bloom", kText, MakeBloom, &kBloomConfig},
    Family{"transformer_xl", kTextStreams, MakeTransformerXl, nullptr},
};

const Family& Find(const std::string& name) {
  const auto family_of = [](const PublishedModel& model) {
    return std::ranges::find(kFamilies, model.family, &Family::name);
  };
  if (const PublishedModel* const model = FindPublishedModel(name)) {
    const auto* const family = family_of(*model);
    if (family != kFamilies.end()) return *family;
    throw std::runtime_error("--model " + name +
                             ": a state only, for cairn plan and bench_training; this program has none of its layers");
  }
  std::string known;
  for (const PublishedModel& model : PublishedModels()) {
    if (family_of(model) != kFamilies.end()) known += " " + model.name;
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

std::int64_t TakeSize(std::map<std::string, std::int64_t>& sizes, const std::string& name,
                      const std::map<std::string, std::int64_t>& published) {
  const auto node = sizes.extract(name);
  const std::int64_t size = node.empty() ? published.at(name) : node.mapped();
  if (size < 1 || size > kMaxSize) {
    throw std::runtime_error("--size " + name + ": expected 1 to " + std::to_string(kMaxSize) + ", found " +
                             std::to_string(size));
  }
  return size;
}

bool TakeFlag(std::map<std::string, std::int64_t>& sizes, const std::string& name,
              const std::map<std::string, std::int64_t>& published) {
  const auto node = sizes.extract(name);
  const std::int64_t flag = node.empty() ? published.at(name) : node.mapped();
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
