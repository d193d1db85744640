#include "base/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/store_order.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorTableTest : public ::testing::Test {
 protected:
  TensorView View(DType dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {}) {
    return {.data = memory_.data(), .dtype = dtype, .shape = std::move(shape), .strides = std::move(strides)};
  }
  void ExpectRefused(const std::string& name, TensorView view, const std::string& words) {
    const Status status = table_.Add(name, std::move(view));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(status.message(), HasSubstr(words));
    EXPECT_EQ(table_.size(), 0U);
    EXPECT_EQ(table_.bytes(), 0U);
    EXPECT_FALSE(table_.Find(name));
  }

  alignas(64) std::array<std::byte, 65536 * 2> memory_{};
  TensorTable table_;
};

TEST_F(TensorTableTest, KeepsWhatWasAdded) {
  ASSERT_TRUE(table_.Add("w", View(DType::kF32, {2, 3})).ok());
  ASSERT_TRUE(table_.Add("s", View(DType::kI64, {})).ok());

  ASSERT_EQ(table_.size(), 2U);
  EXPECT_EQ(table_.bytes(), 32U);
  EXPECT_EQ(table_.Find("s"), 1U);
  EXPECT_EQ(table_.Find("x"), std::nullopt);
  EXPECT_EQ(table_[0].name, "w");
  EXPECT_EQ(table_[0].bytes(), 24U);
  EXPECT_THAT(table_.devices(), ElementsAre(DeviceId{}));
}

TEST_F(TensorTableTest, RefusesNames) {
  ExpectRefused("", View(DType::kU8, {1}), "empty");
  ExpectRefused("a\xc0\x80", View(DType::kU8, {1}), "UTF-8");
  ExpectRefused("__metadata__", View(DType::kU8, {1}), "__metadata__");
  ASSERT_TRUE(table_.Add("w", View(DType::kU8, {1})).ok());
  EXPECT_THAT(table_.Add("w", View(DType::kU8, {1})).message(), HasSubstr("\"w\" was already added"));
  EXPECT_EQ(table_.size(), 1U);
}

TEST_F(TensorTableTest, RefusesInconsistentViews) {
  ExpectRefused("w", View(DType::kU8, {2, 2}, {1}), "expected 2 strides");
  ExpectRefused("w", View(DType::kU8, {2, -1}), "negative extent");
  ExpectRefused("w", View(static_cast<DType>(17), {1}), "unknown dtype");
  TensorView null = View(DType::kU8, {1});
  null.data = nullptr;
  ExpectRefused("w", null, "null");
}

TEST_F(TensorTableTest, RefusesSizesThatOverflow) {
  constexpr std::int64_t kBig = std::int64_t{1} << 32;
  ExpectRefused("w", View(DType::kU8, {kBig, kBig}), "2^62");
  ExpectRefused("w", View(DType::kU8, {kBig, kBig}, {1, 1}), "2^62");
  ExpectRefused("w", View(DType::kU8, {2, 2}, {std::int64_t{1} << 62, 1}), "2^62");
  ExpectRefused("w", View(DType::kU8, {3, 2}, {std::numeric_limits<std::int64_t>::min(), 1}), "2^62");
  // safetensors multiplies from the left, and refuses an overflow before the zero.
  ExpectRefused("w", View(DType::kU8, {kBig, kBig, 0}), "2^62");
}

TEST_F(TensorTableTest, KnowsElementsThatShareMemoryOrRunBackwards) {
  TensorView on_gpu = View(DType::kU8, {4}, {0});
  on_gpu.device = {DeviceKind::kCuda, 0};
  ExpectRefused("w", on_gpu, "its elements share memory or run backwards: shape [4], strides [0]");
  const auto save_only = [this](const std::string& name, const TensorView& view) {
    EXPECT_TRUE(table_.Add(name, view).ok()) << name;
    return table_[table_.size() - 1].save_only;
  };
  EXPECT_TRUE(save_only("expanded", View(DType::kU8, {4}, {0})));
  EXPECT_TRUE(save_only("windows", View(DType::kU8, {3, 3}, {2, 1})));
  EXPECT_TRUE(save_only("the same rows", View(DType::kU8, {2, 2}, {1, 1})));
  EXPECT_TRUE(save_only("reversed", View(DType::kU8, {2, 2}, {-2, 1})));
  EXPECT_FALSE(save_only("one", View(DType::kU8, {1, 1}, {0, 0}))) << "one element cannot overlap itself";
  EXPECT_FALSE(save_only("one, reversed", View(DType::kU8, {1, 1}, {-1, 1})));
  EXPECT_FALSE(save_only("none", View(DType::kU8, {3, 0}, {0, 0})));
  EXPECT_FALSE(save_only("transposed", View(DType::kU8, {3, 2}, {1, 3})));
  EXPECT_FALSE(save_only("contiguous", View(DType::kU8, {3, 2})));
}

