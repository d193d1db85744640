// A run on a disk without a free byte or file: what fails, what goes on, and what is left.

#include "support/full_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include "cairn/cairn.h"
#include "store/names.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FullDiskRun : public testing::TestWithParam<FullDisk::Limits> {
 protected:
  [[nodiscard]] std::unique_ptr<Checkpointer> Open(bool recycle) {
    Options options = SmallOptions(root_);
    options.keep_last = 0;
    options.recycle = recycle;
    Wiring wiring;
    wiring.wrap_queue = [this](IoQueueFactory inner) { return disk_->Wrap(std::move(inner)); };
    return OpenOrFail(options, wiring);
  }

  const TempDir dir_;
  const std::string root_ = dir_ / "run";
  const std::shared_ptr<FullDisk> disk_ = FullDisk::Make();
};

TEST_P(FullDiskRun, SavesFailAndLeaveNothingUntilACheckpointIsRemoved) {
  auto checkpointer = Open(/*recycle=*/false);
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  disk_->Limit(GetParam());
  for (const std::uint64_t step : {3, 4}) {
    EXPECT_EQ(SaveDurably(*checkpointer, step).code(), StatusCode::kNoSpace);
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    EXPECT_THAT(Leftovers(root_), IsEmpty());
  }
  // Started again, it is no worse.
  checkpointer.reset();
  checkpointer = Open(/*recycle=*/false);
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer, 3).code(), StatusCode::kNoSpace);

  EXPECT_EQ(checkpointer->Remove(1), Status::Ok());

  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(2, 3));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

// A run that is killed again and again: what each leaves is the room of the next.
TEST_P(FullDiskRun, StartsAgainAfterEachKill) {
  auto checkpointer = Open(/*recycle=*/true);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  checkpointer.reset();
  disk_->Limit(GetParam());
  for (std::uint64_t step = 2; step <= 4; ++step) {
    for (const char* const killed : {"a", "b"}) {  // Killed while they wrote.
      const std::string attempt = root_ + "/" + AttemptName(killed);
      std::filesystem::copy(root_ + "/" + StepName(1), attempt);
      std::filesystem::remove(attempt + "/manifest.json");
    }

    checkpointer = Open(/*recycle=*/true);

    ASSERT_NE(checkpointer, nullptr);
    EXPECT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
    EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(step)), Status::Ok());
    checkpointer.reset();
    EXPECT_THAT(Leftovers(root_), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Each, FullDiskRun,
                         testing::Values(FullDisk::Limits{.files = 0}, FullDisk::Limits{.blocks = 0},
                                         FullDisk::Limits{.files = 0, .blocks = 0, .error = EDQUOT}),
                         [](const auto& test) {
                           return test.param.error == EDQUOT ? "no_quota"
                                  : test.param.files == 0    ? "no_files"
                                                             : "no_bytes";
                         });

}  // namespace
}  // namespace cairn
