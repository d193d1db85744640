#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "store/list.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CheckpointInfo Stored(std::uint64_t step, std::uint64_t line = 0, bool pinned = false) {
  CheckpointInfo checkpoint;
  checkpoint.step = step;
  checkpoint.line = line;
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

TEST(Retention, KeepsTheNewestThatHasWrittenWhatIsFrozen) {
  std::vector<CheckpointInfo> list = {Stored(10), Stored(20), Stored(30), Stored(40)};
  list[0].frozen = list[1].frozen = Frozen::kWritten;
  list[2].frozen = list[3].frozen = Frozen::kLinked;

  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(10, 30));
  EXPECT_THAT(Retired(list, 2, 0), ElementsAre(10));
  list[1].status = Status(StatusCode::kCorrupt, "flipped");
  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(30));
  list[0].frozen = Frozen::kLinked;
  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(10, 30));

  // One without frozen tensors is none to go back to for these.
  list = {Stored(10), Stored(20), Stored(30), Stored(40)};
  list[0].frozen = Frozen::kWritten;
  list[1].frozen = list[3].frozen = Frozen::kLinked;
  EXPECT_THAT(Retired(list, 1, 0), ElementsAre(20, 30));
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

// By kinds from the oldest on: 'f' is finite, 'i' has infinities, 'n' has NaNs.
std::vector<std::uint64_t> RetiredOfKinds(std::string_view kinds, std::uint64_t keep_last) {
  std::vector<CheckpointInfo> list;
  for (const char kind : kinds) {
    list.push_back(Stored(list.size() + 1));
    list.back().nonfinite = kind == 'f' ? NonFinite::kNone : kind == 'i' ? NonFinite::kInfinity : NonFinite::kNaN;
  }
  return Retired(list, keep_last, 0);
}

TEST(Retention, KeepsTheNewestOfTheBestKind) {
  EXPECT_THAT(RetiredOfKinds("ffnnn", 2), ElementsAre(1, 3));
  EXPECT_THAT(RetiredOfKinds("fnfnn", 2), ElementsAre(1, 2)) << "it is not among keep_last";
  EXPECT_THAT(RetiredOfKinds("fnnfn", 2), ElementsAre(1, 2, 3)) << "it is among keep_last";
  EXPECT_THAT(RetiredOfKinds("iinn", 1), ElementsAre(1, 3)) << "infinities are on purpose where all have some";
  EXPECT_THAT(RetiredOfKinds("fiin", 1), ElementsAre(2, 3));
  EXPECT_THAT(RetiredOfKinds("nnn", 1), ElementsAre(1, 2)) << "as if none was marked";
}

TEST(Retention, DamagedOnesAreNeitherCountedNorRemoved) {
  const std::vector<CheckpointInfo> list = {Stored(10), Stored(20), Stored(30), Damaged(15), Damaged(40)};

  EXPECT_THAT(Retired(list, 2, 0), ElementsAre(10));
  EXPECT_THAT(Retired({Damaged(1), Damaged(2)}, 1, 0), IsEmpty());
}

}  // namespace
}  // namespace cairn
