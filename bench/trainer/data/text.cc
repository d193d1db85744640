#include <ATen/ops/empty.h>

#include <memory>
#include <stdexcept>

#include "data/dataset.h"
#include "data/token_file.h"

namespace cairn::trainer {

Dataset TextDataset(const std::string& folder, std::int64_t sequence) {
  const auto file = std::make_shared<const TokenFile>(folder);
  const auto length = static_cast<std::uint64_t>(sequence);
  if (file->size() < length) {
    throw std::runtime_error(folder + "/data.json: tokens: expected at least --sequence " + std::to_string(length) +
                             ", found " + std::to_string(file->size()));
  }
  const auto read = [file, length](std::span<const std::uint64_t> samples) {
    const auto count = static_cast<std::int64_t>(samples.size());
    at::Tensor ids = at::empty({count, static_cast<std::int64_t>(length)}, at::kLong);
    auto* const out = ids.mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < samples.size(); ++i) file->Read(samples[i] * length, {out + i * length, length});
    return Batch{{"input_ids", ids}};
  };
  // By what it holds, not by where it lies: the same tokens elsewhere are the same data.
  return {.name = "text " + file->checksum() + " in sequences of " + std::to_string(length),
          .shape = {.kind = DataKind::kText,
                    .classes = static_cast<std::int64_t>(file->vocabulary()),
                    .sequence = sequence},
          .size = file->size() / length,
          .read = read};
}

}  // namespace cairn::trainer