TEST_F(TensorTableTest, RefusesViewsBeyondTheirMemory) {
  TensorView view = View(DType::kF32, {2, 3}, {4, 1});
  view.bytes = 27;
  ExpectRefused("w", view, "spans 28 bytes, but its memory holds 27");
  TensorView reversed = View(DType::kF32, {2}, {-1});
  reversed.bytes = 8;
  ExpectRefused("w", reversed, "strides [-1] lead to before its memory");
  view.bytes = 28;
  EXPECT_TRUE(table_.Add("w", view).ok());
}

TEST_F(TensorTableTest, RefusesPartsThatDoNotFit) {
  const auto with = [this](TensorPart part) {
    TensorView view = View(DType::kU8, {2, 2});
    view.part = std::move(part);
    return view;
  };
  ExpectRefused("w", with({.logical_name = "", .global_shape = {4, 2}, .offset = {0, 0}}), "logical name");
  ExpectRefused("w", with({.logical_name = "v", .global_shape = {4}, .offset = {0, 0}}), "found 1 and 2");
  ExpectRefused("w", with({.logical_name = "v", .global_shape = {4, 2}, .offset = {3, 0}}), "is not within");
  ExpectRefused("w", with({.logical_name = "v", .global_shape = {4, 2}, .offset = {-1, 0}}), "is not within");
  ExpectRefused("w", with({.logical_name = "v", .global_shape = {1LL << 62, 2}, .offset = {0, 0}}), "2^62");
  EXPECT_TRUE(table_.Add("w", with({.logical_name = "v", .global_shape = {4, 2}, .offset = {2, 0}})).ok());
}

TEST_F(TensorTableTest, TheSameMemoryIsStoredOnce) {
  ASSERT_TRUE(table_.Add("embed", View(DType::kF32, {2, 3})).ok());
  ASSERT_TRUE(table_.Add("head", View(DType::kF32, {2, 3})).ok());
  ASSERT_TRUE(table_.Add("other shape", View(DType::kF32, {3, 2})).ok());
  ASSERT_TRUE(table_.Add("other strides", View(DType::kF32, {2, 3}, {1, 2})).ok());
  ASSERT_TRUE(table_.Add("tied again", View(DType::kF32, {2, 3}, {3, 1})).ok());

  EXPECT_EQ(table_[1].alias_of, 0U);
  EXPECT_FALSE(table_[2].is_alias());
  EXPECT_FALSE(table_[3].is_alias());
  EXPECT_EQ(table_[4].alias_of, 0U) << "strides that mean contiguous are contiguous";
  EXPECT_EQ(table_.bytes(), 72U);
  EXPECT_THAT(table_.StoreOrder(), ElementsAre(0U, 2U, 3U));
}

// On disk an alias has the part of the tensor that it is tied to, so a different part would be lost.
TEST_F(TensorTableTest, TheSameMemoryAsAnotherPartIsStoredTwice) {
  const auto part = [this](const std::optional<TensorPart>& of) {
    TensorView view = View(DType::kF32, {2, 3});
    view.part = of;
    return view;
  };
  ASSERT_TRUE(table_.Add("embed", part(TensorPart{"embed", {4, 3}, {2, 0}})).ok());
  ASSERT_TRUE(table_.Add("other logical name", part(TensorPart{"head", {4, 3}, {2, 0}})).ok());
  ASSERT_TRUE(table_.Add("other offset", part(TensorPart{"embed", {4, 3}, {0, 0}})).ok());
  ASSERT_TRUE(table_.Add("whole", part({})).ok());
  ASSERT_TRUE(table_.Add("equal part", part(TensorPart{"embed", {4, 3}, {2, 0}})).ok());

  EXPECT_THAT(table_.StoreOrder(), ElementsAre(0U, 1U, 2U, 3U));
  EXPECT_EQ(table_[4].alias_of, 0U);
}

