#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "format/shard_bytes.h"

// One test for each field of a shard's header and for each kind of hostile header.

namespace cairn {
namespace {

using ::testing::HasSubstr;

void ExpectBroken(const Result<ShardHeader>& decoded, const std::string& words,
                  StatusCode code = StatusCode::kCorrupt) {
  ASSERT_FALSE(decoded.ok()) << "expected: " << words;
  EXPECT_EQ(decoded.status().code(), code) << decoded.status();
  EXPECT_THAT(decoded.status().message(), HasSubstr("x.safetensors"));
  EXPECT_THAT(decoded.status().message(), HasSubstr(words));
}

// A tensor's JSON object with these fields.
std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

Result<ShardHeader> DecodeTensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return DecodeJson("{\"t\":" + Tensor(dtype, shape, offsets) + "}", 8);
}

// Decodes the rich header with one piece of its text replaced by another of any length.
Result<ShardHeader> DecodeEdited(const std::string& from, const std::string& to) {
  const ShardHeader header = RichHeader();
  std::string json(ShardHeaderWriter::Make(header)->bytes().substr(8));
  json.erase(json.find_last_of('}') + 1);
  const auto at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  json.replace(at, from.size(), to);
  json.append(AlignUp(json.size() + 8, kBlock) - 8 - json.size(), ' ');
  return DecodeJson(json, header.data_bytes());
}

TEST(ShardLength, ExceedsTheLimitOrTheFile) {
  const auto length = [](std::uint64_t n, std::uint64_t file_bytes) {
    std::string word;
    for (int shift = 0; shift < 64; shift += 8) word += static_cast<char>(n >> shift & 0xff);
    return ShardHeaderLength(AsBytes(word), file_bytes, "x.safetensors");
  };

  EXPECT_EQ(*length(2, 10), 10U);
  EXPECT_EQ(*length(100'000'000, 1'000'000'000), 100'000'008U);
  for (const auto& bad :
       {length(3, 10), length(100'000'001, 1'000'000'000), length(~0ULL, ~0ULL), length(~0ULL - 7, 10)}) {
    ASSERT_FALSE(bad.ok());
    EXPECT_EQ(bad.status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(bad.status().message(), HasSubstr("x.safetensors: header length: expected at most"));
  }
  EXPECT_THAT(ShardHeaderLength(AsBytes("1234567"), 7, "x.safetensors").status().message(),
              HasSubstr("expected at least 8 bytes, found 7"));
}

TEST(ShardCorruption, LengthWordDiffersFromTheBytes) {
  const std::string bytes = WithLength("{}  ");
  EXPECT_TRUE(DecodeShardHeader(AsBytes(bytes), 12, "x.safetensors").ok());
  ExpectBroken(DecodeShardHeader(AsBytes(bytes).first(11), 12, "x.safetensors"), "header of 12 bytes, found 11");
}

TEST(ShardCorruption, TruncatedAtEveryByte) {
  const ShardHeader header = RichHeader();
  const std::string bytes(ShardHeaderWriter::Make(header)->bytes());

  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(DecodeShardHeader(AsBytes(bytes).first(n), bytes.size() + header.data_bytes(), "x").ok());
  }
  for (std::size_t n = 0; n < bytes.size() - 8; ++n) {  // With a matching length word.
    EXPECT_FALSE(DecodeJson(std::string_view(bytes).substr(8, n), header.data_bytes()).ok()) << n;
  }
}

TEST(ShardCorruption, FileLongerOrShorterThanItsTensors) {
  const std::string json = "{\"t\":" + Tensor("\"F32\"", "[2]", "[0,8]") + "}";

  EXPECT_TRUE(DecodeJson(json, 8).ok());
  ExpectBroken(DecodeJson(json, 9), "data of the tensors: expected 8 bytes, found 9");
  ExpectBroken(DecodeJson(json, 7), "data of the tensors: expected 8 bytes, found 7");
}

TEST(ShardCorruption, DType) {
  ExpectBroken(DecodeTensor("\"F33\"", "[2]", "[0,8]"), "tensor \"t\": unknown dtype \"F33\"",
               StatusCode::kUnsupported);
  ExpectBroken(DecodeTensor("\"F4\"", "[16]", "[0,8]"), "unknown dtype \"F4\"", StatusCode::kUnsupported);
  ExpectBroken(DecodeTensor("\"F64\"", "[2]", "[0,8]"), "tensor \"t\": data_offsets: expected 16 bytes");
  ExpectBroken(DecodeTensor("3", "[2]", "[0,8]"), "tensor \"t\": dtype: expected a string, found the number 3");
  ExpectBroken(DecodeTensor("null", "[2]", "[0,8]"), "dtype: expected a string, found null");
  ExpectBroken(DecodeTensor("[\"F32\"]", "[2]", "[0,8]"), "dtype: expected a string, found an array");
}

TEST(ShardCorruption, Shape) {
  ExpectBroken(DecodeTensor("\"F32\"", "[3]", "[0,8]"), "expected 12 bytes for F32 of shape [3], found [0, 8]");
  ExpectBroken(DecodeTensor("\"F32\"", "[2.0]", "[0,8]"), "tensor \"t\": shape: expected integers");
  ExpectBroken(DecodeTensor("\"F32\"", "[2e0]", "[0,8]"), "found the number 2e0");
  ExpectBroken(DecodeTensor("\"F32\"", "[-2]", "[0,8]"), "found the number -2");
  ExpectBroken(DecodeTensor("\"F32\"", "[-0]", "[0,0]"), "found the number -0");
  ExpectBroken(DecodeTensor("\"F32\"", "[\"2\"]", "[0,8]"), "found the text \"2\"");
  ExpectBroken(DecodeTensor("\"F32\"", "[[2]]", "[0,8]"), "found an array");
  ExpectBroken(DecodeTensor("\"F32\"", "[{}]", "[0,8]"), "found an object");
  ExpectBroken(DecodeTensor("\"F32\"", "2", "[0,8]"), "shape: expected an array, found the number 2");
  ExpectBroken(DecodeTensor("\"F32\"", "{}", "[0,8]"), "shape: expected an array, found an object");
  ExpectBroken(DecodeTensor("\"F32\"", "[9223372036854775808]", "[0,8]"), "expected integers from 0 to 2^63 - 1");
  ExpectBroken(DecodeTensor("\"F32\"", "[99999999999999999999]", "[0,8]"), "expected integers from 0 to 2^63 - 1");
}

TEST(ShardCorruption, ShapeThatOverflows) {
  for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904,2]", "[9223372036854775807]",
                            "[4294967296,4294967296,0]", "[2,2147483648,4294967298]"}) {
    ExpectBroken(DecodeTensor("\"F32\"", shape, "[0,8]"), "tensor \"t\": shape: expected at most 2^62 bytes");
  }
}

TEST(ShardCorruption, Offsets) {
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[0,9]"), "expected 8 bytes for F32 of shape [2], found [0, 9]");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[8,0]"), "found [8, 0]");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[8,16]"), "expected to begin at 0, found 8: a hole");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[0]"), "data_offsets: expected 2 numbers, found 1");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[0,8,8]"), "data_offsets: expected 2 numbers, found 3");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[]"), "data_offsets: expected 2 numbers, found 0");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[0.0,8]"), "tensor \"t\": data_offsets: expected integers");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "[18446744073709551608,0]"), "data_offsets: expected integers");
  ExpectBroken(DecodeTensor("\"F32\"", "[2]", "null"), "data_offsets: expected an array, found null");
}

