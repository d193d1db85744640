#include "format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "format/fields.h"
#include "format/shard_bytes.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

Manifest Rich() {
  Manifest manifest;
  manifest.step = ~0ULL;
  manifest.line = 2;
  manifest.root = "4f2a6b1d-9c3e-4d5f-8a7b-1e2d3c4b5a69";
  manifest.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
  manifest.parent = ManifestParent{.step = 900, .attempt = "5f2b7c1e-8f53-4a8e-b5b2-0d9a3d3e9c44"};
  manifest.world = 2;
  manifest.shards = {
      {.file = "shard-00000.safetensors",
       .length = 4096,
       .header_digest = 0x00c0ffee,
       .nonfinite = NonFinite::kInfinity},
      {.file = "shard-00001.safetensors", .length = ~0ULL, .header_digest = 0xffffffff, .nonfinite = NonFinite::kNaN}};
  return manifest;
}

// `text` with a valid digest: an error of the writer, not of the disk.
std::string Sealed(std::string text) {
  const std::string tail = ",\n \"digest\":\"";
  const auto at = text.rfind(tail);
  EXPECT_NE(at, std::string::npos);
  const std::uint32_t digest = Crc32c(AsBytes(std::string_view(text).substr(0, at)));
  std::string digits;
  AppendHex32(digits, digest);
  return text.replace(at + tail.size(), 8, digits);
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return Sealed(text.replace(at, from.size(), to));
}
std::string Edited(const std::string& from, const std::string& to) {
  return Replaced(EncodeManifest(Rich()), from, to);
}

void ExpectBroken(const std::string& text, const std::string& words, StatusCode code = StatusCode::kCorrupt) {
  const auto decoded = DecodeManifest(text, "step/manifest.json");
  ASSERT_FALSE(decoded.ok()) << "expected: " << words;
  EXPECT_EQ(decoded.status().code(), code) << decoded.status();
  EXPECT_THAT(decoded.status().message(), HasSubstr("step/manifest.json: " + words));
}

Manifest WithKept() {
  Manifest manifest = Rich();
  manifest.required_features = {std::string(kKeptFeature)};
  for (const std::uint64_t rank : {1, 0}) {
    manifest.shards.push_back({.file = "kept-0000" + std::to_string(rank) + "-5f2b.safetensors",
                               .length = 8192 + rank,
                               .header_digest = 0x0badcafe,
                               .nonfinite = rank == 0 ? NonFinite::kInfinity : NonFinite::kNone,
                               .kept = KeptOrigin{.rank = rank, .step = 800, .attempt = "5f2b"}});
  }
  return manifest;
}

TEST(Manifest, EveryFieldRoundTrips) {
  for (const Manifest& manifest : {Rich(), WithKept(), Manifest{.attempt = "a", .shards = {{.file = "s"}}}}) {
    const auto decoded = DecodeManifest(EncodeManifest(manifest), "m");
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, manifest);
  }
}

TEST(Manifest, TextIsAsDocumented) {
  // The exact bytes of docs/format.md: files of this version stay readable forever.
  Manifest manifest = Rich();
  manifest.step = 1000;
  manifest.world = 1;
  manifest.shards = {{.file = "shard-00000.safetensors", .length = 4104, .header_digest = 0x3f0f0df1}};
  EXPECT_EQ(EncodeManifest(manifest), R"({
 "format_version":1,
 "required_features":[],
 "step":1000,
 "generation":2,
 "root":"4f2a6b1d-9c3e-4d5f-8a7b-1e2d3c4b5a69",
 "attempt":"0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11",
 "parent":{"step":900,"attempt":"5f2b7c1e-8f53-4a8e-b5b2-0d9a3d3e9c44"},
 "world":1,
 "shards":[
  {"file":"shard-00000.safetensors","length":4104,"header_digest":"3f0f0df1"}],
 "digest":"32eb7234"
}
)");
}

