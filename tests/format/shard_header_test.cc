#include "format/shard_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/crc32c.h"
#include "format/shard_bytes.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Encoded(const ShardHeader& header, std::span<const std::uint32_t> sums = {}) {
  auto writer = ShardHeaderWriter::Make(header);
  EXPECT_TRUE(writer.ok()) << writer.status();
  writer->SetSums(sums);
  return std::string(writer->bytes());
}

ShardHeader OneTensor(ShardTensor tensor) {
  ShardHeader header;
  header.attempt = "a";
  header.tensors = {std::move(tensor)};
  return header;
}

TEST(ShardHeader, EveryFieldRoundTrips) {
  ShardHeader header = RichHeader();
  const std::vector<std::uint32_t> sums{0, 0xffffffff, 0x0123abcd};

  const std::string bytes = Encoded(header, sums);
  const auto decoded = DecodeShardHeader(AsBytes(bytes), bytes.size() + header.data_bytes(), "x");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  header.sums = sums;
  header.data_begin = bytes.size();
  EXPECT_EQ(*decoded, header);
}

TEST(ShardHeader, BytesAreAsDocumented) {
  // The example of docs/format.md: files of this version stay readable forever.
  ShardHeader header;
  header.step = 1000;
  header.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
  header.tensors = {{.name = "bias",
                     .dtype = DType::kF32,
                     .shape = {2},
                     .end = 8,
                     .part = TensorPart{.logical_name = "bias", .global_shape = {4}, .offset = {2}}}};
  header.aliases = {{"head.bias", "bias"}};
  header.values = {{"epoch", std::int64_t{3}}, {"lr", 1.0}, {"plan", Json{"[1]"}}};
  const std::string data("\0\0\x80\x3f\0\0\0\x40", 8);
  auto writer = ShardHeaderWriter::Make(header);
  ASSERT_TRUE(writer.ok());

  writer->SetSums(std::vector<std::uint32_t>{Crc32c(AsBytes(data))});

  const std::string json = R"({"__metadata__":{"cairn.format_version":"1","cairn.step":"1000",)"
                           R"("cairn.attempt":"0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11","cairn.shard":"0",)"
                           R"("cairn.parts":"{\"bias\":{\"name\":\"bias\",\"shape\":[4],\"offset\":[2]}}",)"
                           R"("cairn.aliases":"{\"head.bias\":\"bias\"}",)"
                           R"("cairn.values":"{\"epoch\":3,\"lr\":1.0,\"plan\":{\"json\":\"[1]\"}}",)"
                           R"("cairn.crc32c_block":"1048576","cairn.crc32c":"28c0c9b1"},)"
                           R"("bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string padded = json + std::string(4088 - json.size(), ' ');
  EXPECT_EQ(writer->bytes(), std::string("\xf8\x0f\0\0\0\0\0\0", 8) + padded);
  EXPECT_EQ(writer->digest(), 0x3f0f0df1U);
}

TEST(ShardHeader, DataBeginsAtABlockBoundary) {
  // From well below one block to well above it, including the boundary.
  for (std::size_t length = 3000; length < 5000; ++length) {
    ShardHeader header = OneTensor({.name = std::string(length, 'n'), .dtype = DType::kU8, .shape = {5}, .end = 5});

    const auto writer = ShardHeaderWriter::Make(header);

    ASSERT_TRUE(writer.ok());
    ASSERT_EQ(writer->data_begin() % kBlock, 0U);
    ASSERT_EQ(writer->data_begin(), writer->bytes().size());
    const auto decoded = DecodeShardHeader(AsBytes(writer->bytes()), writer->data_begin() + 5, "x");
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(decoded->file_bytes(), writer->data_begin() + 5);
  }
}

TEST(ShardHeader, ShardMayBeEmpty) {
  ShardHeader header;
  header.attempt = "a";

  const std::string bytes = Encoded(header);
  const auto decoded = DecodeShardHeader(AsBytes(bytes), bytes.size(), "x");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->tensors.empty());
  EXPECT_TRUE(decoded->checksums);
  EXPECT_TRUE(decoded->sums.empty());
  EXPECT_EQ(decoded->data_bytes(), 0U);
}

TEST(ShardHeader, ChecksumsMayBeOff) {
  ShardHeader header = RichHeader();
  header.checksums = false;

  const auto writer = ShardHeaderWriter::Make(header);
  ASSERT_TRUE(writer.ok());
  const auto decoded = DecodeShardHeader(AsBytes(writer->bytes()), writer->data_begin() + header.data_bytes(), "x");

  EXPECT_EQ(writer->sum_count(), 0U);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_FALSE(decoded->checksums);
}

