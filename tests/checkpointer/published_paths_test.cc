// Checkpointer::Publish and RemovePublished: what the store's tests do not cover.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PublishedPaths : public testing::Test {
 protected:
  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] std::string path() const { return dir_ / "last.ckpt"; }

  const TempDir dir_;
};

TEST_F(PublishedPaths, HoldACheckpointUntilRemoved) {
  const auto checkpointer = OpenOrFail(SmallOptions(root()));
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  ASSERT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());

  ASSERT_EQ(checkpointer->Publish(1, path(), Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(2));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Folder(path())), Status::Ok());
  EXPECT_EQ(checkpointer->Publish(1, path(), Soon()).code(), StatusCode::kNotFound) << "it is no longer a step";
  ASSERT_EQ(checkpointer->Publish(2, path(), Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Folder(path())), Status::Ok());

  EXPECT_EQ(checkpointer->RemovePublished(path(), Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->RemovePublished(path(), Soon()).code(), StatusCode::kNotFound);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(PublishedPaths, AreLeftAloneByADisplacedWriter) {
  const auto first = OpenOrFail(SmallOptions(root()));
  ASSERT_EQ(SaveDurably(*first, 1), Status::Ok());
  ASSERT_EQ(first->Publish(1, path(), Soon()), Status::Ok());
  ASSERT_EQ(SaveDurably(*first, 2), Status::Ok());
  Options options = SmallOptions(root());
  options.take_over = true;
  const auto second = OpenOrFail(options);

  EXPECT_EQ(first->Publish(2, path(), Soon()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(first->RemovePublished(path(), Soon()).code(), StatusCode::kFailedPrecondition);

  EXPECT_EQ(RestoreAndCompare(*second, Folder(path())), Status::Ok());
  EXPECT_THAT(ListedSteps(*second), ElementsAre(2));
}

TEST_F(PublishedPaths, AreMadeAndRemovedOnlyByRankZero) {
  const auto ranks = OpenRanks(2, SmallOptions(root()));
  ASSERT_EQ(ranks.size(), 2U);

  for (const Status& status : {ranks[1]->Publish(1, path(), Soon()), ranks[1]->RemovePublished(path(), Soon())}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("only rank 0 publishes"));
  }
}

TEST_F(PublishedPaths, ReportLeftoversOfTheEarlierCheckpoint) {
  Mutex mutex;
  std::vector<std::string> warnings;
  Options options = SmallOptions(root());
  options.on_event = [&](const Event& event) {
    MutexLock lock(mutex);
    if (event.severity == Severity::kWarning) warnings.push_back(event.message);
  };
  const auto checkpointer = OpenOrFail(options);
  for (const std::uint64_t step : {1, 2}) {
    ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
    ASSERT_EQ(checkpointer->Publish(step, path(), Soon()), Status::Ok());
    fs::create_directory(path() + "/mine");
  }

  EXPECT_EQ(checkpointer->RemovePublished(path(), Soon()), Status::Ok());

  MutexLock lock(mutex);
  EXPECT_THAT(warnings, Contains(HasSubstr("mine is a directory that is not part of a checkpoint")).Times(2));
}

}  // namespace
}  // namespace cairn
