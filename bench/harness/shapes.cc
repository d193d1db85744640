#include "bench/harness/shapes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/bytes.h"
#include "format/fields.h"

namespace cairn::bench {

std::uint64_t BytesOf(const std::vector<NamedBytes>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const NamedBytes& tensor) { return sum + tensor.bytes; });
}

std::uint64_t DataBytes(const Model& model) {
  std::uint64_t bytes = 0;
  for (const ModelTensor& tensor : model.tensors) bytes += TensorBytes(tensor.dtype, tensor.shape).value_or(0);
  return bytes;
}

std::vector<NamedBytes> ScaledTensors(const Model& model, const Layout& layout, int rank, double scale) {
  std::vector<NamedBytes> tensors;
  std::uint64_t unscaled = 0;
  std::uint64_t all = 0;
  for (const ShardTensor& held : TensorsOf(model, layout, rank)) {
    if (IsPadding(held.name)) continue;
    unscaled += held.end;
    // Where it would end, so that roundings do not add up.
    const auto end = AlignUp(static_cast<std::uint64_t>(std::ceil(static_cast<double>(unscaled) * scale)), kSector);
    const std::uint64_t bytes = end < all + kSector ? kSector : end - all;
    tensors.push_back({held.name, bytes});
    all += bytes;
  }
  tensors.back().bytes += AlignUp(all, kBlock) - all;
  return tensors;
}

}  // namespace cairn::bench
