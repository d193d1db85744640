#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "format/index.h"
#include "format/index_bytes.h"
#include "format/index_samples.h"
#include "format/shard_bytes.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kShards = 16;
constexpr std::uint64_t kFar = std::uint64_t{1} << 62;

// Reads these bytes as a block at byte 100 of the file, with a valid digest.
Status ReadBlock(const std::string& bytes, const std::string& first_name = "w", std::uint64_t shards = kShards) {
  const IndexHead::Block which{
      .first_name = first_name, .begin = 100, .length = bytes.size(), .digest = Crc32c(AsBytes(bytes))};
  return ReadIndexBlock(AsBytes(bytes), which, shards, "step/index.cairn",
                        [](std::string_view, const IndexPieces&) { return true; });
}

std::string Numbers(std::initializer_list<std::uint64_t> numbers) {
  std::string bytes;
  for (const std::uint64_t number : numbers) AppendVarint(bytes, number);
  return bytes;
}

// An entry "w" with these numbers.
std::string W(std::initializer_list<std::uint64_t> numbers) { return std::string("\0\1w", 3) + Numbers(numbers); }

void ExpectBroken(const Status& status, const std::string& words, StatusCode code = StatusCode::kCorrupt) {
  EXPECT_EQ(status.code(), code) << "expected: " << words << ", found: " << status;
  EXPECT_THAT(status.message(), HasSubstr("step/index.cairn: " + words));
}

void ExpectBrokenEntry(const std::string& bytes, const std::string& words, int entry = 0) {
  ExpectBroken(ReadBlock(bytes), "block at 100: entry " + std::to_string(entry) + ": " + words);
}

TEST(IndexBlockCorruption, ValidBlocksAreAccepted) {
  for (const std::string& bytes : {W({0, 15}), W({1, 0, 16, 1}), W({1, 1, 8, 2}), W({4, 0, 1, 2, 3, 4}),
                                   W({5, 0, 4, 1, 1, 2, 0, 0, 7, 2}), W({5, 0, 2, 1, 0, kFar - 2, 1, 0, 1, 0}),
                                   W({2, 0, kFar, 0}), W({2, 0, 0, kFar}), W({4, 0, 0, 0, kFar / 4, 4})}) {
    const Status read = ReadBlock(bytes);
    EXPECT_TRUE(read.ok()) << HexOf(bytes) << ": " << read;
  }
}

