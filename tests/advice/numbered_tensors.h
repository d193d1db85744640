#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "advice/layouts.h"
#include "advice/model_shapes.h"
#include "format/shard_header.h"
#include "restore/reshard.h"

namespace cairn {

/// Gives each element of logical tensors of one or two dimensions a number of its own.
class NumberedTensors {
 public:
  /// A GPT with wide enough elements: 32 bits in weights, 64 in the optimizer's tensors.
  static Model Gpt(GptSizes sizes) {
    sizes.kept.weights = DType::kU32;
    sizes.kept.optimizer = DType::kU64;
    return MakeGpt(sizes);
  }

  /// Writes a part's elements.
  void Write(const ShardTensor& tensor, std::byte* to) {
    const std::vector<std::int64_t>& global = tensor.part ? tensor.part->global_shape : tensor.shape;
    const Box box = BoxOf(tensor.shape, tensor.part);
    std::uint64_t elements = 1;
    for (const std::int64_t extent : global) elements *= static_cast<std::uint64_t>(extent);
    const auto [first, fresh] = first_number_.try_emplace(tensor.name, next_number_);
    if (fresh) next_number_ += elements;
    const std::size_t d = global.size() - 1;
    for (std::int64_t i = d == 0 ? 0 : box.begin[0]; i < (d == 0 ? 1 : box.end[0]); ++i) {
      for (std::int64_t j = box.begin[d]; j < box.end[d]; ++j, to += DTypeSize(tensor.dtype)) {
        const std::uint64_t number = first->second + static_cast<std::uint64_t>(i * global[d] + j);
        std::memcpy(to, &number, DTypeSize(tensor.dtype));
      }
    }
  }
  [[nodiscard]] std::string BytesOf(const ShardTensor& tensor) {
    std::string bytes(tensor.end - tensor.begin, '\0');
    Write(tensor, reinterpret_cast<std::byte*>(bytes.data()));
    return bytes;
  }

 private:
  std::map<std::string, std::uint64_t> first_number_;
  std::uint64_t next_number_ = 1;
};

}  // namespace cairn