TEST(Manifest, AnyFlippedBitIsDetected) {
  std::string text = EncodeManifest(Rich());

  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    const auto decoded = DecodeManifest(text, "m");
    ASSERT_FALSE(decoded.ok()) << "bit " << bit;
    ASSERT_EQ(decoded.status().code(), StatusCode::kCorrupt) << decoded.status();
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(Manifest, TruncationOrExtensionIsDetected) {
  const std::string text = EncodeManifest(Rich());

  for (std::size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(DecodeManifest(text.substr(0, n), "m").ok()) << n;
  for (const char* more : {" ", "\n", "}", "{}"}) EXPECT_FALSE(DecodeManifest(text + more, "m").ok()) << more;
  EXPECT_FALSE(DecodeManifest(text + std::string(1, '\0'), "m").ok());
  EXPECT_FALSE(DecodeManifest(std::string(4096, '\0'), "m").ok());
}

TEST(ManifestCorruption, Digest) {
  std::string text = EncodeManifest(Rich());
  const auto at = text.find("\"step\":1") + 7;
  text[at] = '2';
  ExpectBroken(text, "digest: expected ");
  ExpectBroken(EncodeManifest(Rich()) + "\n", "digest: expected 8 digits in the last member");
}

TEST(ManifestCorruption, DigestInUpperCase) {
  Manifest manifest = Rich();
  std::string text = EncodeManifest(manifest);
  while (text.substr(text.size() - 12, 8).find_first_of("abcdef") == std::string::npos) {
    ++manifest.line;
    text = EncodeManifest(manifest);
  }
  for (std::size_t i = text.size() - 12; i < text.size() - 4; ++i) text[i] = static_cast<char>(std::toupper(text[i]));
  ExpectBroken(text, "digest: expected");
}

TEST(ManifestCorruption, FormatVersion) {
  ExpectBroken(Edited("\"format_version\":1", "\"format_version\":2"), "format_version: expected 1, found 2",
               StatusCode::kUnsupported);
  ExpectBroken(Edited("\"format_version\":1", "\"format_version\":1.0"), "format_version: expected an integer");
  ExpectBroken(Edited("\"format_version\":1", "\"format_version\":\"1\""), "format_version: expected an integer");
  ExpectBroken(Edited("\"format_version\":1,", ""), "format_version: missing");
}

TEST(ManifestCorruption, RequiredFeatures) {
  Manifest manifest = Rich();
  manifest.required_features = {"zstd"};
  const std::string words =
      "required_features: expected only \"kept\" and \"long_values\", as this version knows no other, found \"zstd\"";
  ExpectBroken(EncodeManifest(manifest), words, StatusCode::kUnsupported);
  manifest.required_features = {"kept", "zstd"};
  ExpectBroken(EncodeManifest(manifest), words, StatusCode::kUnsupported);
  ExpectBroken(Edited("features\":[]", "features\":[1]"), "required_features: expected strings, found the number 1");
  ExpectBroken(Edited("features\":[]", "features\":{}"), "required_features: expected another type");
  ExpectBroken(Edited("features\":[]", "features\":null"), "required_features: expected an array, found null");
  ExpectBroken(Edited("\"required_features\":[],", ""), "required_features: missing");
}

TEST(Manifest, AMarkThatIsNoneIsSkipped) {
  for (const char* other : {"\"-nan\"", "\"\"", "7", "true", "null", "[[\"nan\"]]", "{\"nan\":\"nan\"}"}) {
    const auto decoded = DecodeManifest(Edited("\"nan\"", other), "m");

    ASSERT_TRUE(decoded.ok()) << other << ": " << decoded.status();
    EXPECT_EQ(WorstOf(decoded->shards), NonFinite::kInfinity) << other;
  }
  EXPECT_EQ(WorstOf(Rich().shards), NonFinite::kNaN);
}

TEST(Manifest, ARootThatIsNoIdIsSkipped) {
  const std::string id = '"' + Rich().root + '"';
  for (const char* other : {"\"\"", "\"../x\"", "7", "null", "[\"a\"]", "{\"root\":\"a\"}"}) {
    const auto decoded = DecodeManifest(Edited(id, other), "m");

    ASSERT_TRUE(decoded.ok()) << other << ": " << decoded.status();
    EXPECT_EQ(decoded->root, "") << other;
  }
  ExpectBroken(Edited("\"root\"", "\"root\":\"a\",\"root\""), "\"root\": expected once, found twice");
}

TEST(ManifestCorruption, Step) {
  ExpectBroken(Edited("\"step\":18446744073709551615", "\"step\":18446744073709551616"), "step: expected an integer");
  ExpectBroken(Edited("\"step\":18446744073709551615", "\"step\":-1"), "step: expected an integer");
  ExpectBroken(Edited("\"step\":18446744073709551615", "\"step\":1e3"), "step: expected an integer");
  ExpectBroken(Edited("\"step\":18446744073709551615,", ""), "step: missing");
}

TEST(ManifestCorruption, Line) {
  ExpectBroken(Edited("\"generation\":2", "\"generation\":true"), "generation: expected an integer");
  ExpectBroken(Edited("\"generation\":2,", ""), "generation: missing");
}

TEST(ManifestCorruption, Attempt) {
  ExpectBroken(Edited("0b9d6a52", "../"), "attempt: expected 1 to 64 letters");
  ExpectBroken(Edited("\"0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11\"", "7"), "attempt: expected 1 to 64 letters");
  ExpectBroken(Edited("\"attempt\":\"0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11\",", ""), "attempt: missing");
}

TEST(ManifestCorruption, Parent) {
  ExpectBroken(Edited("\"step\":900", "\"step\":-900"), "parent.step: expected an integer");
  ExpectBroken(Edited("\"step\":900,", ""), "parent.step: missing");
  ExpectBroken(Edited("5f2b7c1e", "/"), "parent.attempt: expected 1 to 64 letters");
  ExpectBroken(Edited("\"parent\":{", "\"parent\":5,\"x\":{"),
               "parent: expected an object or null, found the number 5");
  ExpectBroken(Edited("\"parent\":{", "\"parent\":[],\"x\":{"), "parent: expected another type, found an array");
  ExpectBroken(Edited("\"parent\":{", "\"patent\":{"), "parent: missing");
}

TEST(ManifestCorruption, World) {
  ExpectBroken(Edited("\"world\":2", "\"world\":0"), "world: expected at least 1");
  ExpectBroken(Edited("\"world\":2", "\"world\":null"), "world: expected an integer");
  ExpectBroken(Edited("\"world\":2,", ""), "world: missing");
}

TEST(ManifestCorruption, WorldThatDisagreesWithTheShards) {
  for (const std::string world : {"1", "3", "18446744073709551615"}) {
    ExpectBroken(Edited("\"world\":2", "\"world\":" + world),
                 "shards: expected one for each of " + world + " ranks, found 2");
  }
  Manifest none = Rich();
  none.shards.clear();
  ExpectBroken(EncodeManifest(none), "shards: expected one for each of 2 ranks, found 0");
}

TEST(ManifestCorruption, ShardFile) {
  const std::string file = "shard-00001.safetensors";
  for (const char* name :
       {"", "/etc/passwd", "../shard", "a/b", ".", "..", ".hidden", "manifest.json", "a\\n", "a\\u0000b"}) {
    ExpectBroken(Edited(file, name), "shards[1].file: expected a plain file name");
  }
  ExpectBroken(Edited(file, std::string(256, 'a')), "shards[1].file: expected a plain file name");
  ExpectBroken(Edited(file, "shard-00000.safetensors"),
               "shards: expected each file once, found \"shard-00000.safetensors\"");
  ExpectBroken(Edited("\"file\":\"" + file + "\",", ""), "shards[1].file: missing");
}

TEST(ManifestCorruption, ShardLength) {
  ExpectBroken(Edited("\"length\":4096", "\"length\":4096.5"), "shards[0].length: expected an integer");
  ExpectBroken(Edited("\"length\":4096,", ""), "shards[0].length: missing");
}

TEST(ManifestCorruption, ShardHeaderDigest) {
  for (const char* digest : {"\"00C0FFEE\"", "\"c0ffee\"", "\"00c0ffee0\"", "\"0xc0ffee\"", "12648430", "null"}) {
    ExpectBroken(Edited("\"00c0ffee\"", digest), "shards[0].header_digest: expected 8 lower-case hexadecimal digits");
  }
  ExpectBroken(Edited(",\"header_digest\":\"00c0ffee\"", ""), "shards[0].header_digest: missing");
}

TEST(ManifestCorruption, Shards) {
  ExpectBroken(Edited("\"shards\":[", "\"shards\":[7,"), "shards: expected objects, found the number 7");
  ExpectBroken(Edited("\"shards\":[", "\"shards\":[[],"), "shards: expected another type, found an array");
  ExpectBroken(Edited("\"shards\":[", "\"sharks\":["), "shards: missing");
}

TEST(ManifestCorruption, DuplicatesAtEveryLevel) {
  ExpectBroken(Edited("\"world\":2", "\"world\":2,\"world\":2"), "\"world\": expected once, found twice");
  ExpectBroken(Edited("\"step\":900", "\"step\":900,\"step\":900"), "\"parent.step\": expected once");
  ExpectBroken(Edited("\"length\":4096", "\"length\":4096,\"length\":1"), "\"shards[0].length\": expected once");
  ExpectBroken(Edited("\"world\":2", "\"world\":2,\"x\":{\"y\":[{\"z\":1,\"z\":1}]}"), "\"z\": expected once");
  ExpectBroken(Edited("\"world\":2", "\"world\":2,\"digest\":\"\""), "\"digest\": expected once");
}

TEST(ManifestCorruption, DepthAndWidth) {
  ExpectBroken(Edited("\"world\":2", "\"world\":2,\"x\":" + std::string(100'000, '[')),
               "expected JSON of at most 32 levels");
  std::string members;
  for (int i = 0; i < 100; ++i) members += ",\"x" + std::to_string(i) + "\":0";
  ExpectBroken(Edited("\"world\":2", "\"world\":2" + members), "expected objects of at most 64 members");
}

TEST(ManifestVersions, MembersThatLaterVersionsAddAreSkipped) {
  const std::string more = R"("hosts":["a",{"b":[1.5,null]}],"more":{"step":3,"file":"/"},)";
  std::string text = Edited("\"world\":2", more + "\"world\":2");
  const auto decoded = DecodeManifest(text, "m");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Rich());
  const auto in_shard = DecodeManifest(Edited("\"length\":4096", "\"x\":{\"length\":1},\"length\":4096"), "m");
  ASSERT_TRUE(in_shard.ok()) << in_shard.status();
  EXPECT_EQ(*in_shard, Rich());
}

TEST(ManifestKept, TextIsAsDocumented) {
  EXPECT_THAT(EncodeManifest(WithKept()), HasSubstr(R"("nonfinite":"nan"}],
 "kept":[
  {"file":"kept-00001-5f2b.safetensors","rank":1,"length":8193,"header_digest":"0badcafe","step":800,"attempt":"5f2b"},
  {"file":"kept-00000-5f2b.safetensors","rank":0,"length":8192,"header_digest":"0badcafe","step":800,"attempt":"5f2b","nonfinite":"inf"}],
 "digest")"));
}

TEST(ManifestKept, CountsForTheWorstValueAndMayComeBeforeTheShards) {
  Manifest manifest = WithKept();
  for (ManifestShard& shard : manifest.shards) shard.nonfinite = shard.kept ? NonFinite::kNaN : NonFinite::kNone;
  std::string text = EncodeManifest(manifest);
  const auto begin = text.find(" \"kept\"");
  const std::string kept = text.substr(begin, text.find("],", begin) + 3 - begin);
  text.erase(begin, kept.size()).insert(text.find(" \"world\""), kept);

  const auto decoded = DecodeManifest(Sealed(text), "m");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_EQ(WorstOf(decoded->shards), NonFinite::kNaN);
}

TEST(ManifestCorruption, Kept) {
  const auto edited = [](const std::string& from, const std::string& to) {
    return Replaced(EncodeManifest(WithKept()), from, to);
  };
  ExpectBroken(edited("\"kept\":[", "\"kelp\":["), "kept: expected files, as the feature \"kept\" is required");
  ExpectBroken(edited("\"kept\":[\n", "\"kept\":[],\"x\":["), "kept: expected files, as the feature");
  ExpectBroken(edited("features\":[\"kept\"]", "features\":[]"), "kept: expected the feature \"kept\" to be required");
  ExpectBroken(edited("\"kept\":[\n", "\"kept\":[7,"), "kept: expected objects, found the number 7");
  ExpectBroken(edited("\"kept\":[\n", "\"kept\":[[],"), "kept: expected another type, found an array");
  ExpectBroken(edited("\"kept\":[\n", "\"kept\":{},\"x\":["), "kept: expected another type, found an object");
  ExpectBroken(edited("\"kept\":[\n", "\"kept\":null,\"x\":["), "kept: expected an array, found null");
  ExpectBroken(edited("\"rank\":1", "\"rank\":2"), "kept[0].rank: expected a rank below the world size 2, found 2");
  ExpectBroken(edited("\"rank\":0", "\"rank\":-1"), "kept[1].rank: expected an integer");
  ExpectBroken(edited("\"rank\":0,", ""), "kept[1].rank: missing");
  ExpectBroken(edited("\"step\":800", "\"step\":\"800\""), "kept[0].step: expected an integer");
  ExpectBroken(edited("\"step\":800,", ""), "kept[0].step: missing");
  ExpectBroken(edited("\"attempt\":\"5f2b\"", "\"attempt\":\"../x\""), "kept[0].attempt: expected 1 to 64 letters");
  ExpectBroken(edited(",\"attempt\":\"5f2b\"", ""), "kept[0].attempt: missing");
  ExpectBroken(edited("\"file\":\"kept-00001", "\"file\":\"../kept-00001"), "kept[0].file: expected a plain file name");
  ExpectBroken(edited("kept-00001-5f2b.safetensors", "shard-00001.safetensors"),
               "shards: expected each file once, found \"shard-00001.safetensors\"");
  ExpectBroken(edited("\"length\":8192,", ""), "kept[1].length: missing");
  ExpectBroken(edited("\"0badcafe\"", "\"0BADCAFE\""), "kept[0].header_digest: expected 8 lower-case");
}

Manifest Indexed() {
  Manifest manifest = Rich();
  manifest.index = ManifestIndex{.file = "index.cairn", .length = 70'000, .head = 500, .digest = 0x00c0ffee};
  return manifest;
}

TEST(ManifestIndex, RoundTripsAndPrecedesTheDigest) {
  const std::string text = EncodeManifest(Indexed());

  const auto decoded = DecodeManifest(text, "m");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Indexed());
  EXPECT_THAT(text, HasSubstr("}],\n \"index\":{\"file\":\"index.cairn\",\"length\":70000,\"head\":500,"
                              "\"digest\":\"00c0ffee\"},\n \"digest\":\""));
}

TEST(ManifestIndex, IsOmittedIfAbsent) { EXPECT_EQ(EncodeManifest(Rich()).find("index"), std::string::npos); }

TEST(ManifestIndex, AnyFlippedBitIsDetected) {
  std::string text = EncodeManifest(Indexed());

  for (std::size_t bit = text.find("\"index\"") * 8; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(DecodeManifest(text, "m").ok()) << "bit " << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

// With `from` replaced in the index's member, the checkpoint is valid but has no index.
void ExpectNoIndex(const std::string& from, const std::string& to) {
  std::string text = EncodeManifest(Indexed());
  const auto at = text.find(from, text.find("\"index\""));
  ASSERT_NE(at, std::string::npos) << from;
  const auto decoded = DecodeManifest(Sealed(text.replace(at, from.size(), to)), "m");
  ASSERT_TRUE(decoded.ok()) << to << ": " << decoded.status();
  EXPECT_EQ(*decoded, Rich()) << to;
}

TEST(ManifestIndex, InvalidIndexIsIgnored) {
  for (const char* file : {"", "/etc/passwd", "../index", "a/b", ".hidden", "manifest.json", "a\\n",
                           "shard-00000.safetensors", "shard-00001.safetensors"}) {
    ExpectNoIndex("index.cairn", file);
  }
  ExpectNoIndex("\"index.cairn\"", "7");
  ExpectNoIndex("\"file\":\"index.cairn\",", "");
  for (const char* length : {"-1", "1e3", "\"70000\"", "null", "[70000]", "{\"a\":1}", "499", "268435457",
                             "18446744073709551615", "18446744073709551616"}) {
    ExpectNoIndex("70000", length);
  }
  ExpectNoIndex("\"length\":70000,", "");
  for (const char* head : {"-1", "0.5", "\"500\"", "70001", "18446744073709551615"}) ExpectNoIndex("500", head);
  ExpectNoIndex("70000,\"head\":500", "268435456,\"head\":16777217");
  ExpectNoIndex(",\"head\":500", "");
  for (const char* digest : {"\"00C0FFEE\"", "\"c0ffee\"", "12648430", "null"}) ExpectNoIndex("\"00c0ffee\"", digest);
  ExpectNoIndex(",\"digest\":\"00c0ffee\"", "");
  for (const char* index : {"null", "true", "7", "\"index.cairn\"", "[]", "{}", "[{\"file\":\"index.cairn\"}]"}) {
    ExpectNoIndex("{\"file\":\"index.cairn\",\"length\":70000,\"head\":500,\"digest\":\"00c0ffee\"}", index);
  }
}

TEST(ManifestIndex, LongestIndexIsAccepted) {
  Manifest manifest = Indexed();
  manifest.index->length = kMaxIndexBytes;
  manifest.index->head = kMaxIndexHeadBytes;

  const auto decoded = DecodeManifest(EncodeManifest(manifest), "m");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
}

TEST(ManifestIndex, MembersThatLaterVersionsAddAreSkipped) {
  const std::string more = R"("sums":[1,{"file":2}],"more":{"length":-1,"head":null},)";
  std::string text = EncodeManifest(Indexed());
  text.insert(text.find("\"file\":\"index.cairn\""), more);

  const auto decoded = DecodeManifest(Sealed(text), "m");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Indexed());
}

TEST(ManifestIndex, DuplicateMembersAreRefusedHereToo) {
  std::string twice = EncodeManifest(Indexed());
  twice.insert(twice.find("\"file\":\"index.cairn\""), "\"file\":\"index.cairn\",");
  ExpectBroken(Sealed(twice), "\"index.file\": expected once, found twice");
  std::string again = EncodeManifest(Indexed());
  again.insert(again.find("\"index\":"), "\"index\":null,");
  ExpectBroken(Sealed(again), "\"index\": expected once, found twice");
}

TEST(Manifest, TooLargeAFileIsRefused) {
  ExpectBroken(std::string(kMaxManifestBytes + 1, ' '), "expected at most 67108864 bytes, found 67108865");
}

TEST(Manifest, ManyShardsStayFast) {
  Manifest manifest = Rich();
  manifest.shards.clear();
  manifest.world = 20'000;
  for (std::uint64_t i = 0; i < manifest.world; ++i) {
    manifest.shards.push_back({.file = "shard-" + std::to_string(i), .length = i, .header_digest = 1});
  }
  const auto decoded = DecodeManifest(EncodeManifest(manifest), "m");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
}

}  // namespace
}  // namespace cairn
