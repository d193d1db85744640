#include <gtest/gtest.h>

#include <random>

#include "base/crc32c.h"
#include "format/fields.h"
#include "format/manifest.h"
#include "format/shard_bytes.h"

// Random damage with a fixed seed: readers may accept or refuse it, but never crash (run under sanitizers), and what
// they accept follows the rules.

namespace cairn {
namespace {

// Pieces that get deep into a parser: purely random bytes rarely pass the first bracket.
const std::vector<std::string>& Pieces() {
  static const std::vector<std::string> pieces{"{",
                                               "}",
                                               "[",
                                               "]",
                                               ",",
                                               ":",
                                               "\"",
                                               "\\",
                                               "0",
                                               "-",
                                               ".",
                                               "e9",
                                               "null",
                                               "true",
                                               "\\u0000",
                                               "\\ud83d",
                                               "\\\"",
                                               "[0,0]",
                                               "{}",
                                               "[]",
                                               "\"F32\"",
                                               "\"shape\"",
                                               "\"dtype\"",
                                               "18446744073709551615",
                                               "9223372036854775807",
                                               "\"t\":",
                                               "\xff",
                                               "\xc3\xa9",
                                               " ",
                                               "\"data_offsets\"",
                                               "\"__metadata__\":{",
                                               "\"cairn.parts\":\"{}\",",
                                               "1e400",
                                               std::string(1, '\0'),
                                               "\"json\"",
                                               "cairn."};
  return pieces;
}

std::string Mutate(std::string text, std::mt19937_64& random) {
  const auto below = [&random](std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random() % n); };
  for (std::size_t n = 1 + below(4); n > 0 && !text.empty(); --n) {
    const std::size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, 1 + below(16));
        break;
      case 3:
        text.insert(at, Pieces()[below(Pieces().size())]);
        break;
      case 4:
        text.insert(at, text.substr(below(text.size()), 1 + below(64)));
        break;
      default:
        text.replace(at, 1, Pieces()[below(Pieces().size())]);
    }
  }
  return text;
}

void ExpectSound(const ShardHeader& header, std::uint64_t file_bytes) {
  std::uint64_t end = 0;
  for (const ShardTensor& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin, end);
    ASSERT_EQ(TensorBytes(tensor.dtype, tensor.shape), tensor.end - tensor.begin);
    if (tensor.part) {
      ASSERT_EQ(PartProblem(tensor.dtype, tensor.shape, *tensor.part), "");
    }
    end = tensor.end;
  }
  ASSERT_EQ(header.file_bytes(), file_bytes);
  if (header.cairn && header.checksums) {
    ASSERT_EQ(header.sums.size(), DivideUp(end, kChecksumBlock));
  }
}

TEST(Mutation, ShardHeadersNeverCrashTheReader) {
  const ShardHeader header = RichHeader();
  const std::string whole(ShardHeaderWriter::Make(header)->bytes().substr(8));
  const std::string json = whole.substr(0, whole.find_last_of('}') + 1);
  std::mt19937_64 random(20240607);
  int accepted = 0;

  for (int round = 0; round < 30'000; ++round) {
    std::string mutated = Mutate(json, random);
    mutated.append(AlignUp(mutated.size() + 8, kBlock) - 8 - mutated.size(), ' ');
    const auto decoded = DecodeJson(mutated, header.data_bytes());
    if (!decoded.ok()) {
      ASSERT_LT(decoded.status().message().size(), 2000U);
      continue;
    }
    ++accepted;
    ExpectSound(*decoded, mutated.size() + 8 + header.data_bytes());
    if (HasFatalFailure()) return;
  }

  EXPECT_GT(accepted, 0) << "the damage is too coarse to test more than the parser";
}

TEST(Mutation, ManifestsNeverCrashTheReader) {
  Manifest manifest;
  manifest.attempt = "a";
  manifest.parent = ManifestParent{.step = 1, .attempt = "b"};
  manifest.shards = {{.file = "s", .length = 1, .header_digest = 2}};
  const std::string text = EncodeManifest(manifest);
  constexpr std::size_t kTail = 25;
  std::mt19937_64 random(20240608);
  int accepted = 0;

  for (int round = 0; round < 30'000; ++round) {
    std::string mutated = Mutate(text.substr(0, text.size() - kTail), random);
    std::string digest;
    AppendHex32(digest, Crc32c(AsBytes(mutated)));
    mutated += text.substr(text.size() - kTail, kTail - 12) + digest + "\"\n}\n";
    const auto decoded = DecodeManifest(mutated, "m");
    if (!decoded.ok()) continue;
    ++accepted;
    for (const ManifestShard& shard : decoded->shards) ASSERT_EQ(shard.file.find('/'), std::string::npos);
  }

  EXPECT_GT(accepted, 0);
}

TEST(Mutation, ValuesThatAreAcceptedRoundTrip) {
  const std::string json = EncodeValues(RichHeader().values, RichHeader().long_values);
  std::mt19937_64 random(20240609);

  for (int round = 0; round < 30'000; ++round) {
    const auto decoded = DecodeValues(Mutate(json, random), "x");
    if (!decoded.ok()) continue;
    const auto again = DecodeValues(EncodeValues(decoded->values, decoded->long_values), "x");
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(again->values, decoded->values);
    ASSERT_EQ(again->long_values, decoded->long_values);
  }
}

}  // namespace
}  // namespace cairn
