#include "data/question_file.h"

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
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A folder with 20 tokens 0, 1, ... of a vocabulary of 20, in features of at most 8 tokens.
class QuestionFileTest : public ::testing::Test {
 protected:
  QuestionFileTest() {
    std::vector<std::uint16_t> tokens(20);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i);
    WriteQuestions(folder_.path(), tokens, tokens.size(), 8);
  }

  void ChangeAbout(const std::function<void(json&)>& change) const { trainer::ChangeAbout(folder_.path(), change); }
  /// Overwrites a field of the second feature, and updates the checksum.
  void ChangeFeature(std::size_t field, char value) const {
    std::fstream(folder_ / "features.bin", std::ios::binary | std::ios::in | std::ios::out)
        .seekp(static_cast<std::streamoff>(16 + 4 * field))
        .put(value);
    ChangeAbout([&](json& about) { about["features_checksum"] = MappedFile(folder_ / "features.bin").Checksum(); });
  }
  void ExpectRefused(const std::string& file, const std::string& why) const {
    EXPECT_THAT([&] { QuestionFile(folder_.path()); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(folder_ / file + ": "), HasSubstr(why))));
  }

  const TempDir folder_;
};

TEST_F(QuestionFileTest, GivesFeaturesByTheirNumber) {
  const QuestionFile file(folder_.path());

  ASSERT_GE(file.size(), 3U);
  const Feature& first = file.feature(0);
  const Feature& second = file.feature(1);
  std::vector<std::int64_t> read(second.length);
  file.Read(1, read);

  EXPECT_EQ(read.front(), first.length);
  EXPECT_EQ(read.back(), first.length + second.length - 1);
  EXPECT_EQ(first.start, 0U);
  EXPECT_EQ(first.end, 0U);
  EXPECT_GE(second.start, second.context);
  EXPECT_EQ(file.sequence(), 8U);
  EXPECT_EQ(file.tokens().special().at("[SEP]"), 3);
}

TEST_F(QuestionFileTest, RefusesEachFieldOfAFeatureByItsNumber) {
  const Feature second = QuestionFile(folder_.path()).feature(1);
  const auto refused_with = [&](std::size_t field, std::uint32_t value, std::uint32_t right, const std::string& why) {
    ChangeFeature(field, static_cast<char>(value));
    ExpectRefused("features.bin", "feature 1: " + why + ", found " + std::to_string(value));
    ChangeFeature(field, static_cast<char>(right));
  };
  const std::string below = "less than " + std::to_string(second.length);

  refused_with(0, 0, second.length, "length: expected 1 to 8");
  refused_with(0, 9, second.length, "length: expected 1 to 8");
  refused_with(1, second.length, second.context, "context: expected " + below);
  refused_with(2, second.end + 1, second.start, "start: expected at most its end, " + std::to_string(second.end));
  refused_with(3, second.length, second.end, "end: expected " + below);
  EXPECT_EQ(QuestionFile(folder_.path()).feature(1).end, second.end);
}

TEST_F(QuestionFileTest, RefusesFeaturesOfOtherTokens) {
  WriteQuestions(folder_.path(), std::vector<std::uint16_t>(40), 20, 8);
  const json whole = json::parse(std::ifstream(folder_ / "data.json"));
  WriteText(folder_.path(), std::vector<std::uint16_t>(39), 20);
  const json fewer = json::parse(std::ifstream(folder_ / "data.json"));
  json about = whole;
  about["tokens"] = fewer["tokens"];
  about["checksum"] = fewer["checksum"];
  std::ofstream(folder_ / "data.json") << about;

  ExpectRefused("features.bin", "expected features of 39 tokens in total, as in tokens.bin, found 40");
}

TEST_F(QuestionFileTest, RefusesEachInvalidField) {
  const json whole = json::parse(std::ifstream(folder_ / "data.json"));
  const auto refused_with = [&](const char* field, const json& value, const std::string& why) {
    ChangeAbout([&](json& about) { about[field] = value; });
    ExpectRefused("data.json", std::string(field) + ": expected " + why);
    ChangeAbout([&](json& about) { about.erase(field); });
    ExpectRefused("data.json", std::string(field) + ": expected ");
    std::ofstream(folder_ / "data.json") << whole;
  };

  refused_with("kind", "text", "\"questions\", found \"text\"");
  refused_with("features", -1, "an unsigned integer, found -1");
  refused_with("sequence", std::uint64_t{1} << 31U, "at most 2147483647, found 2147483648");
  refused_with("features_checksum", "crc32:00000000", "crc32:");
  refused_with("checksum", "crc32:00000000", "crc32:");
  refused_with("vocabulary", nullptr, "an unsigned integer, found null");
}

TEST_F(QuestionFileTest, RefusesAWrongSizeOrAMissingFile) {
  ChangeAbout([](json& about) { about["features"] = 100; });
  ExpectRefused("features.bin", "expected 100 features of 16 bytes, according to data.json, found ");

  std::filesystem::remove(folder_ / "features.bin");
  ExpectRefused("features.bin", "cannot read: No such file");
}

TEST_F(QuestionFileTest, RefusesATokenOutsideTheVocabulary) {
  ChangeAbout([](json& about) { about["vocabulary"] = 19; });

  ExpectRefused("tokens.bin", "token 19: expected a number below data.json's vocabulary of 19, found 19");
}

}  // namespace
}  // namespace cairn::trainer