TEST_F(TensorTableTest, StoreOrderIsByDtypeThenName) {
  for (const auto& [name, dtype] : std::vector<std::pair<std::string, DType>>{
           {"b", DType::kF32}, {"z", DType::kU8}, {"a", DType::kF32}, {"m", DType::kI64}, {"n", DType::kBF16}}) {
    TensorView view = View(dtype, {1});
    view.data = memory_.data() + 64 * table_.size();
    ASSERT_TRUE(table_.Add(name, view).ok());
  }

  std::vector<std::string> names;
  for (const std::uint32_t i : table_.StoreOrder()) names.push_back(table_[i].name);

  EXPECT_THAT(names, ElementsAre("m", "a", "b", "n", "z"));
}

TEST_F(TensorTableTest, StoreOrderPutsSmallTensorsSideBySide) {
  const std::int64_t small = kSmallStoredBytes / 4;
  for (const auto& [name, extent] :
       std::vector<std::pair<std::string, std::int64_t>>{{"a", small + 1}, {"b", small}, {"c", small + 1}, {"d", 1}}) {
    TensorView view = View(DType::kF32, {extent});
    view.data = memory_.data() + 64 * table_.size();
    ASSERT_TRUE(table_.Add(name, view).ok());
  }

  std::vector<std::string> names;
  for (const std::uint32_t i : table_.StoreOrder()) names.push_back(table_[i].name);

  EXPECT_THAT(names, ElementsAre("b", "d", "a", "c"));
}

TEST_F(TensorTableTest, SmallCpuTensorsAreThoseWithinBothBounds) {
  ASSERT_TRUE(table_.Add("at the bound", View(DType::kU8, {65536})).ok());
  ASSERT_TRUE(table_.Add("above", View(DType::kU8, {65537})).ok());
  TensorView cuda = View(DType::kU8, {8});
  cuda.device = {DeviceKind::kCuda, 0};
  ASSERT_TRUE(table_.Add("elsewhere", cuda).ok());
  for (int i = 0; i < 100; ++i) {
    TensorView view = View(DType::kU8, {65536});
    view.data = memory_.data() + 1 + i;
    ASSERT_TRUE(table_.Add("n" + std::to_string(i), view).ok());
  }

  EXPECT_EQ(table_.small_bytes(), kSmallTensorsTotal);
  EXPECT_EQ(table_.small().size(), kSmallTensorsTotal / 65536);
  EXPECT_EQ(table_.small()[0], 0U);
  EXPECT_EQ(table_.small()[1], 3U);
  EXPECT_THAT(table_.devices(), ElementsAre(DeviceId{}, DeviceId{DeviceKind::kCuda, 0}));
}

TEST_F(TensorTableTest, CopyIsIndependent) {
  ASSERT_TRUE(table_.Add("w", View(DType::kU8, {4})).ok());
  ASSERT_THAT(table_.StoreOrder(), ElementsAre(0U));

  auto copy = std::make_unique<TensorTable>(table_);
  ASSERT_TRUE(copy->Add("tied", View(DType::kU8, {4})).ok());
  ASSERT_TRUE(copy->Add("x", View(DType::kI64, {1})).ok());

  EXPECT_EQ(table_.size(), 1U);
  EXPECT_FALSE(table_.Find("x"));
  EXPECT_EQ((*copy)[1].alias_of, 0U) << "ties to what was added before the copy are found";
  EXPECT_THAT(copy->StoreOrder(), ElementsAre(2U, 0U));
  EXPECT_EQ(copy->Find("w"), 0U);
  copy.reset();
  EXPECT_EQ(table_.Find("w"), 0U);
}

}  // namespace
}  // namespace cairn
