#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "store/root.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StoredCheckpoint Stored(std::uint64_t step, std::uint64_t generation = 0, bool pinned = false) {
  StoredCheckpoint checkpoint;
  checkpoint.info.step = step;
  checkpoint.info.generation = generation;
  checkpoint.info.pinned = pinned;
  return checkpoint;
}
StoredCheckpoint Damaged(std::uint64_t step) {
  StoredCheckpoint checkpoint = Stored(step);
  checkpoint.info.status = Status(StatusCode::kCorrupt, "flipped");
  return checkpoint;
}

TEST(Retention, NewestStayAndOlderOnesGo) {
  const std::vector<StoredCheckpoint> list = {Stored(10), Stored(20), Stored(30), Stored(40), Stored(50)};

  EXPECT_THAT(ChooseRetired(list, 3, 0), ElementsAre(10, 20));
  EXPECT_THAT(ChooseRetired(list, 1, 0), ElementsAre(10, 20, 30, 40));
}

TEST(Retention, NothingGoesUntilThereAreMoreThanKept) {
  const std::vector<StoredCheckpoint> list = {Stored(10), Stored(20)};

  EXPECT_THAT(ChooseRetired(list, 2, 0), IsEmpty());
  EXPECT_THAT(ChooseRetired(list, 3, 0), IsEmpty());
  EXPECT_THAT(ChooseRetired(list, std::numeric_limits<std::uint64_t>::max(), 0), IsEmpty());
  EXPECT_THAT(ChooseRetired({}, 1, 0), IsEmpty());
}

TEST(Retention, KeepingNoneMeansKeepingAll) {
  const std::vector<StoredCheckpoint> list = {Stored(10), Stored(20), Stored(30)};

  EXPECT_THAT(ChooseRetired(list, 0, 0), IsEmpty());
  EXPECT_THAT(ChooseRetired(list, 0, 7), IsEmpty());
}

TEST(Retention, EveryKthStays) {
  const std::vector<StoredCheckpoint> list = {Stored(0),   Stored(50),  Stored(100),
                                              Stored(150), Stored(200), Stored(250)};

  EXPECT_THAT(ChooseRetired(list, 1, 100), ElementsAre(50, 150));
  EXPECT_THAT(ChooseRetired(list, 1, 1), IsEmpty());
}

TEST(Retention, PinnedOnesStayAndAreCounted) {
  const std::vector<StoredCheckpoint> list = {Stored(10), Stored(20, 0, true), Stored(30), Stored(40, 0, true)};

  EXPECT_THAT(ChooseRetired(list, 1, 0), ElementsAre(10, 30));
  EXPECT_THAT(ChooseRetired(list, 2, 0), ElementsAre(10));
}

TEST(Retention, AnAbandonedLineIsOlderWhateverItsSteps) {
  // Given a run that went to 50, was rolled back to 20 and has saved 30 again since.
  const std::vector<StoredCheckpoint> list = {Stored(10), Stored(20), Stored(40), Stored(50), Stored(30, 1)};

  EXPECT_THAT(ChooseRetired(list, 1, 0), ElementsAre(10, 20, 40, 50));
  EXPECT_THAT(ChooseRetired(list, 2, 0), ElementsAre(10, 20, 40));
}

TEST(Retention, DamagedOnesAreNeitherCountedNorRemoved) {
  const std::vector<StoredCheckpoint> list = {Stored(10), Stored(20), Stored(30), Damaged(15), Damaged(40)};

  EXPECT_THAT(ChooseRetired(list, 2, 0), ElementsAre(10));
  EXPECT_THAT(ChooseRetired({Damaged(1), Damaged(2)}, 1, 0), IsEmpty());
}

}  // namespace
}  // namespace cairn
