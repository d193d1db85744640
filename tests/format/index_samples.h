#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "format/fields.h"
#include "format/index.h"
#include "format/shard_bytes.h"

namespace cairn {

// Sample shards, and helpers that expand their index.

inline void AddTensor(ShardHeader& header, ShardTensor tensor) {
  tensor.begin = header.data_bytes();
  tensor.end = tensor.begin + TensorBytes(tensor.dtype, tensor.shape).value();
  header.tensors.push_back(std::move(tensor));
}

inline void AddWhole(ShardHeader& header, std::string name, std::vector<std::int64_t> shape) {
  AddTensor(header, {.name = std::move(name), .shape = std::move(shape)});
}

/// `stored` is the tensor's own name if it differs from the logical name.
inline void AddPart(ShardHeader& header, const std::string& name, std::vector<std::int64_t> whole,
                    std::vector<std::int64_t> offset, std::vector<std::int64_t> shape, const std::string& stored = {}) {
  AddTensor(header, {.name = stored.empty() ? name : stored,
                     .shape = std::move(shape),
                     .part = TensorPart{name, std::move(whole), std::move(offset)}});
}

/// Four shards: all of "bias" in the first, and "weight" of 8 rows split over all.
inline std::vector<ShardHeader> DocumentedIndex() {
  std::vector<ShardHeader> shards(4);
  AddWhole(shards[0], "bias", {3});
  for (std::int64_t i = 0; i < 4; ++i) AddPart(shards[i], "weight", {8, 3}, {2 * i, 0}, {2, 3});
  return shards;
}

inline std::string LayerName(std::size_t i) {
  return fmt::format("model.layers.{}.mlp.{}_proj.weight", i / 3, i % 3 == 0 ? "down" : i % 3 == 1 ? "gate" : "up");
}

/// Every tensor is split along its rows into one part for each shard.
inline std::vector<ShardHeader> EvenlyCut(std::size_t shards, std::size_t tensors) {
  std::vector<ShardHeader> headers(shards);
  for (std::size_t s = 0; s < shards; ++s) {
    for (std::size_t t = 0; t < tensors; ++t) {
      const auto ranks = static_cast<std::int64_t>(shards);
      AddPart(headers[s], LayerName(t), {ranks * 4, 4096}, {static_cast<std::int64_t>(s) * 4, 0}, {4, 4096});
    }
  }
  return headers;
}

/// Unique names. Sorted, the shards' names interleave.
inline std::vector<ShardHeader> ManyNames(std::size_t shards, std::size_t tensors) {
  std::vector<ShardHeader> headers(shards);
  for (std::size_t s = 0; s < shards; ++s) {
    for (std::size_t t = 0; t < tensors; ++t) AddWhole(headers[s], fmt::format("{}.rank{}", LayerName(t), s), {16});
  }
  return headers;
}

inline std::vector<std::string> RunsOf(const std::vector<ShardHeader>& shards) {
  std::vector<std::string> runs;
  for (const ShardHeader& header : shards) runs.push_back(EncodeIndexRun(header));
  return runs;
}

inline std::optional<BuiltIndex> Build(const std::vector<ShardHeader>& shards) { return BuildIndex(RunsOf(shards)); }

inline ManifestIndex MemberOf(const BuiltIndex& built) {
  return {.file = "index.cairn", .length = built.bytes.size(), .head = built.head_bytes, .digest = built.head_digest};
}

inline Result<IndexHead> DecodeHead(const BuiltIndex& built, std::uint64_t shards) {
  return IndexHead::Decode(AsBytes(built.bytes).last(built.head_bytes), MemberOf(built), shards, "step/index.cairn");
}

inline Bytes BlockOf(const BuiltIndex& built, const IndexHead::Block& block) {
  return AsBytes(built.bytes).subspan(block.begin, block.length);
}

using Entry = std::pair<std::string, IndexPieces>;

inline std::vector<Entry> EntriesOfBlock(const BuiltIndex& built, const IndexHead::Block& block, std::uint64_t shards) {
  std::vector<Entry> entries;
  const Status read = ReadIndexBlock(BlockOf(built, block), block, shards, "step/index.cairn",
                                     [&](std::string_view name, const IndexPieces& pieces) {
                                       entries.emplace_back(name, pieces);
                                       return true;
                                     });
  EXPECT_TRUE(read.ok()) << read;
  return entries;
}

/// All entries of these shards' index, in order.
inline std::vector<Entry> EntriesOf(const std::vector<ShardHeader>& shards) {
  std::vector<Entry> entries;
  const auto built = Build(shards);
  EXPECT_TRUE(built);
  if (!built) return entries;
  const auto head = DecodeHead(*built, shards.size());
  EXPECT_TRUE(head.ok()) << head.status();
  if (!head.ok()) return entries;
  for (const IndexHead::Block& block : head->blocks()) {
    for (Entry& entry : EntriesOfBlock(*built, block, shards.size())) entries.push_back(std::move(entry));
  }
  return entries;
}

/// Name, shard, offset, shape.
using Piece = std::tuple<std::string, std::uint32_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;

/// Each piece of each sequence. Fails on duplicates.
inline std::set<Piece> PiecesOf(const std::vector<Entry>& entries) {
  std::set<Piece> pieces;
  for (const auto& [name, sequence] : entries) {
    std::vector<std::int64_t> offset = sequence.offset;
    for (std::uint32_t k = 0; k < sequence.count; ++k) {
      EXPECT_TRUE(pieces.emplace(name, sequence.shard + k * sequence.shard_step, offset, sequence.shape).second)
          << name;
      if (!offset.empty()) offset[sequence.along] += sequence.offset_step;
    }
  }
  return pieces;
}

/// The pieces that the shards' headers list.
inline std::set<Piece> PiecesOf(const std::vector<ShardHeader>& shards) {
  std::set<Piece> pieces;
  for (std::uint32_t s = 0; s < shards.size(); ++s) {
    for (const ShardTensor& tensor : shards[s].tensors) {
      if (tensor.part) {
        pieces.emplace(tensor.part->logical_name, s, tensor.part->offset, tensor.shape);
      } else {
        pieces.emplace(tensor.name, s, std::vector<std::int64_t>(), std::vector<std::int64_t>());
      }
    }
  }
  return pieces;
}

inline std::string HexOf(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<unsigned char>(c));
  return text;
}

}  // namespace cairn
