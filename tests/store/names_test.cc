#include "store/names.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace cairn {
namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

TEST(Names, StepsRoundTripThroughNames) {
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000}, kLargest - 1, kLargest}) {
    const std::string name = StepName(step);

    EXPECT_EQ(name.size(), 25U) << name;
    EXPECT_EQ(ParseStepName(name), step) << name;
  }
  EXPECT_EQ(StepName(1000), "step-00000000000000001000");
  EXPECT_EQ(StepName(kLargest), "step-18446744073709551615");
}

TEST(Names, StepNamesSortByStep) {
  EXPECT_LT(StepName(9), StepName(10));
  EXPECT_LT(StepName(999'999'999), StepName(1'000'000'000));
  EXPECT_LT(StepName(kLargest - 1), StepName(kLargest));
}

TEST(Names, OtherNamesAreNotSteps) {
  for (const char* name :
       {"", "step-", "step", "step-1000", "step-0000000000000001000", "step-000000000000000001000",
        "step-18446744073709551616", "step-99999999999999999999", "step-+0000000000000001000",
        "step--0000000000000001000", "step- 0000000000000001000", "step-0000000000000000100a",
        "step-00000000000000001000/", "Step-00000000000000001000", "step_00000000000000001000",
        ".step-00000000000000001000", "step-00000000000000001000.tmp", "step-0x000000000000000100"}) {
    EXPECT_EQ(ParseStepName(name), std::nullopt) << name;
  }
}

TEST(Names, OnlyAttemptsRetiredFoldersAndSparesAreLeftovers) {
  EXPECT_TRUE(IsLeftover(AttemptName("0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11")));
  EXPECT_TRUE(IsLeftover(RetiredName("0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11")));
  EXPECT_TRUE(IsLeftover(SpareName(0)));
  EXPECT_EQ(SpareName(64), ".spare-64");

  for (const char* name : {"", ".lock", ".attempt", ".attempt-", ".retired-", ".spare", ".spare-", "attempt-1",
                           "x.attempt-1", ".attempts-1", "step-00000000000000001000", "notes.txt", ".", ".."}) {
    EXPECT_FALSE(IsLeftover(name)) << name;
  }
}

TEST(Names, ShardNumbersMayExceedTheirPadding) {
  EXPECT_EQ(ShardName(0), "shard-00000.safetensors");
  EXPECT_EQ(ShardName(123456), "shard-123456.safetensors");
}

}  // namespace
}  // namespace cairn
