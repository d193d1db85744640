#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "store/list.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CheckpointInfo Stored(std::uint64_t step, std::uint64_t generation = 0, bool pinned = false) {
  CheckpointInfo checkpoint;
  checkpoint.step = step;
  checkpoint.generation = generation;
  checkpoint.pinned = pinned;
  return checkpoint;
}
CheckpointInfo Damaged(std::uint64_t step) {
  CheckpointInfo checkpoint = Stored(step);
  checkpoint.status = Status(StatusCode::kCorrupt, "flipped");
  return checkpoint;
}

std::vector<std::uint64_t> Retired(const std::vector<CheckpointInfo>& list, std::uint64_t keep_last,
                                   std::uint64_t keep_every) {
  std::vector<const CheckpointInfo*> infos;
  for (const CheckpointInfo& one : list) infos.push_back(&one);
  return ChooseRetired(infos, keep_last, keep_every);
}

TEST(Retention, KeepsTheNewest) {
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20), Stored(30), Stored(40), Stored(50)};

  EXPECT_THAT(Retired(list, 3, 0), ElementsAre(10, 20));
  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(10, 20, 30, 40));
}

TEST(Retention, RemovesNothingUpToKeepLast) {
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20)};

  EXPECT_THAT(Retired(list, 2, 0), IsEmpty());
  EXPECT_THAT(Retired(list, 3, 0), IsEmpty());
  EXPECT_THAT(Retired(list, std::numeric_limits<std::uint64_t>::max(), 0), IsEmpty());
  EXPECT_THAT(Retired({}, 1, 0), IsEmpty());
}

TEST(Retention, KeepLastZeroKeepsAll) {
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20), Stored(30)};

  EXPECT_THAT(Retired(list, 0, 0), IsEmpty());
  EXPECT_THAT(Retired(list, 0, 7), IsEmpty());
}

TEST(Retention, KeepsEveryKth) {
  const std::vector<CheckpointInfo> list = {Stored(0), Stored(50), Stored(100), Stored(150), Stored(200), Stored(250)};

  EXPECT_THAT(Retired(list, 1, 100), ElementsAre(50, 150));
  EXPECT_THAT(Retired(list, 1, 1), IsEmpty());
}

TEST(Retention, KeepsAndCountsPinnedOnes) {
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20, 0, true), Stored(30), Stored(40, 0, true)};

  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(10, 30));
  EXPECT_THAT(Retired(list, 2, 0), ElementsAre(10));
}

TEST(Retention, AbandonedLineIsOlderWhateverItsSteps) {
  // Given a run that went to 50, was restored from 20 and has saved 30 again.
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20), Stored(40), Stored(50), Stored(30, 1)};

  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(10, 20, 40, 50));
  EXPECT_THAT(Retired(list, 2, 0), ElementsAre(10, 20, 40));
}

TEST(Retention, DamagedOnesAreNeitherCountedNorRemoved) {
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20), Stored(30), Damaged(15), Damaged(40)};

  EXPECT_THAT(Retired(list, 2, 0), ElementsAre(10));
  EXPECT_THAT(Retired({Damaged(1), Damaged(2)}, 1, 0), IsEmpty());
}

}  // namespace
}  // namespace cairn
