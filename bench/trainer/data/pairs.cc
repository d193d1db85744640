#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>

#include "data/dataset.h"
#include "data/synthetic.h"

namespace cairn::trainer {
namespace {

constexpr std::uint64_t kFrame = 3;  // [CLS], and [SEP] after A and after B.

/// Cuts the tokens into samples of `sequence - kFrame`. A is the beginning of a sample, B the end of the same or
/// another one.
class Pairs {
 public:
  Pairs(const Tokens& tokens, std::uint64_t sequence)
      : read_(tokens.read),
        sequence_(sequence),
        words_(sequence - kFrame),
        size_(tokens.size / words_),
        cls_(tokens.Special("[CLS]")),
        sep_(tokens.Special("[SEP]")) {}

  [[nodiscard]] std::uint64_t size() const { return size_; }

  [[nodiscard]] Batch Read(std::span<const std::uint64_t> samples) const {
    const auto count = static_cast<std::int64_t>(samples.size());
    const auto length = static_cast<std::int64_t>(sequence_);
    at::Tensor ids = at::empty({count, length}, at::kLong);
    at::Tensor types = at::empty({count, length}, at::kLong);
    at::Tensor label = at::empty({count}, at::kLong);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const bool follows = samples[i] % 2 == 0;
      label.mutable_data_ptr<std::int64_t>()[i] = follows ? 0 : 1;
      Write(samples[i], follows ? samples[i] : Other(samples[i]),
            {ids.mutable_data_ptr<std::int64_t>() + i * sequence_, sequence_},
            {types.mutable_data_ptr<std::int64_t>() + i * sequence_, sequence_});
    }
    return {{"input_ids", ids}, {"token_type_ids", types}, {"next_sentence_label", label}};
  }

 private:
  [[nodiscard]] std::uint64_t Other(std::uint64_t sample) const {
    return (sample + 1 + Noise(2 * sample) % (size_ - 1)) % size_;
  }

  void Write(std::uint64_t a, std::uint64_t b, std::span<std::int64_t> ids, std::span<std::int64_t> types) const {
    const std::uint64_t cut = 1 + Noise(2 * a + 1) % (words_ - 1);
    ids.front() = cls_;
    read_(a * words_, ids.subspan(1, cut));
    ids[1 + cut] = sep_;
    read_(b * words_ + cut, ids.subspan(2 + cut, words_ - cut));
    ids.back() = sep_;
    const auto second = types.begin() + static_cast<std::ptrdiff_t>(2 + cut);
    std::fill(types.begin(), second, 0);
    std::fill(second, types.end(), 1);
  }

  std::function<void(std::uint64_t, std::span<std::int64_t>)> read_;
  std::uint64_t sequence_;
  /// Tokens in a sample, without the special ones.
  std::uint64_t words_;
  std::uint64_t size_;
  std::int64_t cls_, sep_;
};

}  // namespace

Dataset PairsDataset(const Tokens& tokens, std::int64_t sequence) {
  const auto length = static_cast<std::uint64_t>(sequence);
  if (length < kFrame + 2) {
    throw std::runtime_error("--sequence " + std::to_string(length) + ": expected at least " +
                             std::to_string(kFrame + 2) + ", [CLS] A [SEP] B [SEP]");
  }
  if (const std::uint64_t least = 2 * (length - kFrame); tokens.size < least) {
    throw std::runtime_error(tokens.path + ": tokens: expected at least " + std::to_string(least) +
                             ", two samples of --sequence " + std::to_string(length) + ", found " +
                             std::to_string(tokens.size));
  }
  static_cast<void>(tokens.Special("[MASK]"));  // Checked for the model, whose error could not name the file.
  const Pairs pairs(tokens, length);
  return {.name = tokens.name + " in pairs of " + std::to_string(length),
          .shape = {.kind = DataKind::kPairs,
                    .classes = static_cast<std::int64_t>(tokens.vocabulary),
                    .sequence = sequence,
                    .special = tokens.special},
          .size = pairs.size(),
          .read = [pairs](std::span<const std::uint64_t> samples) { return pairs.Read(samples); }};
}

}  // namespace cairn::trainer
