#include "base/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
namespace {

TEST(IsJson, TakesOneValueAlone) {
  using namespace std::string_view_literals;
  for (const std::string_view good : {"0"sv, "-0.5e+10"sv, "\"\""sv, "null"sv, " [ ] "sv, "{\"a\":[1,{}],\"a\":2}"sv,
                                      "\"\\ud83d\\udc27 \xf0\x9f\x90\xa7 \\\" \x7f\""sv, "1e-400"sv}) {
    EXPECT_TRUE(IsJson(good)) << good;
  }
  for (const std::string_view bad : {""sv,
                                     " "sv,
                                     "1 2"sv,
                                     "[1,]"sv,
                                     "[,1]"sv,
                                     "{\"a\"}"sv,
                                     "{1:2}"sv,
                                     "[1}"sv,
                                     "[[1]"sv,
                                     "]"sv,
                                     "01"sv,
                                     "1."sv,
                                     "+1"sv,
                                     "-"sv,
                                     "1e"sv,
                                     "1e400"sv,
                                     "nul"sv,
                                     "NaN"sv,
                                     "'a'"sv,
                                     "\"a"sv,
                                     "\"\\x\""sv,
                                     "\"\\u12\""sv,
                                     "\"\\ud83d\""sv,
                                     "\"\\udc27\""sv,
                                     "\"\n\""sv,
                                     "\"\xff\""sv,
                                     "1\0"sv,
                                     "\"\0\""sv,
                                     "\xef\xbb\xbf"
                                     "1"sv}) {
    EXPECT_FALSE(IsJson(bad)) << bad;
  }
  EXPECT_TRUE(IsJson(std::string(100'000, '[') + std::string(100'000, ']')));
}

// The library's parser stops at a zero byte and skips a byte order mark, but neither is valid JSON.
bool LibraryTakes(const std::string& text) {
  if (text.find('\0') != std::string::npos || text.starts_with("\xef\xbb\xbf")) return false;
  return nlohmann::json::accept(text);
}

TEST(IsJson, TakesWhatTheLibraryTakes) {
  const std::vector<std::string> pieces{"{",
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
                                        "+",
                                        "true",
                                        "null",
                                        "\\u0000",
                                        "\\ud83d",
                                        "\\udc27",
                                        "\\\"",
                                        "{}",
                                        "1e400",
                                        "1e-400",
                                        "\"a\":",
                                        "\xff",
                                        "\xc3\xa9",
                                        "\xed\xa0\x80",
                                        " ",
                                        "\n",
                                        "long enough for a word",
                                        "\x7f"};
  const std::string valid =
      R"({"version":4,"tree":{"a":["list",1,-2.5e+3,null,true,"\u00e9\ud83d\udc27\"\\"],"b":["float","inf"]},"c":{}})";
  std::mt19937_64 random(20261130);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int taken = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string text = valid;
    for (std::size_t n = 1 + below(3); n > 0; --n) {
      const std::size_t at = below(text.size() + 1);
      if (below(3) > 0) text.erase(at, below(3));
      if (below(3) > 0) text.insert(std::min(at, text.size()), pieces[below(pieces.size())]);
    }
    ASSERT_EQ(IsJson(text), LibraryTakes(text)) << text;
    taken += IsJson(text) ? 1 : 0;
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace cairn
