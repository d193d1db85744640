#include "safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "testing/temp_dir.h"

namespace cairn::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SafetensorsTest : public ::testing::Test {
 protected:
  void Write(const std::string& header, const std::string& data) const {
    std::ofstream file(path_, std::ios::binary);
    for (std::size_t i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i)));
    file << header << data;
  }
  void ExpectRefused(const std::string& why) const {
    EXPECT_THAT([&] { SafetensorsFile file(path_); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(path_ + ": "), HasSubstr(why))));
  }

  const TempDir folder_;
  const std::string path_ = folder_ / "model.safetensors";
};

TEST_F(SafetensorsTest, GivesTensorsByName) {
  Write(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I8","shape":[3],"data_offsets":[4,7]},)"
      R"("a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},"none":{"dtype":"F32","shape":[0,9],"data_offsets":[4,4]}}  )",
      "wxyzabc");

  const SafetensorsFile file(path_);

  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(Describe(file.tensors().at("a").dtype, file.tensors().at("a").shape), "U8 [2, 2]");
  EXPECT_THAT(file.tensors().at("b").bytes, ElementsAre(std::byte{'a'}, std::byte{'b'}, std::byte{'c'}));
  EXPECT_TRUE(file.tensors().at("none").bytes.empty());
}

TEST_F(SafetensorsTest, RefusesAnInvalidEntry) {
  const auto refused_with = [&](const std::string& entry, const std::string& why) {
    Write(R"({"a":)" + entry + "}", "wxyz");
    ExpectRefused("tensor \"a\": " + why);
  };

  refused_with(R"([1])", "expected dtype, shape and data_offsets, found [1]");
  refused_with(R"({"dtype":"U8","shape":[4]})", "expected dtype, shape and data_offsets");
  refused_with(R"({"dtype":"U8","shape":[4],"offsets":[0,4]})", "data_offsets: expected array, found none");
  refused_with(R"({"dtype":"Q8","shape":[4],"data_offsets":[0,4]})", "unknown dtype: Q8");
  refused_with(R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})", "dtype: expected string, found 8");
  refused_with(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})", "shape: expected an unsigned integer, found -4");
  refused_with(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})",
               "shape: expected an unsigned integer, found 4.0");
  refused_with(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]})", "shape: too large");
  refused_with(R"({"dtype":"U8","shape":[4],"data_offsets":[0]})", "data_offsets: expected two offsets, found [0]");
  refused_with(R"({"dtype":"U8","shape":[4],"data_offsets":[0,3]})",
               "data_offsets: expected 4 bytes for U8 [4] within 4, found [0,3]");
  refused_with(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})", "data_offsets: expected 4 bytes");
  refused_with(R"({"dtype":"U8","shape":[4],"data_offsets":[1,5]})", "data_offsets: expected 4 bytes");
  refused_with(R"({"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,0]})",
               "data_offsets: expected an unsigned integer");
}

TEST_F(SafetensorsTest, RefusesGapsOverlapsAndTrailingBytes) {
  Write(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
        "xyz");
  ExpectRefused("tensors overlap or leave a gap");

  Write(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "xyz");
  ExpectRefused("tensors overlap or leave a gap");

  Write(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xyz");
  ExpectRefused("bytes after the last tensor");
}

TEST_F(SafetensorsTest, RefusesAFileOfAnotherFormat) {
  ExpectRefused("cannot read: No such file");

  std::ofstream(path_) << "short";
  ExpectRefused("too short");

  std::ofstream(path_) << "This is a text file without any tensors.";
  ExpectRefused("bytes in a file of 40");

  Write("[]", "");
  ExpectRefused("its header is not a JSON object");

  Write("{\"a\":", "");
  ExpectRefused("its header is not a JSON object");
}

}  // namespace
}  // namespace cairn::trainer