TEST(ShardHeader, OneChecksumForEachStartedBlock) {
  const auto sum_count = [](std::int64_t bytes) {
    const auto end = static_cast<std::uint64_t>(bytes);
    return ShardHeaderWriter::Make(OneTensor({.name = "t", .dtype = DType::kU8, .shape = {bytes}, .end = end}))
        ->sum_count();
  };

  EXPECT_EQ(sum_count(0), 0U);
  EXPECT_EQ(sum_count(1), 1U);
  EXPECT_EQ(sum_count(1 << 20), 1U);
  EXPECT_EQ(sum_count((1 << 20) + 1), 2U);
}

TEST(ShardHeader, SetSumsKeepsTheLength) {
  auto writer = ShardHeaderWriter::Make(RichHeader());
  ASSERT_TRUE(writer.ok());
  const std::string before(writer->bytes());
  const std::uint32_t digest_before = writer->digest();

  const std::vector<std::uint32_t> sums(writer->sum_count(), 0xdeadbeef);
  writer->SetSums(sums);

  EXPECT_EQ(writer->bytes().size(), before.size());
  EXPECT_NE(writer->digest(), digest_before);
  EXPECT_EQ(writer->digest(), Crc32c(AsBytes(writer->bytes())));
}

TEST(ShardHeader, DigestCoversAllBytesForAnyTablePosition) {
  ShardHeader plain = OneTensor({.name = "t", .dtype = DType::kU8, .shape = {8}, .end = 8});
  plain.cairn = false;
  ShardHeader unsummed = RichHeader();
  unsummed.checksums = false;
  // Large enough for huge pages.
  ShardHeader large = RichHeader();
  large.metadata["note"] = std::string(3 << 20, 'x');

  for (const ShardHeader& header : {RichHeader(), plain, unsummed, large}) {
    auto writer = ShardHeaderWriter::Make(header);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    writer->SetSums(std::vector<std::uint32_t>(writer->sum_count(), 0x12345678));

    EXPECT_EQ(writer->digest(), Crc32c(AsBytes(writer->bytes()))) << writer->bytes().size();
  }
}

TEST(ShardHeader, DigestCoversEveryBit) {
  auto writer = ShardHeaderWriter::Make(RichHeader());
  ASSERT_TRUE(writer.ok());
  std::string bytes(writer->bytes());

  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(Crc32c(AsBytes(bytes)), writer->digest()) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(ShardHeader, PlainSafetensorsHasNoOwnKeys) {
  ShardHeader header = RichHeader();
  header.cairn = false;
  header.long_values.clear();

  const std::string bytes = Encoded(header);
  const auto decoded = DecodeShardHeader(AsBytes(bytes), bytes.size() + header.data_bytes(), "x");

  EXPECT_EQ(bytes.find("cairn."), std::string::npos);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_FALSE(decoded->cairn);
  EXPECT_FALSE(decoded->checksums);
  EXPECT_EQ(decoded->metadata, header.metadata);
  EXPECT_EQ(decoded->tensors.size(), header.tensors.size());
}

TEST(ShardHeader, ForeignPlainFileDecodes) {
  // No padding, offsets not in the order of names, and spaces where JSON allows them.
  const auto decoded = DecodeJson(R"( {"b": {"data_offsets": [4, 6], "shape": [1], "dtype": "F16"},)"
                                  R"( "a": {"dtype":"F32", "shape":[], "data_offsets":[0,4]} } )",
                                  6);
  const auto trimmed = DecodeJson(R"({"b": {"data_offsets": [4, 6], "shape": [1], "dtype": "F16"},)"
                                  R"( "a": {"dtype":"F32", "shape":[], "data_offsets":[0,4]} }  )",
                                  6);

  EXPECT_FALSE(decoded.ok()) << "safetensors headers begin with '{'";
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_FALSE(trimmed->cairn);
  ASSERT_EQ(trimmed->tensors.size(), 2U);
  EXPECT_EQ(trimmed->tensors[0].name, "a");
  EXPECT_EQ(trimmed->tensors[1].name, "b");
  EXPECT_TRUE(DecodeJson("{}", 0).ok());
}

TEST(ShardHeader, UnknownKeysAreKept) {
  const auto decoded = DecodeJson(R"({"__metadata__":{"format":"pt","a":""}})", 0);

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"a", ""}}));
}