TEST(IndexBlockCorruption, AnyFlippedBitIsDetected) {
  const auto built = Build(DocumentedIndex());
  ASSERT_TRUE(built);
  const auto head = DecodeHead(*built, 4);
  ASSERT_TRUE(head.ok()) << head.status();
  const IndexHead::Block& which = head->blocks()[0];
  std::string bytes = built->bytes.substr(which.begin, which.length);

  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    const Status read = ReadIndexBlock(AsBytes(bytes), which, 4, "step/index.cairn", {});
    ASSERT_NO_FATAL_FAILURE(ExpectBroken(read, "block at 0: digest: expected "));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(IndexBlockCorruption, Length) {
  const std::string bytes = W({0, 0});
  const IndexHead::Block which{.first_name = "w", .length = 7, .digest = Crc32c(AsBytes(bytes))};

  ExpectBroken(ReadIndexBlock(AsBytes(bytes), which, kShards, "step/index.cairn", {}),
               "block at 0: expected 7 bytes, found 5");
}

TEST(IndexBlockCorruption, EndsEarlyAtEveryByte) {
  const std::string bytes = W({5, 0, 4, 1, 1, 2, 0, 0, 7, 2});

  for (std::size_t n = 1; n < bytes.size(); ++n) EXPECT_FALSE(ReadBlock(bytes.substr(0, n)).ok()) << n;
}

TEST(IndexBlockCorruption, Name) {
  const std::string expected = "name: expected at most 4096 bytes that sort after ";
  const std::string first = W({0, 0});
  ExpectBroken(ReadBlock(first, "v"), "block at 100: entry 0: name: expected \"v\" as in the head, found \"w\"");
  // Shares more bytes than the previous name has.
  ExpectBrokenEntry(std::string("\1\0", 2) + Numbers({0, 0}), expected + "\"\"");
  ExpectBrokenEntry(first + std::string("\2\0", 2) + Numbers({0, 0}), expected + "\"w\"", 1);
  // Sorts before; has another encoding of the same name; shares more bytes than it counts.
  ExpectBrokenEntry(first + std::string("\0\1v", 3) + Numbers({0, 0}), expected + "\"w\"", 1);
  ExpectBrokenEntry(first + W({0, 1}), expected + "\"w\"", 1);
  ExpectBrokenEntry(first + std::string("\0\2wx", 4) + Numbers({0, 0}), expected + "\"w\"", 1);
  ExpectBrokenEntry(first + std::string("\0\0", 2) + Numbers({0, 0}), expected + "\"w\"", 1);
  // Longer than the block, or than any name.
  ExpectBrokenEntry(first + std::string("\1\x7f", 2) + Numbers({0, 0}), expected + "\"w\"", 1);
  ExpectBrokenEntry(first + Numbers({1, 4096}) + std::string(4096, 'x') + Numbers({0, 0}), expected + "\"w\"", 1);
  ExpectBrokenEntry(first + Numbers({1, ~0ULL}) + Numbers({0, 0}), expected + "\"w\"", 1);
}

TEST(IndexBlockCorruption, NonAsciiNamesSortLast) {
  const std::string bytes = W({0, 0}) + std::string("\0\1\xff", 3) + Numbers({0, 0});

  EXPECT_TRUE(ReadBlock(bytes).ok());
}

TEST(IndexBlockCorruption, Form) {
  ExpectBrokenEntry(W({130, 0}), "form: expected at most 129, found 130");
  ExpectBrokenEntry(W({~0ULL, 0}), "form: expected at most 129, found 18446744073709551615");
}

TEST(IndexBlockCorruption, Shard) {
  ExpectBrokenEntry(W({0, 16}), "shard: expected below 16, found 16");
  ExpectBrokenEntry(W({0, 1ULL << 32}), "shard: expected below 16, found 4294967296");
  ExpectBroken(ReadBlock(W({0, 0}), "w", 0), "block at 100: entry 0: shard: expected below 0, found 0");
  ExpectBroken(ReadBlock(W({0, 1ULL << 32}), "w", ~0ULL),
               "block at 100: entry 0: shard: expected below 4294967296, found 4294967296");
}

TEST(IndexBlockCorruption, Count) {
  ExpectBrokenEntry(W({1, 0, 0, 1}), "count: expected at least 2, found 0");
  ExpectBrokenEntry(W({1, 0, 1, 1}), "count: expected at least 2, found 1");
  ExpectBrokenEntry(W({1, 0, 17, 1}), "count: expected shards below 16, found 17 of them from 0 in steps of 1");
  ExpectBrokenEntry(W({1, 1, 16, 1}), "count: expected shards below 16, found 16 of them from 1 in steps of 1");
  ExpectBrokenEntry(W({1, 0, 9, 2}), "count: expected shards below 16, found 9 of them from 0 in steps of 2");
  ExpectBrokenEntry(W({1, 0, 1ULL << 32, 1}), "count: expected at most 4294967295");
  ExpectBrokenEntry(W({1, 0, 0xffffffff, 0xffffffff}), "count: expected shards below 16");
}

TEST(IndexBlockCorruption, ShardStep) {
  ExpectBrokenEntry(W({1, 0, 2, 0}), "shard step: expected at least 1, found 0");
  ExpectBrokenEntry(W({1, 0, 2, 1ULL << 32}), "shard step: expected at most 4294967295");
}

TEST(IndexBlockCorruption, Along) {
  ExpectBrokenEntry(W({5, 0, 2, 1, 2, 0, 0, 0, 1, 1}), "along: expected at most 1, found 2");
}

TEST(IndexBlockCorruption, OffsetStep) {
  ExpectBrokenEntry(W({3, 0, 2, 1, 0, kFar + 1, 0, 1}), "offset step: expected at most 4611686018427387904");
  ExpectBrokenEntry(W({3, 0, 2, 1, 0, kFar, 0, 1}),
                    "offset step: expected pieces that end at most at 2^62, found 2 in steps of 4611686018427387904 "
                    "from [0]");
  ExpectBrokenEntry(W({3, 0, 16, 1, 0, kFar / 15, 0, 15}), "offset step: expected pieces that end at most at 2^62");
}

TEST(IndexBlockCorruption, Box) {
  ExpectBrokenEntry(W({2, 0, kFar + 1, 0}), "offset: expected at most 4611686018427387904");
  ExpectBrokenEntry(W({2, 0, 0, ~0ULL}), "shape: expected at most 4611686018427387904");
  ExpectBrokenEntry(W({2, 0, kFar, 1}), "expected an end of at most 2^62, found offset [4611686018427387904]");
  ExpectBrokenEntry(W({4, 0, 0, 0, 1ULL << 32, 1ULL << 32}), "expected at most 2^62 elements, found shape");
}

TEST(IndexBlockCorruption, NumbersWithOtherEncodings) {
  ExpectBrokenEntry(std::string("\0\1w\0\x81\0", 6), "shard: expected a number, found none");
  ExpectBrokenEntry(std::string("\0\1w\0", 4) + std::string(9, '\xff') + '\2', "shard: expected a number, found none");
  ExpectBrokenEntry(std::string("\0\1w\0", 4) + std::string(20, '\xff'), "shard: expected a number, found none");
}

// The head of two blocks of 4,096 and 10 bytes.
struct Head {
  std::uint64_t version = 1;
  std::uint64_t shards = kShards;
  std::uint64_t blocks = 2;
  std::string names[2] = {"a", "b"};
  std::uint64_t lengths[2] = {4096, 10};
  std::string more;
  // How much too large the manifest's length is.
  std::uint64_t off_by = 0;

  [[nodiscard]] std::string Bytes() const {
    std::string bytes = Numbers({version, shards, blocks});
    for (int i = 0; i < 2; ++i) {
      bytes += Numbers({names[i].size()}) + names[i] + Numbers({lengths[i]}) + "\x78\x56\x34\x12";
    }
    return bytes + more;
  }
  [[nodiscard]] Result<IndexHead> Decode() const {
    const std::string bytes = Bytes();
    return IndexHead::Decode(AsBytes(bytes),
                             {.file = "index.cairn",
                              .length = lengths[0] + lengths[1] + bytes.size() + off_by,
                              .head = bytes.size(),
                              .digest = Crc32c(AsBytes(bytes))},
                             kShards, "step/index.cairn");
  }
};

void ExpectBroken(const Head& head, const std::string& words, StatusCode code = StatusCode::kCorrupt) {
  const auto decoded = head.Decode();
  ASSERT_FALSE(decoded.ok()) << "expected: " << words;
  ExpectBroken(decoded.status(), words, code);
}

TEST(IndexHeadCorruption, ValidHeadIsAccepted) {
  const auto head = Head().Decode();

  ASSERT_TRUE(head.ok()) << head.status();
  ASSERT_EQ(head->blocks().size(), 2U);
  EXPECT_EQ(head->blocks()[1].first_name, "b");
  EXPECT_EQ(head->blocks()[1].begin, 4096U);
  EXPECT_EQ(head->blocks()[1].length, 10U);
  EXPECT_EQ(head->blocks()[1].digest, 0x12345678U);
}

TEST(IndexHeadCorruption, AnyFlippedBitIsDetected) {
  const auto built = Build(ManyNames(4, 3000));
  ASSERT_TRUE(built);
  std::string head = built->bytes.substr(built->bytes.size() - built->head_bytes);

  for (std::size_t bit = 0; bit < head.size() * 8; ++bit) {
    head[bit / 8] = static_cast<char>(head[bit / 8] ^ (1 << bit % 8));
    const auto decoded = IndexHead::Decode(AsBytes(head), MemberOf(*built), 4, "step/index.cairn");
    ASSERT_FALSE(decoded.ok()) << "bit " << bit;
    ASSERT_NO_FATAL_FAILURE(ExpectBroken(decoded.status(), "head: digest: expected "));
    head[bit / 8] = static_cast<char>(head[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(IndexHeadCorruption, EndsEarlyAtEveryByte) {
  const std::string bytes = Head().Bytes();

  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);
    const ManifestIndex index{.length = 4106 + n, .head = n, .digest = Crc32c(AsBytes(cut))};
    EXPECT_FALSE(IndexHead::Decode(AsBytes(cut), index, kShards, "i").ok()) << n;
  }
}

TEST(IndexHeadCorruption, Length) {
  const std::string bytes = Head().Bytes();
  const ManifestIndex index{.length = 5000, .head = bytes.size() + 1, .digest = Crc32c(AsBytes(bytes))};

  const auto decoded = IndexHead::Decode(AsBytes(bytes), index, kShards, "step/index.cairn");

  ASSERT_FALSE(decoded.ok());
  ExpectBroken(decoded.status(), "head: expected 19 bytes, found 18");
}

TEST(IndexHeadCorruption, Version) {
  for (const std::uint64_t version : {0ULL, 2ULL, ~0ULL}) {
    ExpectBroken(Head{.version = version}, "version: expected 1, found " + std::to_string(version),
                 StatusCode::kUnsupported);
  }
}

TEST(IndexHeadCorruption, Shards) {
  ExpectBroken(Head{.shards = 15}, "head: shards: expected 16 as in the manifest, found 15");
}

TEST(IndexHeadCorruption, Blocks) {
  ExpectBroken(Head{.blocks = 3}, "head: blocks: expected at most 2, found 3");
  ExpectBroken(Head{.blocks = ~0ULL}, "head: blocks: expected at most 2, found 18446744073709551615");
  ExpectBroken(Head{.blocks = 1}, "head: expected its end after the last block, found more bytes");
  ExpectBroken(Head{.more = "x"}, "head: expected its end after the last block, found more bytes");
}

TEST(IndexHeadCorruption, BlocksOfALongFile) {
  // The file could hold this many blocks, but the head could not.
  ExpectBroken(Head{.blocks = 100, .off_by = 1U << 20}, "head: blocks: expected at most 3, found 100");
}

TEST(IndexHeadCorruption, FirstName) {
  ExpectBroken(Head{.names = {"b", "a"}}, "head: block 1: name: expected \"b\" or a later one, found \"a\"");
  ExpectBroken(Head{.names = {"a", std::string(4097, 'x')}}, "head: block 1: expected a name of at most 4096 bytes");
  EXPECT_TRUE((Head{.names = {"a", "a"}}.Decode().ok()));
  EXPECT_TRUE((Head{.names = {"a", std::string(4096, 'x')}}.Decode().ok()));
}

TEST(IndexHeadCorruption, BlockLength) {
  ExpectBroken(Head{.lengths = {4095, 11}}, "head: block 0: length: expected 4096 to 1048576, found 4095");
  ExpectBroken(Head{.lengths = {4096, 0}}, "head: block 1: length: expected 1 to 1048576, found 0");
  ExpectBroken(Head{.lengths = {1048577, 1}}, "head: block 0: length: expected 4096 to 1048576, found 1048577");
  ExpectBroken(Head{.lengths = {4096, ~0ULL}}, "head: block 1: length: expected 1 to 1048576, found");
  EXPECT_TRUE((Head{.lengths = {1048576, 1048576}}.Decode().ok()));
}

TEST(IndexHeadCorruption, BlocksThatDoNotFillTheFile) {
  ExpectBroken(Head{.off_by = 1}, "blocks and head: expected 4125 bytes as in the manifest, found 4124");
  ExpectBroken(Head{.off_by = ~0ULL}, "blocks and head: expected 4123 bytes as in the manifest, found 4124");
}

TEST(IndexRunCorruption, GivesNoIndex) {
  const std::string sound = EncodeIndexRun(DocumentedIndex()[0]);
  ASSERT_TRUE(BuildIndex(std::vector{sound, sound}));

  for (std::size_t n = 0; n < sound.size(); ++n) {
    // A cut between two entries leaves a shorter valid run.
    const bool between = n == 1 || n == sound.size() - 13;
    EXPECT_EQ(BuildIndex(std::vector{sound, sound.substr(0, n)}).has_value(), between) << n;
  }
  const std::string version(1, '\1');
  for (const std::string& run : {std::string("\2", 1), version + W({65}), version + W({1, kFar + 1, 0}),
                                 version + W({1, kFar, 1}), version + W({2, 0, 0, 1ULL << 32, 1ULL << 32}),
                                 version + W({0}) + W({0}), version + W({0}) + std::string("\0\1v\0", 4)}) {
    EXPECT_FALSE(BuildIndex(std::vector{sound, run})) << HexOf(run);
    EXPECT_FALSE(BuildIndex(std::vector{run, sound})) << HexOf(run);
  }
}

}  // namespace
}  // namespace cairn
