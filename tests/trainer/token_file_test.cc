#include "data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "testing/temp_dir.h"
#include "trainer/write_text.h"

namespace cairn::trainer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A folder with the tokens 3 1 4 1 5 and a vocabulary of 6.
class TokenFileTest : public ::testing::Test {
 protected:
  TokenFileTest() { WriteText(folder_.path(), {3, 1, 4, 1, 5}, 6); }

  void ChangeAbout(const std::function<void(json&)>& change) const { trainer::ChangeAbout(folder_.path(), change); }
  void ExpectRefused(const std::string& file, const std::string& why) const {
    EXPECT_THAT([&] { TokenFile(folder_.path()); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(folder_ / file + ": "), HasSubstr(why))));
  }

  const TempDir folder_;
};

TEST_F(TokenFileTest, ReadsTokensFromAnyPosition) {
  const TokenFile file(folder_.path());

  std::vector<std::int64_t> read(3);
  file.Read(2, read);

  EXPECT_THAT(read, ElementsAre(4, 1, 5));
  EXPECT_EQ(file.size(), 5U);
  EXPECT_EQ(file.vocabulary(), 6U);
}

TEST_F(TokenFileTest, ReadsTokensOfFourBytes) {
  // The same bytes, read as 0x00010003 and 0x00050004.
  WriteText(folder_.path(), {3, 1, 4, 5}, 6);
  ChangeAbout([](json& about) { about.update({{"dtype", "u32"}, {"tokens", 2}, {"vocabulary", 0x50005}}); });

  std::vector<std::int64_t> read(2);
  TokenFile(folder_.path()).Read(0, read);

  EXPECT_THAT(read, ElementsAre(0x10003, 0x50004));
}

TEST_F(TokenFileTest, ReadsTheSpecialTokens) {
  EXPECT_TRUE(TokenFile(folder_.path()).special().empty());

  WriteText(folder_.path(), {3, 1, 4, 1, 5}, 6, {{"[CLS]", 2}, {"[SEP]", 5}});

  EXPECT_EQ(TokenFile(folder_.path()).special(), (SpecialTokens{{"[CLS]", 2}, {"[SEP]", 5}}));
}

TEST_F(TokenFileTest, RefusesEachInvalidField) {
  const auto refused_with = [&](const char* field, const json& value, const std::string& why) {
    const json before = json::parse(std::ifstream(folder_ / "data.json"));
    ChangeAbout([&](json& about) { about[field] = value; });
    ExpectRefused("data.json", std::string(field) + ": expected " + why);
    std::ofstream(folder_ / "data.json") << before;
  };

  refused_with("kind", "pictures", "\"text\", found \"pictures\"");
  refused_with("dtype", "f32", "\"u16\" or \"u32\", found \"f32\"");
  refused_with("tokens", -5, "an unsigned integer, found -5");
  refused_with("tokens", 5.0, "an unsigned integer, found 5.0");
  refused_with("vocabulary", std::uint64_t{1} << 33U, "at most 4294967296, found 8589934592");
  refused_with("vocabulary", "6", "an unsigned integer, found \"6\"");
  refused_with("checksum", "crc32:00000000", "crc32:");
  refused_with("special_tokens", 3, "an object, found 3");
  refused_with("special_tokens", {{"[SEP]", 6}}, "for [SEP] a number below the vocabulary of 6, found {\"[SEP]\":6}");
  refused_with("special_tokens", {{"[SEP]", "3"}}, "for [SEP] a number below the vocabulary of 6");
  refused_with("checksum", nullptr, "a string, found null");
}

TEST_F(TokenFileTest, RefusesAMissingField) {
  for (const char* field : {"kind", "dtype", "tokens", "vocabulary", "checksum"}) {
    WriteText(folder_.path(), {3, 1, 4, 1, 5}, 6);
    ChangeAbout([&](json& about) { about.erase(field); });
    ExpectRefused("data.json", std::string(field) + ": expected ");
  }
}

TEST_F(TokenFileTest, NamesTheTokenOutsideTheVocabulary) {
  WriteText(folder_.path(), {3, 1, 4, 6, 5}, 6);

  ExpectRefused("tokens.bin", "token 3: expected a number below data.json's vocabulary of 6, found 6");
}

TEST_F(TokenFileTest, RefusesAFileOfTheWrongSize) {
  ChangeAbout([](json& about) { about["tokens"] = 6; });
  ExpectRefused("tokens.bin", "expected 6 tokens of 2 bytes, according to data.json, found 10 bytes");

  WriteText(folder_.path(), {}, 6);
  ChangeAbout([](json& about) { about["tokens"] = 1; });
  ExpectRefused("tokens.bin", "found 0 bytes");
}

TEST_F(TokenFileTest, RefusesAFlippedBit) {
  std::fstream(folder_ / "tokens.bin", std::ios::binary | std::ios::in | std::ios::out).put(2);

  ExpectRefused("data.json", "checksum: expected crc32:");
}

TEST_F(TokenFileTest, RefusesInvalidJsonAndMissingFiles) {
  std::ofstream(folder_ / "data.json") << "{\"kind\": ";
  ExpectRefused("data.json", "expected a JSON object");

  std::filesystem::remove(folder_ / "data.json");
  ExpectRefused("data.json", "cannot read the file");

  WriteText(folder_.path(), {3}, 6);
  std::filesystem::remove(folder_ / "tokens.bin");
  ExpectRefused("tokens.bin", "cannot read: No such file");
}

}  // namespace
}  // namespace cairn::trainer
