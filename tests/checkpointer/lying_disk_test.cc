// A disk that acknowledges renames of checkpoints into place, and has lost them: nothing older is removed for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "store/names.h"
#include "support/small_run.h"
#include "testing/forwarding_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class LyingQueue : public ForwardingQueue {
 public:
  LyingQueue(std::shared_ptr<std::atomic<bool>> lies, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), lies_(std::move(lies)) {}

  void Submit(IoRequest request, IoDone done) override {
    const bool into_place = request.op == IoOp::kRename && request.path2.text().find("/step-") != std::string::npos;
    if (into_place && *lies_) request = {.op = IoOp::kCall, .path = request.path2, .call = [] {}};
    ForwardingQueue::Submit(std::move(request), std::move(done));
  }

 private:
  const std::shared_ptr<std::atomic<bool>> lies_;
};

class LyingDisk : public testing::Test {
 protected:
  void Open(std::uint64_t keep_last = 1) {
    checkpointer_.reset();
    Options options = SmallOptions(root());
    options.keep_last = keep_last;
    options.on_event = [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.severity == Severity::kWarning) warnings_.push_back(event.message);
    };
    Wiring wiring;
    wiring.wrap_queue = [this](IoQueueFactory inner) { return WrapQueues<LyingQueue>(lies_, std::move(inner)); };
    checkpointer_ = OpenOrFail(options, wiring);
    ASSERT_NE(checkpointer_, nullptr);
  }
  /// Saves, and waits for what the save retires.
  Status Save(std::uint64_t step, bool lies, const SaveOptions& options = {}, std::uint64_t variant = 0) {
    *lies_ = lies;
    const Status saved = SaveDurably(*checkpointer_, step, options, variant);
    EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
    *lies_ = false;
    return saved;
  }
  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] std::vector<std::string> warnings() {
    MutexLock lock(mutex_);
    return warnings_;
  }

  const TempDir dir_;
  const std::shared_ptr<std::atomic<bool>> lies_ = std::make_shared<std::atomic<bool>>(false);
  Mutex mutex_;
  std::vector<std::string> warnings_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(LyingDisk, NothingIsRetiredForAStepThatIsNotThere) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_EQ(Save(1, /*lies=*/false), Status::Ok());

  ASSERT_EQ(Save(2, /*lies=*/true), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(1)), Status::Ok());
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("step 2 was saved durably, but")));
  // It does not count, and may be saved again.
  EXPECT_EQ(Save(2, /*lies=*/false), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(2));
}

TEST_F(LyingDisk, LostStepDoesNotCountForRetention) {
  ASSERT_NO_FATAL_FAILURE(Open(/*keep_last=*/2));
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(Save(step, /*lies=*/false), Status::Ok());
  ASSERT_EQ(Save(3, /*lies=*/true), Status::Ok());

  ASSERT_EQ(Save(4, /*lies=*/false), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(2, 4));
}

TEST_F(LyingDisk, ReplacedStepStays) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_EQ(Save(1, /*lies=*/false), Status::Ok());

  const Status replaced = Save(1, /*lies=*/true, {.if_exists = IfExists::kReplace}, 7);

  EXPECT_EQ(replaced.code(), StatusCode::kUnknownOutcome);
  EXPECT_THAT(replaced.message(), HasSubstr("its old checkpoint stays"));
  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(1)), Status::Ok());
}

TEST_F(LyingDisk, CompleteAttemptWithoutANameStaysUntilTheNextSaveIsDurable) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_EQ(Save(1, /*lies=*/false), Status::Ok());
  ASSERT_EQ(Save(2, /*lies=*/true), Status::Ok());
  checkpointer_.reset();
  ASSERT_THAT(Leftovers(root()), ElementsAre(StartsWith(".attempt-")));

  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());

  const std::vector<std::string> left = Leftovers(root());
  ASSERT_THAT(left, ElementsAre(StartsWith(".retired-")));
  EXPECT_THAT(warnings(), Contains(AllOf(StartsWith("nothing to do: training resumes from step 1, because step 2 was"),
                                         HasSubstr(left[0] + " stays until the next save is durable"))));
  // Whoever knows better may have it.
  const std::filesystem::path other = dir_ / "other";
  std::filesystem::create_directory(other);
  std::filesystem::copy(root() + "/" + left[0], other / StepName(2));
  EXPECT_EQ(RestoreAndCompare(*OpenOrFail(SmallOptions(other)), Step(2)), Status::Ok());
  ASSERT_EQ(Save(3, /*lies=*/false), Status::Ok());
  EXPECT_THAT(Leftovers(root()), Each(StartsWith(".spare-")));
}

TEST_F(LyingDisk, StepThatWasRemovedMeanwhileIsNoSurprise) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_EQ(Save(1, /*lies=*/false), Status::Ok());

  ASSERT_EQ(checkpointer_->Remove(1), Status::Ok());
  ASSERT_EQ(Save(2, /*lies=*/false), Status::Ok());

  EXPECT_THAT(warnings(), IsEmpty());
}

}  // namespace
}  // namespace cairn
