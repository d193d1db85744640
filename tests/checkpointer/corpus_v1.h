#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"

namespace cairn {

/// The states in tests/format/corpus-v1: what its generator saved and every later reader must restore.
///
/// A tensor's bytes are a function of its logical name, the step and their position in the whole tensor, so that a part
/// of any cut can be checked. tests/python/corpus_v1.py has the same function. None of this may change, because the
/// files do not.
class CorpusState {
 public:
  void Add(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
           std::optional<TensorPart> part = std::nullopt);
  /// Adds its tensors to another state, as frozen ones.
  void FreezeIn(State& state) const;
  /// Gives the tensor `holder` a second name.
  void Tie(const std::string& name, const std::string& holder);

  /// Fills every tensor with its contents at `step`.
  void Fill(std::uint64_t step);
  /// Names of tensors that differ in any bit from their contents at `step`.
  [[nodiscard]] std::vector<std::string> Wrong(std::uint64_t step) const;
  [[nodiscard]] State& state() { return state_; }

 private:
  struct Tensor {
    std::string name;
    TensorView view;
    std::vector<std::byte> memory;
  };

  static std::vector<std::byte> Contents(const Tensor& tensor, std::uint64_t step);

  std::vector<Tensor> tensors_;
  State state_;
};

/// Every dtype as a scalar, empty and with two dimensions; a name that JSON escapes; tied tensors.
[[nodiscard]] CorpusState CorpusSingle();
[[nodiscard]] Values CorpusSingleValues(std::uint64_t step);

constexpr int kCorpusRanks = 3;
/// The tensors of rank `rank` of `world`: cut by rows, columns and boxes (one of rank 2 of 3 has no rows), a tied part,
/// replicated tensors, and tensors of single ranks. Saved by kCorpusRanks, restored by any number.
[[nodiscard]] CorpusState CorpusRank(int rank, int world);
[[nodiscard]] Replicated CorpusReplicated();
[[nodiscard]] Values CorpusRankValues(int rank);

/// Two checksum blocks of data, with a tensor across a block boundary. Most bytes are zero.
[[nodiscard]] CorpusState CorpusLarge();
/// A frozen tensor of more than 1 MiB, beside CorpusUnchecked's. Most bytes are zero.
[[nodiscard]] CorpusState CorpusFrozen();
/// Two small tensors.
[[nodiscard]] CorpusState CorpusUnchecked();

}  // namespace cairn
