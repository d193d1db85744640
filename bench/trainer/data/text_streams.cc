#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "data/dataset.h"

namespace cairn::trainer {

Dataset TextStreams(const Tokens& tokens, std::int64_t sequence, std::uint64_t rows) {
  const auto length = static_cast<std::uint64_t>(sequence);
  // A row's last token is only predicted, so it may be the next row's first.
  const std::uint64_t row_tokens = tokens.size == 0 ? 0 : (tokens.size - 1) / rows;
  const std::uint64_t segments = row_tokens / length;
  if (segments == 0) {
    throw std::runtime_error(tokens.path + ": tokens: expected at least " + std::to_string(rows * length + 1) +
                             ", one more than --sequence " + std::to_string(length) + " for each row of --batch " +
                             std::to_string(rows) + ", found " + std::to_string(tokens.size));
  }
  const auto read = [read = tokens.read, length, rows, row_tokens](std::span<const std::uint64_t> samples) {
    const auto count = static_cast<std::int64_t>(samples.size());
    at::Tensor ids = at::empty({count, static_cast<std::int64_t>(length)}, at::kLong);
    at::Tensor labels = at::empty_like(ids);
    at::Tensor begins = at::empty({count}, at::kBool);
    std::vector<std::int64_t> segment(length + 1);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::uint64_t row = samples[i] % rows;
      const std::uint64_t number = samples[i] / rows;
      read(row * row_tokens + number * length, segment);
      std::copy(segment.begin(), segment.end() - 1, ids.mutable_data_ptr<std::int64_t>() + i * length);
      std::copy(segment.begin() + 1, segment.end(), labels.mutable_data_ptr<std::int64_t>() + i * length);
      begins.mutable_data_ptr<bool>()[i] = number == 0;
    }
    return Batch{{"input_ids", ids}, {"labels", labels}, {"begins", begins}};
  };
  return {.name = tokens.name + " in " + std::to_string(rows) + " rows, by segments of " + std::to_string(length),
          .shape = {.kind = DataKind::kTextStreams,
                    .classes = static_cast<std::int64_t>(tokens.vocabulary),
                    .sequence = sequence,
                    .rows = static_cast<std::int64_t>(rows)},
          .size = segments * rows,
          .order = Order::kByNumber,
          .read = read};
}

}  // namespace cairn::trainer
