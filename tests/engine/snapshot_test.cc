#include "engine/snapshot.h"

#include <gtest/gtest.h>

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
  snapshot.LayOut();

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

TEST(Snapshot, CopiesSmallCpuTensorsAtOnce) {
  Tensors tensors;
  tensors.Add("small", kSmallTensorBytes, DType::kU8);
  tensors.Fill(1);
  Snapshot snapshot(tensors.state().table(), {});
  const std::vector<std::byte> before = tensors.memory()[0];

  tensors.Fill(2);

  snapshot.LayOut();
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
  snapshot.LayOut();

  EXPECT_EQ(snapshot.bytes(), 40U);
  EXPECT_EQ(snapshot.Header(1, "u", 0, true).aliases, (std::map<std::string, std::string>{{"embedding", "head"}}));
}

}  // namespace
}  // namespace cairn
