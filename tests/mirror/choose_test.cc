#include "mirror/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StoredCheckpoint At(std::uint64_t step, std::uint64_t line = 1, const std::string& attempt = "a") {
  StoredCheckpoint one;
  one.info.step = step;
  one.info.line = line;
  one.info.attempt = attempt + std::to_string(step);
  return one;
}

std::vector<std::uint64_t> Due(const std::vector<StoredCheckpoint>& root, const std::vector<StoredCheckpoint>& target,
                               const MirrorRules& rules = {}, const std::set<std::string>& copied = {}) {
  std::vector<std::uint64_t> steps;
  for (const StoredCheckpoint* one : ChooseDue(root, target, rules, copied)) steps.push_back(one->info.step);
  return steps;
}

TEST(ChooseOldDamaged, WhatTheRulesWouldRetireWereItWhole) {
  const auto damaged = [](std::uint64_t step, StatusCode code = StatusCode::kCorrupt) {
    StoredCheckpoint one = At(step);
    one.info.status = Status(code, "damaged");
    return one;
  };
  const std::vector<StoredCheckpoint> all{
      At(30),      At(40),      At(50),     damaged(10), damaged(20, StatusCode::kUnsupported),
      damaged(25), damaged(45), damaged(60)};
  const auto chosen = [&all](const MirrorRules& rules) {
    std::vector<const CheckpointInfo*> list;
    for (const StoredCheckpoint& one : all) list.push_back(&one.info);
    return ChooseOldDamaged(list, rules);
  };

  EXPECT_THAT(chosen({}), IsEmpty());
  EXPECT_THAT(chosen({.keep_last = 4}), IsEmpty());
  EXPECT_THAT(chosen({.keep_last = 2}), ElementsAre(10, 25));
  EXPECT_THAT(chosen({.keep_last = 1}), ElementsAre(10, 25, 45));
  EXPECT_THAT(chosen({.keep_last = 2, .keep_every = 10}), ElementsAre(25));
}

TEST(ChooseDue, NewestFirstAndWhatTheTargetLacks) {
  EXPECT_THAT(Due({At(10), At(20), At(30)}, {}), ElementsAre(30, 20, 10));
  EXPECT_THAT(Due({At(10), At(20), At(30)}, {At(20)}), ElementsAre(30, 10));
  EXPECT_THAT(Due({At(10), At(20)}, {At(10), At(20)}), IsEmpty());
}

TEST(ChooseDue, WhatIsDamagedKeepsNoOthersOut) {
  std::vector<std::uint64_t> steps;
  const std::vector<StoredCheckpoint> root{At(10), At(20), At(30)};
  for (const auto* one : ChooseDue(root, {}, {.keep_last = 1}, {}, {{"a30", "a flipped bit"}})) {
    steps.push_back(one->info.step);
  }
  EXPECT_THAT(steps, ElementsAre(20));
}

TEST(ChooseDue, OnlyWhatTheRulesTakeAndRetentionWouldLeave) {
  const std::vector<StoredCheckpoint> root{At(10), At(20), At(30), At(40)};

  EXPECT_THAT(Due(root, {}, {.every = 20}), ElementsAre(40, 20));
  EXPECT_THAT(Due(root, {}, {.keep_last = 2}), ElementsAre(40, 30));
  EXPECT_THAT(Due(root, {}, {.keep_last = 1, .keep_every = 20}), ElementsAre(40, 20));
  EXPECT_THAT(Due(root, {At(50)}, {.keep_last = 2}), ElementsAre(40)) << "the root has lost step 50";
}

TEST(ChooseDue, TheNewestFiniteOneIsWorthACopy) {
  std::vector<StoredCheckpoint> root{At(10), At(20), At(30)};
  root[1].info.nonfinite = root[2].info.nonfinite = NonFinite::kNaN;

  EXPECT_THAT(Due(root, {}, {.keep_last = 1}), ElementsAre(30, 10));
}

TEST(ChooseDue, PinsOfTheRootAreItsOwn) {
  std::vector<StoredCheckpoint> root{At(10), At(20)};
  root[0].info.pinned = true;

  EXPECT_THAT(Due(root, {}, {.keep_last = 1}), ElementsAre(20));
}

TEST(ChooseDue, AReplacedStepIsDueButNeverOverANewerLine) {
  EXPECT_THAT(Due({At(10, 1, "b")}, {At(10, 1, "a")}, {}, {"a10"}), ElementsAre(10));
  EXPECT_THAT(Due({At(10, 1, "b")}, {At(10, 1, "a")}), IsEmpty()) << "somebody else's, perhaps the newer";
  EXPECT_THAT(Due({At(10, 2, "b")}, {At(10, 1, "a")}), ElementsAre(10));
  EXPECT_THAT(Due({At(10, 1, "b")}, {At(10, 2, "a")}), IsEmpty());
}

TEST(ChooseDue, DamagedOnesCountAsMissingAtTheTargetAndAsNothingInTheRoot) {
  StoredCheckpoint bad = At(10);
  bad.info.status = Status(StatusCode::kCorrupt, "a bit");

  EXPECT_THAT(Due({At(10)}, {bad}), ElementsAre(10));
  EXPECT_THAT(Due({bad}, {}), IsEmpty());
}

}  // namespace
}  // namespace cairn
