#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "format/shard_header.h"

namespace cairn {

/// A shard's header with these tensors, in this order; of each, `end` is its size in bytes.
inline ShardHeader HeaderOf(std::vector<ShardTensor> tensors, std::uint64_t shard = 0) {
  ShardHeader header;
  header.shard = shard;
  header.data_begin = kBlock;
  for (ShardTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.end;
    tensor.begin = header.data_bytes();
    tensor.end = tensor.begin + bytes;
    header.tensors.push_back(std::move(tensor));
  }
  header.sums.resize(DivideUp(header.data_bytes(), kChecksumBlock));
  return header;
}

/// A whole tensor of one dimension, for HeaderOf.
inline ShardTensor Floats(const std::string& name, std::int64_t count) {
  return {.name = name, .dtype = DType::kF32, .shape = {count}, .end = static_cast<std::uint64_t>(count) * 4};
}

/// A part of the floats `logical`, for HeaderOf.
inline ShardTensor PartOf(const std::string& logical, std::vector<std::int64_t> global,
                          std::vector<std::int64_t> offset, std::vector<std::int64_t> shape,
                          DType dtype = DType::kF32) {
  ShardTensor tensor{.name = logical, .dtype = dtype, .shape = std::move(shape), .end = DTypeSize(dtype)};
  for (const std::int64_t size : tensor.shape) tensor.end *= static_cast<std::uint64_t>(size);
  tensor.part = {.logical_name = logical, .global_shape = std::move(global), .offset = std::move(offset)};
  return tensor;
}

}  // namespace cairn
