#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "advice/layouts.h"

namespace cairn::bench {

/// What an optimizer step writes a word of, and disks write at once: every tensor of a paced training has whole ones.
inline constexpr std::uint64_t kSector = 512;

struct NamedBytes {
  std::string name;
  std::uint64_t bytes = 0;
};
[[nodiscard]] std::uint64_t BytesOf(const std::vector<NamedBytes>& tensors);

/// What a model's tensors have, without padding.
[[nodiscard]] std::uint64_t DataBytes(const Model& model);
/// What a rank of a layout holds of a model, without padding, with `scale` of its bytes: whole sectors, at least one a
/// tensor, and together whole blocks.
[[nodiscard]] std::vector<NamedBytes> ScaledTensors(const Model& model, const Layout& layout, int rank, double scale);

}  // namespace cairn::bench
