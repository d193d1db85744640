#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/shard_header.h"

namespace cairn {

/// `json` after its length word.
inline std::string WithLength(std::string_view json) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(static_cast<std::uint64_t>(json.size()) >> shift & 0xff);
  }
  return bytes.append(json);
}

inline Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Decodes a header with this JSON, of a file with `data_bytes` of data.
inline Result<ShardHeader> DecodeJson(std::string_view json, std::uint64_t data_bytes) {
  const std::string bytes = WithLength(json);
  return DecodeShardHeader(AsBytes(bytes), bytes.size() + data_bytes, "x.safetensors");
}

/// A header that uses every field: dtypes, parts, an alias, values, one of them long, checksums.
inline ShardHeader RichHeader() {
  ShardHeader header;
  header.step = 1000;
  header.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
  header.shard = 3;
  header.tensors = {
      {.name = "step", .dtype = DType::kI64, .shape = {}, .begin = 0, .end = 8},
      {.name = "model.weight",
       .dtype = DType::kF32,
       .shape = {512, 1024},
       .begin = 8,
       .end = 2097160,
       .part = TensorPart{.logical_name = "weight", .global_shape = {2048, 1024}, .offset = {512, 0}}},
      {.name = "empty", .dtype = DType::kBF16, .shape = {0, 7}, .begin = 2097160, .end = 2097160},
      {.name = "quo\"te \\ tab\t nul" + std::string(1, '\0') + " \x7f \xc3\xa9 \xf0\x9f\x90\xa7",
       .dtype = DType::kU8,
       .shape = {3},
       .begin = 2097160,
       .end = 2097163},
  };
  header.aliases = {{"lm_head.weight", "model.weight"}};
  header.values = {{"epoch", std::int64_t{7}}, {"lr", 0.1}, {"note", std::string("\"a\"\n")}, {"plan", Json{"[1, 2]"}}};
  header.long_values = {
      {.name = "log", .tensor = "cairn.values/log", .begin = 2097163, .end = 2097168, .crc32c = 0x0badcafe}};
  header.metadata = {{"format", "pt"}};
  return header;
}

}  // namespace cairn
