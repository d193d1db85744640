#include "engine/snapshot.h"

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "support/tensors.h"

namespace cairn {
namespace {

// Reads the stream as the engine does, `chunk` bytes at a time.
std::vector<std::byte> ReadStream(const Snapshot& snapshot, std::uint64_t chunk) {
  std::vector<std::byte> stream(snapshot.bytes());
  for (std::uint64_t begin = 0; begin < stream.size(); begin += chunk) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + chunk, stream.size());
    std::byte* expected = stream.data() + begin;
    for (const Snapshot::Piece& piece : snapshot.Pieces(begin, end, stream.data() + begin)) {
      EXPECT_EQ(piece.copy.memory, expected) << "pieces are contiguous";
      GatherBytes(*piece.copy.tensor, piece.copy.begin, piece.copy.end, piece.copy.memory);
      expected += piece.copy.end - piece.copy.begin;
    }
    EXPECT_EQ(expected, stream.data() + end);
  }
  return stream;
}

TEST(Snapshot, StreamsTensorsInTheOrderOfAShard) {
  Tensors tensors;
  tensors.Add("b", 1000, DType::kF32);
  tensors.Add("a", 70'000, DType::kF32);
  tensors.Add("empty", 0, DType::kF32);
  tensors.Add("z", 3, DType::kI64);
  tensors.Add("bytes", 5, DType::kU8);
  tensors.Fill(1);
  Snapshot snapshot(tensors.state().table(), {});
  snapshot.LayOut(4096);

  std::vector<std::byte> expected;
  for (const std::size_t i : {3, 0, 1, 4}) {
    expected.insert(expected.end(), tensors.memory()[i].begin(), tensors.memory()[i].end());
  }
  EXPECT_EQ(ReadStream(snapshot, 4096), expected);
  EXPECT_EQ(ReadStream(snapshot, 1), expected);
  EXPECT_EQ(ReadStream(snapshot, expected.size()), expected);
  const ShardHeader header = snapshot.Header(7, "uuid", 0, true);
  EXPECT_EQ(header.tensors[0].name, "z");
  EXPECT_EQ(header.tensors[1].begin, 24U);
  EXPECT_EQ(header.tensors[1].end, header.tensors[2].begin);
}

TEST(Snapshot, TextsOfLongValuesFollowTheTensors) {
  Tensors tensors;
  tensors.Add("a", 70'000, DType::kF32);
  tensors.Add("cairn.values/long", 5, DType::kU8);
  tensors.Fill(1);
  const std::string text = '"' + std::string(kLongValueBytes, 'x') + '"';
  Snapshot snapshot(tensors.state().table(),
                    {{"long", Json{text}}, {"lr", 0.5}, {"short", Json{"[1]"}}, {"string", std::string(text)}});
  snapshot.LayOut(4096);

  std::vector<std::byte> expected = tensors.memory()[0];
  expected.insert(expected.end(), tensors.memory()[1].begin(), tensors.memory()[1].end());
  const std::uint64_t begin = expected.size();
  const Bytes bytes = std::as_bytes(std::span(text));
  expected.insert(expected.end(), bytes.begin(), bytes.end());
  EXPECT_TRUE(ReadStream(snapshot, 4096) == expected);
  EXPECT_TRUE(snapshot.has_long_values());
  const ShardHeader header = snapshot.Header(7, "uuid", 0, true);
  EXPECT_EQ(header.values.size(), 3U);
  EXPECT_EQ(header.long_values, (std::vector{LongValue{.name = "long",
                                                       .tensor = "cairn.values/long'",
                                                       .begin = begin,
                                                       .end = begin + text.size(),
                                                       .crc32c = Crc32c(bytes)}}));
  EXPECT_EQ(snapshot.NameAt(begin), "cairn.values/long'");
}

// Three tensors of which the first and the last are kept.
struct Divided {
  Divided() {
    tensors.Add("a", 1500, DType::kI64);
    tensors.Add("b", 1100, DType::kF32);
    tensors.Add("c", 3, DType::kU8);
    tensors.Fill(1);
  }
  // Whether the chunk is what the tensor has from there on.
  bool Has(const Snapshot& snapshot, std::uint64_t begin, std::size_t tensor, std::uint64_t at) {
    std::vector<std::byte> chunk(snapshot.ChunkEnd(begin) - begin);
    for (const Snapshot::Piece& piece : snapshot.Pieces(begin, snapshot.ChunkEnd(begin), chunk.data())) {
      GatherBytes(*piece.copy.tensor, piece.copy.begin, piece.copy.end, piece.copy.memory);
    }
    const std::vector<std::byte>& all = tensors.memory()[tensor];
    const std::uint64_t held = std::min<std::uint64_t>(chunk.size(), all.size() - at);
    return std::equal(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(held),
                      all.begin() + static_cast<std::ptrdiff_t>(at));
  }
  Tensors tensors;
};

TEST(Snapshot, WhatIsKeptFollowsTheTexts) {
  const std::string text = '"' + std::string(kLongValueBytes, 'x') + '"';
  for (const bool linked : {false, true}) {
    Divided divided;
    Snapshot snapshot(divided.tensors.state().table(), {{"long", Json{text}}});

    snapshot.LayOut(4096, {.holds = {true, false, true}, .linked = linked});

    EXPECT_EQ(snapshot.shard_bytes(), 4400U + text.size());
    EXPECT_EQ(snapshot.kept_bytes(), linked ? 0U : 12'003U);
    EXPECT_EQ(snapshot.Header(7, "uuid", 0, true).long_values.size(), 1U);
    if (!linked) {
      EXPECT_TRUE(snapshot.Header(7, "uuid", 0, true, true).long_values.empty());
      EXPECT_TRUE(divided.Has(snapshot, snapshot.kept_begin(), 0, 0));
    }
  }
}

TEST(Snapshot, WhatIsKeptBeginsWithAChunkOfItsOwn) {
  Divided divided;
  Snapshot snapshot(divided.tensors.state().table(), {{"lr", Value(0.5)}});

  snapshot.LayOut(4096, {.holds = {true, false, true}});

  EXPECT_EQ(snapshot.shard_bytes(), 4400U);
  EXPECT_EQ(snapshot.kept_bytes(), 12'003U);
  EXPECT_EQ(snapshot.bytes(), 2U * 4096 + 12'003);
  std::vector<std::uint64_t> chunks;
  for (std::uint64_t at = 0; at < snapshot.bytes(); at = snapshot.NextChunk(at)) {
    chunks.push_back(snapshot.ChunkEnd(at) - at);
    EXPECT_EQ(snapshot.IsKept(at), at >= 8192);
  }
  EXPECT_EQ(chunks, (std::vector<std::uint64_t>{4096, 304, 4096, 4096, 3811}));
  EXPECT_TRUE(divided.Has(snapshot, 0, 1, 0));
  EXPECT_TRUE(divided.Has(snapshot, 4096, 1, 4096));
  EXPECT_TRUE(divided.Has(snapshot, 8192, 0, 0));
  EXPECT_TRUE(divided.Has(snapshot, 16'384, 0, 8192));
  const std::vector<Snapshot::Run> runs = snapshot.Runs(16'384, snapshot.bytes());
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].bytes, 12'000U - 8192);
  EXPECT_EQ(runs[1].dtype, DType::kU8);
  const ShardHeader shard = snapshot.Header(7, "uuid", 0, true);
  const ShardHeader kept = snapshot.Header(7, "uuid", 0, true, /*of_kept=*/true);
  ASSERT_EQ(shard.tensors.size(), 1U);
  EXPECT_EQ(shard.tensors[0].end, 4400U);
  EXPECT_EQ(shard.values.size(), 1U);
  ASSERT_EQ(kept.tensors.size(), 2U);
  EXPECT_EQ(kept.tensors[1].name, "c");
  EXPECT_EQ(kept.tensors[1].begin, 12'000U);
  EXPECT_TRUE(kept.values.empty());
}

TEST(Snapshot, WhatIsLinkedIsNotInTheStream) {
  Divided divided;
  Snapshot snapshot(divided.tensors.state().table(), {});

  snapshot.LayOut(4096, {.holds = {true, false, true}, .linked = true});

  EXPECT_EQ(snapshot.bytes(), 4400U);
  EXPECT_EQ(snapshot.kept_bytes(), 0U);
  EXPECT_TRUE(divided.Has(snapshot, 0, 1, 0));
  EXPECT_EQ(snapshot.Header(7, "uuid", 0, true).tensors.size(), 1U);
}

TEST(Snapshot, AllMayBeKept) {
  Divided divided;
  Snapshot snapshot(divided.tensors.state().table(), {});

  snapshot.LayOut(4096, {.holds = {true, true, true}});

  EXPECT_EQ(snapshot.shard_bytes(), 0U);
  EXPECT_EQ(snapshot.bytes(), snapshot.kept_bytes());
  EXPECT_TRUE(snapshot.IsKept(0));
  EXPECT_TRUE(divided.Has(snapshot, 0, 0, 0));
  EXPECT_TRUE(snapshot.Header(7, "uuid", 0, true).tensors.empty());
}

TEST(Snapshot, CopiesSmallCpuTensorsAtOnce) {
  Tensors tensors;
  tensors.Add("small", kSmallTensorBytes, DType::kU8);
  tensors.Fill(1);
  Snapshot snapshot(tensors.state().table(), {});
  const std::vector<std::byte> before = tensors.memory()[0];

  tensors.Fill(2);

  snapshot.LayOut(4096);
  EXPECT_FALSE(snapshot.reads_cpu());
  EXPECT_EQ(ReadStream(snapshot, 4096), before);
}

TEST(Snapshot, CopiesUpToTheTotalLimit) {
  Tensors tensors = Tensors::Many(kSmallTensorsTotal / kSmallTensorBytes + 1, kSmallTensorBytes / sizeof(float));
  const Snapshot snapshot(tensors.state().table(), {});

  EXPECT_TRUE(snapshot.reads_cpu());
  EXPECT_EQ(tensors.state().table()->small_bytes(), kSmallTensorsTotal);
}

TEST(Snapshot, WritesTiedTensorsOnce) {
  std::vector<float> memory(10);
  const TensorView view{.data = memory.data(), .shape = {10}};
  State state;
  ASSERT_TRUE(state.Add("head", view).ok());
  ASSERT_TRUE(state.Add("embedding", view).ok());
  Snapshot snapshot(state.table(), {});
  snapshot.LayOut(4096);

  EXPECT_EQ(snapshot.bytes(), 40U);
  EXPECT_EQ(snapshot.Header(1, "u", 0, true).aliases, (std::map<std::string, std::string>{{"embedding", "head"}}));
}

}  // namespace
}  // namespace cairn
