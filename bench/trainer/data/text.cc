#include <ATen/ops/empty.h>

#include <stdexcept>

#include "data/dataset.h"

namespace cairn::trainer {

Dataset TextDataset(const Tokens& tokens, std::int64_t sequence) {
  const auto length = static_cast<std::uint64_t>(sequence);
  if (tokens.size < length) {
    throw std::runtime_error(tokens.path + ": tokens: expected at least --sequence " + std::to_string(length) +
                             ", found " + std::to_string(tokens.size));
  }
  const auto read = [read = tokens.read, length](std::span<const std::uint64_t> samples) {
    const auto count = static_cast<std::int64_t>(samples.size());
    at::Tensor ids = at::empty({count, static_cast<std::int64_t>(length)}, at::kLong);
    auto* const out = ids.mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < samples.size(); ++i) read(samples[i] * length, {out + i * length, length});
    return Batch{{"input_ids", ids}};
  };
  return {
      .name = tokens.name + " in sequences of " + std::to_string(length),
      .shape = {.kind = DataKind::kText, .classes = static_cast<std::int64_t>(tokens.vocabulary), .sequence = sequence},
      .size = tokens.size / length,
      .read = read};
}

}  // namespace cairn::trainer
