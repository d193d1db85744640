#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>

#include "format/shard_header.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

Value RoundTrip(const Value& value) {
  const auto decoded = DecodeValues(EncodeValues({{"v", value}}), "x");
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.ok() ? decoded->values.at("v") : Value();
}

void ExpectCorrupt(std::string_view json, const std::string& words) {
  const auto decoded = DecodeValues(json, "x: values");
  ASSERT_FALSE(decoded.ok()) << json;
  EXPECT_EQ(decoded.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(decoded.status().message(), HasSubstr("x: values"));
  EXPECT_THAT(decoded.status().message(), HasSubstr(words));
}

TEST(Values, KeepTypeAndContent) {
  for (const Value& value :
       {Value(nullptr), Value(true), Value(false), Value(std::int64_t{0}), Value(std::int64_t{-1}),
        Value(std::numeric_limits<std::int64_t>::min()), Value(std::numeric_limits<std::int64_t>::max()),
        Value(std::string()), Value(std::string("null")), Value(std::string("1.0")),
        Value(std::string("{\"json\":\"1\"}")), Value(std::string("\0\x01\x1f\x7f\"\\/\n\r\t\b\f", 12)),
        Value(std::string("\xf0\x9f\x90\xa7\xe2\x80\xa8")), Value(Json{"1"}),
        Value(Json{" {\"b\": 1.0,\t\"a\": [NULL]} "}), Value(Json{"[[], {}]"})}) {
    if (const auto* json = std::get_if<Json>(&value); json != nullptr && json->text.find("NULL") != std::string::npos) {
      EXPECT_FALSE(DecodeValues(EncodeValues({{"v", value}}), "x").ok());
      continue;
    }
    EXPECT_EQ(RoundTrip(value), value);
  }
}

TEST(Values, DoublesKeepTheirBits) {
  std::vector<double> doubles{0.0,
                              -0.0,
                              1.0,
                              -1.0,
                              0.1,
                              1e22,
                              1e23,
                              123456789012345680.0,
                              9007199254740993.0,
                              std::numeric_limits<double>::max(),
                              std::numeric_limits<double>::lowest(),
                              std::numeric_limits<double>::min(),
                              std::numeric_limits<double>::denorm_min(),
                              std::numeric_limits<double>::epsilon(),
                              std::nextafter(1.0, 2.0)};
  std::mt19937_64 random(7);
  while (doubles.size() < 20'000) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) doubles.push_back(value);
  }

  for (const double value : doubles) {
    const Value back = RoundTrip(value);
    ASSERT_TRUE(std::holds_alternative<double>(back)) << value;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(std::get<double>(back)), std::bit_cast<std::uint64_t>(value)) << value;
  }
}

TEST(Values, NamesAreAnyUtf8) {
  const Values values{{"", std::int64_t{1}}, {std::string("\0", 1), std::int64_t{2}}, {"\xf0\x9f\x90\xa7 \"", nullptr}};

  const auto decoded = DecodeValues(EncodeValues(values), "x");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->values, values);
  EXPECT_EQ(EncodeValues({}), "{}");
  EXPECT_TRUE(DecodeValues("{}", "x")->values.empty());
}

TEST(Values, IntegersThatDoNotFitAreRefused) {
  ExpectCorrupt(R"({"n":9223372036854775808})", "value \"n\": expected an integer");
  ExpectCorrupt(R"({"n":18446744073709551616})", "found the number 18446744073709551616");
  ExpectCorrupt(R"({"n":-9223372036854775809})", "found the number -9223372036854775809");
}

TEST(Values, NumbersThatAreNotFiniteAreRefused) {
  ExpectCorrupt(R"({"n":1e999})", "expected JSON, found");
  ExpectCorrupt(R"({"n":NaN})", "expected JSON, found");
  ExpectCorrupt(R"({"n":Infinity})", "expected JSON, found");
}

TEST(Values, DuplicateNamesAreRefused) {
  ExpectCorrupt(R"({"a":1,"a":1})", "value \"a\": expected once, found twice");
  ExpectCorrupt(R"({"a":{"json":"1"},"a":{"json":"1"}})", "value \"a\": expected once");
  ExpectCorrupt(R"({"a":{"json":"1","json":"1"}})", "value \"a\": expected the key \"json\" once");
  ExpectCorrupt(R"({"a":{"json_in":"t","json_in":"t"}})", "value \"a\": expected the key \"json_in\" once");
  ExpectCorrupt(R"({"a":{"json_in":"t","crc32c":"0badcafe"},"a":1})", "value \"a\": expected once, found twice");
}

TEST(Values, JsonIsTaggedAndItsTextIsJson) {
  ExpectCorrupt(R"({"a":{}})", "expected the key \"json\", or \"json_in\" and \"crc32c\", found none");
  ExpectCorrupt(R"({"a":{"jsno":"1"}})", "found \"jsno\"");
  ExpectCorrupt(R"({"a":{"json":1}})", "JSON in a string, found the number 1");
  ExpectCorrupt(R"({"a":{"json":{}}})", "JSON in a string, found an object");
  ExpectCorrupt(R"({"a":{"json":"[1,"}})", "JSON in a string");
  ExpectCorrupt(R"({"a":{"json":"1\u0000"}})", "JSON in a string");
  ExpectCorrupt(R"({"a":[1]})", "expected no array");
}

TEST(Values, LongOnesNameATensorAndTheirDigest) {
  const LongValue value{.name = "a", .tensor = "cairn.values/a", .crc32c = 0x00adcafe};

  const auto decoded = DecodeValues(EncodeValues({{"b", true}}, {{value}}), "x");

  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->values, (Values{{"b", true}}));
  EXPECT_EQ(decoded->long_values, std::vector{value});
  ExpectCorrupt(R"({"a":{"json_in":"t"}})", "found others");
  ExpectCorrupt(R"({"a":{"crc32c":"0badcafe"}})", "found others");
  ExpectCorrupt(R"({"a":{"json":"1","json_in":"t","crc32c":"0badcafe"}})", "found others");
  ExpectCorrupt(R"({"a":{"json_in":1,"crc32c":"0badcafe"}})", "a tensor's name, found the number 1");
  ExpectCorrupt(R"({"a":{"json_in":"t","crc32c":"0BADCAFE"}})", "8 lower-case hexadecimal digits");
  ExpectCorrupt(R"({"a":{"json_in":"t","crc32c":1}})", "8 lower-case hexadecimal digits");
}

TEST(Values, OnlyOneObjectIsAccepted) {
  ExpectCorrupt("", "JSON object");
  ExpectCorrupt("[]", "JSON object");
  ExpectCorrupt("\xef\xbb\xbf{}", "JSON object");
  ExpectCorrupt("{} {}", "byte");
  ExpectCorrupt(std::string_view("{}\0", 3), "zero byte at 2");
  ExpectCorrupt(R"({"a":"\ud800"})", "byte");
  ExpectCorrupt("{\"a\":\"\xc0\x80\"}", "byte");
}

}  // namespace
}  // namespace cairn
