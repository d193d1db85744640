// The disk of one of several ranks hangs, is full, or writes short: the others are notified in time, nothing is
// committed, and the next save works.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "support/sanitizer.h"
#include "support/small_run.h"
#include "support/three_ranks.h"

namespace cairn {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Place {
  int rank = 0;
  IoOp op = IoOp::kWrite;
  // A part of the operation's path.
  std::string path;
};
std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << IoOpName(place.op) << " of " << place.path << " on rank " << place.rank;
}

class RanksBadDisk : public Ranks {
 protected:
  [[nodiscard]] static FaultMatch Match(const Place& place) { return {.op = place.op, .path = place.path}; }
};

class HangingAt : public RanksBadDisk, public testing::WithParamInterface<Place> {};

TEST_P(HangingAt, FailsTheSaveForTheOthersWithinTheirDeadline) {
  // Also the timeout of the saves that must work.
  constexpr std::chrono::seconds kTimeout{kThreadSanitized ? 4 : 1};
  const Place& place = GetParam();
  OpenAll(kTimeout);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  const FaultGate gate = plan(place.rank).Hold(Match(place));
  const std::vector<SaveHandle> saves = StartAll(2);
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  const auto begun = std::chrono::steady_clock::now();

  for (int of = 0; of < kRanks; ++of) {
    if (of == place.rank) continue;
    const SaveHandle& save = saves[static_cast<std::size_t>(of)];
    const Status status = save.WaitDurable(Soon());
    EXPECT_EQ(save.stats().phase, SavePhase::kFailed) << "rank " << of << " still waits";
    EXPECT_THAT(status.code(), AnyOf(StatusCode::kDeadlineExceeded, StatusCode::kUnknownOutcome)) << status;
    EXPECT_EQ(rank(of).Fence(), Status::Ok());
  }
  // One deadline for the coordinator, two for the others (see Coordination), doubled for a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 6 * kTimeout);
  for (int of = 0; of < kRanks; ++of) {
    if (of == place.rank) continue;
    EXPECT_THAT(ListedSteps(rank(of)), ElementsAre(1));
  }

  gate.Release();
  const Status late = saves[static_cast<std::size_t>(place.rank)].WaitDurable(Soon());
  if (late.ok()) {
    // A slow coordinator may still commit; then nobody may have reported a failure.
    EXPECT_EQ(place.rank, 0);
    for (const SaveHandle& save : saves) {
      EXPECT_THAT(save.status().code(), AnyOf(StatusCode::kOk, StatusCode::kUnknownOutcome)) << save.status();
    }
  } else {
    EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  }
  ExpectWorksFrom(3);
  CloseAll();
  ExpectNothingLost(root(), 3, kRanks);
}

INSTANTIATE_TEST_SUITE_P(Each, HangingAt,
                         testing::Values(Place{0, IoOp::kOpen, "shard-"}, Place{1, IoOp::kOpen, "shard-"},
                                         Place{0, IoOp::kWrite, "shard-"}, Place{1, IoOp::kWrite, "shard-"},
                                         Place{0, IoOp::kFsync, "shard-"}, Place{1, IoOp::kFsync, "shard-"},
                                         Place{2, IoOp::kFsync, ".attempt-"}, Place{0, IoOp::kFsync, "manifest"}),
                         [](const auto& test) {
                           const Place& place = test.param;
                           const bool folder = place.path == ".attempt-";
                           return std::string(IoOpName(place.op)) + "_" +
                                  (folder                     ? "folder"
                                   : place.path == "manifest" ? "manifest"
                                                              : "shard") +
                                  "_of_rank_" + std::to_string(place.rank);
                         });

TEST_F(RanksBadDisk, FullDiskFailsTheSaveForAllAtOnce) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::vector<Place> places = {{0, IoOp::kOpen, "manifest"}, {0, IoOp::kWrite, "manifest"}};
  for (int of = 0; of < kRanks; ++of) {
    for (const IoOp op : {IoOp::kOpen, IoOp::kFallocate, IoOp::kWrite, IoOp::kFsync}) {
      places.push_back({of, op, "shard-"});
    }
  }
  std::uint64_t step = 2;
  for (const Place& place : places) {
    SCOPED_TRACE(testing::Message() << place);
    // Fails every operation from here on, because smaller ones do not fit either.
    plan(place.rank).Fail(Match(place), ENOSPC);

    const Statuses statuses = SaveAll(step++);

    EXPECT_THAT(statuses, Each(HasCode(StatusCode::kNoSpace)));
    for (int of = 0; of < kRanks; ++of) {
      const std::string& message = statuses[static_cast<std::size_t>(of)].message();
      const bool own = of == place.rank || place.path == "manifest";  // Only rank 0 writes that.
      EXPECT_THAT(message, HasSubstr(own ? place.path : "rank " + std::to_string(place.rank)));
    }
    EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
    EXPECT_THAT(Leftovers(root()), Each(StartsWith(".spare-")));
    plan(place.rank).Clear();
    if (HasFailure()) return;
  }
  ExpectWorksFrom(step);
}

TEST_F(RanksBadDisk, ShortWritesAreResumed) {
  OpenAll(kNever);
  for (int of = 0; of < kRanks; ++of) {
    for (const std::uint64_t nth : {1, 2, 3}) {
      plan(of).Shorten({.op = IoOp::kWrite, .path = "shard-", .nth = nth}, 4096 * nth + 100);
    }
  }

  EXPECT_THAT(SaveAll(1), Each(Status::Ok()));

  CloseAll();
  ExpectNothingLost(root(), 1, kRanks);
}

// A write that is partly on the disk when space runs out leaves a torn file.
TEST_F(RanksBadDisk, FullDiskDuringAWriteLeavesNothingTorn) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::uint64_t step = 2;
  for (int full = 0; full < kRanks; ++full) {
    SCOPED_TRACE(testing::Message() << "rank " << full);
    plan(full).Shorten({.op = IoOp::kWrite, .path = "shard-", .nth = 1}, 8192);
    plan(full).Fail({.op = IoOp::kWrite, .path = "shard-"}, ENOSPC);

    EXPECT_THAT(SaveAll(step++), Each(HasCode(StatusCode::kNoSpace)));

    EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
    plan(full).Clear();
  }
  ExpectWorksFrom(step);
  CloseAll();
  ExpectNothingLost(root(), step, kRanks);
}

}  // namespace
}  // namespace cairn