TEST(ShardCorruption, TensorsThatOverlapOrLeaveHoles) {
  const auto two = [](const std::string& a, const std::string& b) {
    return DecodeJson("{\"a\":" + Tensor("\"U8\"", "[4]", a) + ",\"b\":" + Tensor("\"U8\"", "[4]", b) + "}", 8);
  };

  EXPECT_TRUE(two("[0,4]", "[4,8]").ok());
  EXPECT_TRUE(two("[4,8]", "[0,4]").ok());
  ExpectBroken(two("[0,4]", "[3,7]"), "tensor \"b\": data_offsets: expected to begin at 4, found 3: tensors overlap");
  ExpectBroken(two("[0,4]", "[0,4]"), "tensors overlap");
  ExpectBroken(two("[0,4]", "[5,9]"), "tensor \"b\": data_offsets: expected to begin at 4, found 5: a hole");
  ExpectBroken(two("[0,4]", "[9223372036854775803,9223372036854775807]"), "a hole");
}

TEST(ShardCorruption, DuplicateNames) {
  const std::string tensor = Tensor("\"U8\"", "[4]", "[0,4]");
  ExpectBroken(DecodeJson("{\"a\":" + tensor + ",\"a\":" + Tensor("\"U8\"", "[4]", "[4,8]") + "}", 8),
               "tensor \"a\": expected once, found twice");
  ExpectBroken(DecodeJson("{\"a\":" + tensor + ",\"\\u0061\":" + Tensor("\"U8\"", "[4]", "[4,8]") + "}", 8), "twice");
  ExpectBroken(DecodeJson(R"({"t":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4),
               "tensor \"t\": dtype: expected once, found twice");
  ExpectBroken(DecodeJson(R"({"t":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", 4),
               "tensor \"t\": shape: expected once");
  ExpectBroken(DecodeJson(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__\": expected once");
  ExpectBroken(DecodeJson(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "__metadata__: key \"a\": expected once");
}

TEST(ShardCorruption, MissingOrUnknownFields) {
  ExpectBroken(DecodeJson(R"({"t":{}})", 0), "tensor \"t\": dtype: missing");
  ExpectBroken(DecodeJson(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})", 0), "tensor \"t\": shape: missing");
  ExpectBroken(DecodeJson(R"({"t":{"dtype":"U8","shape":[0]}})", 0), "data_offsets: missing");
  ExpectBroken(DecodeJson(R"({"t":{"dtype":"U8","shape":[0],"offset":[0,0]}})", 0),
               "expected only dtype, shape and data_offsets, found \"offset\"");
  ExpectBroken(DecodeJson(R"({"t":null})", 0), "member \"t\": expected an object, found null");
  ExpectBroken(DecodeJson(R"({"t":[]})", 0), "member \"t\": expected an object, found an array");
}

TEST(ShardCorruption, MetadataIsNotATableOfStrings) {
  ExpectBroken(DecodeJson(R"({"__metadata__":null})", 0), "__metadata__\": expected an object, found null");
  ExpectBroken(DecodeJson(R"({"__metadata__":[]})", 0), "__metadata__\": expected an object, found an array");
  ExpectBroken(DecodeJson(R"({"__metadata__":{"a":1}})", 0),
               "__metadata__: key \"a\": expected a string, found the number 1");
  ExpectBroken(DecodeJson(R"({"__metadata__":{"a":{}}})", 0), "key \"a\": expected a string, found an object");
  ExpectBroken(DecodeJson(R"({"__metadata__":{"a":[]}})", 0), "key \"a\": expected a string, found an array");
}

TEST(ShardCorruption, TextIsNotJson) {
  ExpectBroken(DecodeJson("", 0), "expected a JSON object");
  ExpectBroken(DecodeJson("[]", 0), "expected a JSON object");
  ExpectBroken(DecodeJson("{", 0), "expected JSON, found an error at byte");
  ExpectBroken(DecodeJson("{},", 0), "expected JSON, found");
  ExpectBroken(DecodeJson("{} x", 0), "expected JSON, found");
  ExpectBroken(DecodeJson("{}{}", 0), "expected JSON, found");
  ExpectBroken(DecodeJson(std::string_view("{}\0\0", 4), 0), "found a zero byte at 2");
  ExpectBroken(DecodeJson("\xef\xbb\xbf{}", 0), "expected a JSON object");
  ExpectBroken(DecodeJson("{'a':1}", 0), "expected JSON, found");
  ExpectBroken(DecodeJson("{/**/}", 0), "expected JSON, found");
}

TEST(ShardCorruption, NamesThatAreNotUtf8) {
  for (const char* name :
       {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\\ud800", "\\udc00", "a\tb"}) {
    ExpectBroken(DecodeJson("{\"" + std::string(name) + "\":" + Tensor("\"U8\"", "[0]", "[0,0]") + "}", 0),
                 "expected JSON, found");
  }
}

TEST(ShardCorruption, DeepNesting) {
  const std::size_t deep = 1'000'000;
  ExpectBroken(DecodeJson("{\"a\":" + std::string(deep, '['), 0), "expected an object, found an array");
  std::string objects;
  for (std::size_t i = 0; i < deep; ++i) objects += "{\"a\":";
  ExpectBroken(DecodeJson(objects, 0), "found \"a\"");
  ExpectBroken(DecodeTensor("\"U8\"", std::string(deep, '['), "[0,8]"), "found an array");
}

TEST(ShardCorruption, LongNamesInMessagesAreCut) {
  const auto decoded = DecodeJson("{\"" + std::string(1'000'000, 'n') + "\":7}", 0);
  ASSERT_FALSE(decoded.ok());
  EXPECT_LT(decoded.status().message().size(), 1000U);
}

// Cairn's own keys.

TEST(ShardCorruption, FormatVersion) {
  ExpectBroken(DecodeEdited(R"("cairn.format_version":"1")", R"("cairn.format_version":"2")"),
               "cairn.format_version: expected 1, found 2", StatusCode::kUnsupported);
  ExpectBroken(DecodeEdited(R"("cairn.format_version":"1")", R"("cairn.format_version":"01")"), "found \"01\"");
  ExpectBroken(DecodeEdited(R"("cairn.format_version":"1",)", ""), "cairn.format_version: missing");
}

TEST(ShardCorruption, Step) {
  for (const char* step : {"", "-1", "+1", "1.0", " 1", "1 ", "007", "18446744073709551616", "0x10"}) {
    ExpectBroken(DecodeEdited(R"("cairn.step":"1000")", R"("cairn.step":")" + std::string(step) + "\""),
                 "cairn.step: expected a number from 0 to 2^64 - 1, found \"" + std::string(step) + "\"");
  }
  ExpectBroken(DecodeEdited(R"("cairn.step":"1000",)", ""), "cairn.step: missing");
  EXPECT_EQ(DecodeEdited(R"("cairn.step":"1000")", R"("cairn.step":"18446744073709551615")")->step, ~0ULL);
}

TEST(ShardCorruption, Attempt) {
  ExpectBroken(DecodeEdited("0b9d6a52-3c0e", "../d6a52"), "cairn.attempt: expected 1 to 64 letters");
  ExpectBroken(DecodeEdited("0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11", ""), "cairn.attempt: expected");
  ExpectBroken(DecodeEdited("\"cairn.attempt\"", "\"cairn.attempd\""), "cairn.attempt: missing");
}

TEST(ShardCorruption, ShardNumber) {
  ExpectBroken(DecodeEdited(R"("cairn.shard":"3")", R"("cairn.shard":"x")"), "cairn.shard: expected a number");
  ExpectBroken(DecodeEdited(R"("cairn.shard":"3",)", ""), "cairn.shard: missing");
}

TEST(ShardCorruption, ChecksumBlock) {
  ExpectBroken(DecodeEdited(R"("cairn.crc32c_block":"1048576")", R"("cairn.crc32c_block":"4096")"),
               "cairn.crc32c_block: expected 1048576, found 4096", StatusCode::kUnsupported);
  ExpectBroken(DecodeEdited(R"("cairn.crc32c_block":"1048576")", R"("cairn.crc32c_block":"0")"), "found 0",
               StatusCode::kUnsupported);
  ExpectBroken(DecodeEdited(R"("cairn.crc32c_block":"1048576",)", ""), "cairn.crc32c_block: missing");
}

TEST(ShardCorruption, ChecksumTable) {
  const std::string table = R"("cairn.crc32c":")" + std::string(24, '0') + "\"";
  const auto with = [&table](const std::string& digits) {
    return DecodeEdited(table, "\"cairn.crc32c\":\"" + digits + "\"");
  };

  ExpectBroken(with(std::string(16, '0')),
               "cairn.crc32c: expected 3 checksums of 8 digits for 2097168 bytes, found 16");
  ExpectBroken(with(std::string(23, '0')), "found 23");
  ExpectBroken(with(""), "found 0");
  ExpectBroken(with(std::string(8, '0') + "0000000A" + std::string(8, '0')),
               "block 1: expected 8 lower-case hexadecimal digits");
  ExpectBroken(with(std::string(23, '0') + "g"), "block 2: expected 8");
  ExpectBroken(DecodeEdited("," + table, ""), "cairn.crc32c: missing");
}

TEST(ShardCorruption, Parts) {
  const std::string at = R"(\"offset\":[512,0])";
  ExpectBroken(DecodeEdited(at, R"(\"offset\":[1537,0])"),
               "cairn.parts: tensor \"model.weight\": expected a part within [2048, 1024], found offset [1537, 0]");
  ExpectBroken(DecodeEdited(at, R"(\"offset\":[9223372036854775807,0])"), "expected a part within");
  ExpectBroken(DecodeEdited(at, R"(\"offset\":[512])"), "cairn.parts: tensor \"model.weight\": expected 2 dimensions");
  ExpectBroken(DecodeEdited(at, R"(\"offset\":[512,-0])"),
               "cairn.parts: tensor \"model.weight\": offset: expected integers");
  ExpectBroken(DecodeEdited("," + at, ""), "cairn.parts: tensor \"model.weight\": offset: missing");
  ExpectBroken(DecodeEdited(R"(\"shape\":[2048,1024])", R"(\"shape\":[9223372036854775807,1024])"),
               "expected a global shape of at most 2^62 bytes");
  ExpectBroken(DecodeEdited(R"(\"name\":\"weight\")", R"(\"name\":3)"),
               "cairn.parts: tensor \"model.weight\": name: expected");
  ExpectBroken(DecodeEdited(R"({\"model.weight\":{)", R"({\"modal.weight\":{)"),
               "cairn.parts: tensor \"modal.weight\": not in the shard");
  const std::string one = R"(\"empty\":{\"name\":\"e\",\"shape\":[0,7],\"offset\":[0,0]},)";
  EXPECT_TRUE(DecodeEdited(R"({\"model.weight\":{)", "{" + one + R"(\"model.weight\":{)").ok());
  ExpectBroken(DecodeEdited(R"({\"model.weight\":{)", "{" + one + one + R"(\"model.weight\":{)"),
               "cairn.parts: tensor \"empty\": expected once, found twice");
}

TEST(ShardCorruption, Aliases) {
  const std::string alias = R"({\"lm_head.weight\":\"model.weight\"})";
  ExpectBroken(DecodeEdited(alias, R"({\"lm_head.weight\":\"modal.weight\"})"),
               "cairn.aliases: alias \"lm_head.weight\": expected the name of a tensor in the shard, found the text "
               "\"modal.weight\"");
  ExpectBroken(DecodeEdited(alias, R"({\"a\":\"a\"})"), "cairn.aliases: alias \"a\": expected the name of a tensor");
  ExpectBroken(DecodeEdited(alias, R"({\"empty\":\"step\"})"), "alias \"empty\": expected a new name");
  ExpectBroken(DecodeEdited(alias, R"({\"__metadata__\":\"step\"})"), "expected a new name");
  ExpectBroken(DecodeEdited(alias, R"({\"a\":\"step\",\"a\":\"step\"})"), "alias \"a\": expected once, found twice");
  ExpectBroken(DecodeEdited(alias, R"({\"a\":1})"), "found the number 1");
  ExpectBroken(DecodeEdited(alias, R"({\"a\":{}})"), "found an object");
  ExpectBroken(DecodeEdited(alias, R"([\"step\"])"), "cairn.aliases: expected a JSON object");
}

TEST(ShardCorruption, TypedValues) {
  ExpectBroken(DecodeEdited(R"(\"epoch\":7)", R"(\"epoch\":[7])"), "cairn.values: value \"epoch\": expected no array");
  ExpectBroken(DecodeEdited(R"(\"epoch\":7)", R"(\"epoch\":07)"), "cairn.values: expected JSON");
  ExpectBroken(DecodeEdited(R"(\"epoch\":7)", R"(\"lr\":7)"), "cairn.values: value \"lr\": expected once");
}

TEST(ShardCorruption, LongValues) {
  const std::string named = R"(\"json_in\":\"cairn.values/log\")";
  const std::string text = R"("cairn.values/log":{"dtype":"U8","shape":[5],)";
  const std::string expected = "cairn.values: value \"log\": expected its text in ";
  for (const std::string tensor : {"cairn.values/lag", "step", "empty", "lm_head.weight"}) {
    ExpectBroken(DecodeEdited(named, R"(\"json_in\":\")" + tensor + R"(\")"), expected + "one of the last tensors");
  }
  ExpectBroken(DecodeEdited(text, R"("cairn.values/log":{"dtype":"I8","shape":[5],)"), expected + "a whole tensor");
  ExpectBroken(DecodeEdited(text, R"("cairn.values/log":{"dtype":"U8","shape":[1,5],)"), expected + "a whole tensor");
  ExpectBroken(
      DecodeEdited(R"({\"model.weight\":{)",
                   R"({\"cairn.values/log\":{\"name\":\"w\",\"shape\":[9],\"offset\":[0]},\"model.weight\":{)"),
      expected + "a whole tensor");
  ExpectBroken(DecodeEdited(R"(\"lm_head.weight\":\"model.weight\")", R"(\"lm_head.weight\":\"cairn.values/log\")"),
               "value \"log\": expected a tensor that no alias names");
  ExpectBroken(DecodeEdited(R"({\"epoch\":7)", R"({\"a\":{)" + named + R"(,\"crc32c\":\"00000000\"},\"epoch\":7)"),
               "expected a tensor that no other value names");
}

TEST(ShardCorruption, MessagesStayShortWithManyDimensions) {
  std::string ones;
  for (int i = 0; i < 100'000; ++i) ones += "1,";
  const std::string huge = "[" + ones + "4611686018427387904,4]";
  const std::string many = "[" + ones + "1]";
  const std::string part = R"({\"t\":{\"name\":\"w\",\"shape\":)" + many + R"(,\"offset\":)" + many + "}}";
  const std::string outside = R"({"__metadata__":{"cairn.format_version":"1","cairn.step":"1","cairn.attempt":"a",)"
                              R"("cairn.shard":"0","cairn.parts":")" +
                              part + "\"},\"t\":" + Tensor("\"U8\"", many, "[0,1]") + "}";
  const std::string padding(AlignUp(outside.size() + 8, kBlock) - 8 - outside.size(), ' ');

  for (const Result<ShardHeader>& decoded :
       {DecodeTensor("\"F32\"", many, "[0,8]"), DecodeTensor("\"F32\"", huge, "[0,8]"),
        DecodeJson(outside + padding, 1)}) {
    ExpectBroken(decoded, "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...]");
    EXPECT_LT(decoded.status().message().size(), 1000U);
  }
}

TEST(ShardCorruption, DataIsNotAlignedToABlock) {
  const ShardHeader header = RichHeader();
  std::string json(ShardHeaderWriter::Make(header)->bytes().substr(8));
  json += ' ';
  ExpectBroken(DecodeJson(json, header.data_bytes()), "start of the data: expected a multiple of 4096, found 4097");
}

TEST(ShardHeaderVersions, UnknownCairnKeysAreKept) {
  const auto decoded = DecodeEdited(R"("cairn.step":)", R"("cairn.host":"a","cairn.step":)");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->metadata.at("cairn.host"), "a");
}

}  // namespace
}  // namespace cairn
