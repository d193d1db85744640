#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <memory>
#include <stdexcept>

#include "data/dataset.h"
#include "data/question_file.h"

namespace cairn::trainer {
namespace {

Batch Read(const QuestionFile& file, std::int64_t pad, std::span<const std::uint64_t> samples) {
  const auto count = static_cast<std::int64_t>(samples.size());
  const auto sequence = static_cast<std::int64_t>(file.sequence());
  at::Tensor ids = at::full({count, sequence}, pad, at::kLong);
  at::Tensor places = at::empty({4, count, 1}, at::kLong);  // Four columns.
  auto* const out = places.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const Feature& feature = file.feature(samples[i]);
    file.Read(samples[i], {ids.mutable_data_ptr<std::int64_t>() + i * sequence, feature.length});
    out[i] = feature.length;
    out[count + i] = feature.context;
    out[2 * count + i] = feature.start;
    out[3 * count + i] = feature.end;
  }
  const at::Tensor place = at::arange(sequence, at::kLong);
  const at::Tensor attended = place.lt(places[0]);
  return {{"input_ids", ids},
          {"token_type_ids", place.ge(places[1]).logical_and(attended).to(at::kLong)},
          {"attention_mask", attended},
          {"start_positions", places[2].squeeze(1)},
          {"end_positions", places[3].squeeze(1)}};
}

}  // namespace

Dataset QuestionsDataset(const std::string& folder) {
  const auto file = std::make_shared<const QuestionFile>(folder);
  const TokenFile& tokens = file->tokens();
  const auto pad = tokens.special().find("[PAD]");
  if (pad == tokens.special().end()) {
    throw std::runtime_error(folder + "/data.json: special_tokens: expected [PAD], found none");
  }
  return {
      .name = "questions " + tokens.checksum() + " " + file->checksum(),
      .shape = {.kind = DataKind::kQuestions,
                .classes = static_cast<std::int64_t>(tokens.vocabulary()),
                .sequence = static_cast<std::int64_t>(file->sequence()),
                .special = tokens.special()},
      .size = file->size(),
      .read = [file, pad = pad->second](std::span<const std::uint64_t> samples) { return Read(*file, pad, samples); }};
}

}  // namespace cairn::trainer
