#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "base/json_text.h"
#include "base/tensor_table.h"
#include "cairn/tensor.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

TensorView Scalar(double* data) { return {.data = data, .dtype = DType::kF64}; }

TEST(State, CopiesShareUntilOneChanges) {
  double a = 0;
  double b = 0;
  State state;
  ASSERT_TRUE(state.Add("a", Scalar(&a)).ok());
  const auto in_flight = state.table();

  State copy = state;
  EXPECT_EQ(copy.table(), state.table());
  ASSERT_TRUE(copy.Add("b", Scalar(&b)).ok());

  EXPECT_NE(copy.table(), state.table());
  EXPECT_EQ(state.table(), in_flight);
  EXPECT_EQ(in_flight->size(), 1U) << "a save in flight keeps what it was given";
  EXPECT_EQ(copy.tensor_count(), 2U);
  EXPECT_EQ(copy.bytes(), 16U);
}

// Only the owner count shows that the reader is gone, and it orders nothing: ThreadSanitizer reports a table that is
// changed while it may still be read.
TEST(State, SharedTableNeverChangesEvenAfterItsReaderIsGone) {
  double a = 0;
  double b = 0;
  State state;
  ASSERT_TRUE(state.Add("a", Scalar(&a)).ok());
  const TensorTable* const handed_out = state.table().get();
  std::uint64_t read = 0;
  std::thread reader([&read, table = state.table()]() mutable {
    read = table->bytes();
    table.reset();
  });
  while (state.table().use_count() != 1) std::this_thread::yield();

  ASSERT_TRUE(state.Add("b", Scalar(&b)).ok());

  EXPECT_NE(state.table().get(), handed_out);
  EXPECT_EQ(state.bytes(), 16U);
  reader.join();
  EXPECT_EQ(read, 8U);
}

TEST(State, RefusedTensorChangesNothing) {
  double a = 0;
  State state;
  ASSERT_TRUE(state.Add("a", Scalar(&a)).ok());

  EXPECT_EQ(state.Add("a", Scalar(&a)).code(), StatusCode::kInvalidArgument);

  EXPECT_EQ(state.tensor_count(), 1U);
  EXPECT_EQ(state.bytes(), 8U);
}

TEST(State, SetReplacesValues) {
  State state;
  ASSERT_TRUE(state.Set("epoch", std::int64_t{1}).ok());
  ASSERT_TRUE(state.Set("epoch", 2.5).ok());
  ASSERT_TRUE(state.Set("plan", Json{R"({"a":[1,null]})"}).ok());
  ASSERT_TRUE(state.Set("", nullptr).ok());

  EXPECT_EQ(state.values(), (Values{{"", nullptr}, {"epoch", 2.5}, {"plan", Json{R"({"a":[1,null]})"}}}));
}

TEST(State, SetRefusesInvalidValues) {
  State state;
  const auto refused = [&state](std::string name, Value value, const char* words) {
    const Status status = state.Set(std::move(name), std::move(value));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  refused("a\xff", true, "UTF-8");
  refused("a", std::string("\xff"), "UTF-8");
  refused("a", std::numeric_limits<double>::infinity(), "finite");
  refused("a", std::numeric_limits<double>::quiet_NaN(), "finite");
  for (const std::string& text : {std::string(), std::string("{"), std::string("nan"), std::string("1 2"),
                                  std::string("1\0x", 3), std::string("\xef\xbb\xbf{}"), std::string("\"\xff\"")}) {
    refused("a", Json{text}, "JSON");
  }
  EXPECT_TRUE(state.values().empty());
}

TEST(DType, NamesAndSizesAreThoseOfSafetensors) {
  const std::vector<std::pair<std::string, std::size_t>> wanted{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeName(dtype), wanted[i].first);
    EXPECT_EQ(DTypeSize(dtype), wanted[i].second);
    EXPECT_EQ(DTypeFromName(wanted[i].first), dtype);
  }
  EXPECT_EQ(DTypeFromName("f32"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

TEST(JsonText, EscapesSpecialCharacters) {
  std::string out;
  AppendJsonString(out, std::string_view("a\"b\\c\n\r\t\0\x1f\x7f/\xc3\xa9\xf0\x9f\x90\xa7", 18));
  EXPECT_EQ(out, "\"a\\\"b\\\\c\\n\\r\\t\\u0000\\u001f\x7f/\xc3\xa9\xf0\x9f\x90\xa7\"");
  EXPECT_TRUE(IsJson(out));
}

TEST(State, MovedFromStateIsEmptyAndReusable) {
  float memory[4] = {};
  State from;
  ASSERT_TRUE(from.Add("a", {.data = memory, .shape = {4}}).ok());
  const State to = std::move(from);

  State copy = from;  // NOLINT(bugprone-use-after-move)
  copy = from;

  EXPECT_EQ(to.tensor_count(), 1U);
  EXPECT_EQ(copy.tensor_count(), 0U);
  EXPECT_EQ(from.bytes(), 0U);
  EXPECT_TRUE(from.Add("b", {.data = memory, .shape = {4}}).ok());
  EXPECT_EQ(copy.tensor_count(), 0U);
}

}  // namespace
}  // namespace cairn