TEST(ShardHeader, EveryDTypeRoundTrips) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    const ShardTensor tensor{.name = "t", .dtype = dtype, .shape = {2, 3}, .end = 6 * DTypeSize(dtype)};

    const std::string bytes = Encoded(OneTensor(tensor));
    const auto decoded = DecodeShardHeader(AsBytes(bytes), bytes.size() + tensor.end, "x");

    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->tensors.at(0), tensor);
  }
}

void ExpectRefused(const ShardHeader& header, std::initializer_list<const char*> words) {
  const auto writer = ShardHeaderWriter::Make(header);
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.status().code(), StatusCode::kInvalidArgument);
  for (const char* word : words) EXPECT_THAT(writer.status().message(), HasSubstr(word));
}

TEST(ShardHeaderWriter, RefusesInvalidNames) {
  ExpectRefused(OneTensor({.name = "__metadata__", .dtype = DType::kU8, .shape = {0}}), {"__metadata__"});
  ExpectRefused(OneTensor({.name = "a\xff", .dtype = DType::kU8, .shape = {0}}), {"UTF-8"});
  ShardHeader twice = OneTensor({.name = "t", .dtype = DType::kU8, .shape = {0}});
  twice.tensors.push_back(twice.tensors[0]);
  ExpectRefused(twice, {"\"t\"", "twice"});
}

TEST(ShardHeaderWriter, RefusesInvalidOffsets) {
  ExpectRefused(OneTensor({.name = "t", .dtype = DType::kF32, .shape = {2}, .begin = 0, .end = 7}),
                {"8 bytes", "[0, 7]"});
  ExpectRefused(OneTensor({.name = "t", .dtype = DType::kF32, .shape = {2}, .begin = 8, .end = 16}), {"from 0,"});
  ExpectRefused(OneTensor({.name = "t", .dtype = DType::kU8, .shape = {-1}}), {"[-1]"});
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  ExpectRefused(OneTensor({.name = "t", .dtype = DType::kU8, .shape = {kHuge, kHuge, 0}}), {"2^62"});
}

TEST(ShardHeaderWriter, RefusesPartsBeyondTheirWhole) {
  ShardTensor tensor{.name = "t", .dtype = DType::kU8, .shape = {2}, .end = 2};
  tensor.part = TensorPart{.logical_name = "w", .global_shape = {4}, .offset = {3}};
  ExpectRefused(OneTensor(tensor), {"\"t\"", "[4]", "[3]", "[2]"});
  tensor.part = TensorPart{.logical_name = "w", .global_shape = {4, 4}, .offset = {0, 0}};
  ExpectRefused(OneTensor(tensor), {"\"t\"", "dimensions"});
}

TEST(ShardHeaderWriter, RefusesAliasesOfUnknownTensors) {
  ShardHeader header = OneTensor({.name = "t", .dtype = DType::kU8, .shape = {0}});
  header.aliases = {{"u", "v"}};
  ExpectRefused(header, {"\"u\"", "\"v\""});
  header.aliases = {{"t", "t"}};
  ExpectRefused(header, {"\"t\"", "new name"});
}

TEST(ShardHeaderWriter, RefusesReservedMetadataKeys) {
  ShardHeader header = RichHeader();
  header.metadata = {{"cairn.step", "5"}};
  ExpectRefused(header, {"cairn.step"});
}

TEST(ShardHeaderWriter, RefusesInvalidValues) {
  ShardHeader header = RichHeader();
  header.values = {{"lr", std::numeric_limits<double>::infinity()}};
  ExpectRefused(header, {"values"});
  header.values = {{"plan", Json{"[1,"}}};
  ExpectRefused(header, {"values", "\"plan\""});
  header.values = {{"text", std::string("\xff")}};
  ExpectRefused(header, {"values"});
}

TEST(ShardHeaderWriter, RefusesTooLargeAHeaderNamingItsSize) {
  ShardHeader header = OneTensor({.name = std::string(kMaxHeaderBytes, 'n'), .dtype = DType::kU8, .shape = {0}});
  ExpectRefused(header, {"100003832", "100000000"});
  header.tensors[0] = {
      .name = "t", .dtype = DType::kU8, .shape = {std::int64_t{1} << 60}, .end = std::uint64_t{1} << 60};
  ExpectRefused(header, {"checksums", "100000000"});
}

TEST(ShardHeaderWriter, RefusesAnInvalidAttemptId) {
  ShardHeader header = RichHeader();
  header.attempt = "../x";
  ExpectRefused(header, {"attempt", "../x"});
}

}  // namespace
}  // namespace cairn
