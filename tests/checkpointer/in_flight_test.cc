// Several saves in flight: what a younger one gets while an older one is under way.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/model_gpu.h"
#include "support/patience.h"
#include "support/tensors.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;

Options SmallOptions(const TempDir& dir) {
  return {.root = dir / "run",
          .keep_last = 0,
          .max_in_flight = 3,
          .host_memory_bytes = 2_MiB,
          .chunk_bytes = 1_MiB,
          .queue_depth = 2,
          .worker_threads = 2};
}

TEST(InFlight, GivesTheYoungerSaveNothingUntilTheOlderIsEnqueued) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  auto checkpointer = Checkpointer::Open(SmallOptions(dir), std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors older = Tensors::Many(8, 1_MiB / sizeof(float), kModelGpu);
  Tensors younger = Tensors::Many(1, 1000, kModelGpu);
  const FaultGate disk = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});

  const auto first = (*checkpointer)->Save(1, older.state());
  const auto second = (*checkpointer)->Save(2, younger.state());
  ASSERT_TRUE(disk.WaitHeld(Deadline::In(kPatience)));
  EXPECT_EQ(second->stats().phase, SavePhase::kQueued) << "the older one still needs buffers";
  disk.Release();

  EXPECT_TRUE(first->WaitDurable(Deadline::In(kPatience)).ok());
  EXPECT_TRUE(second->WaitDurable(Deadline::In(kPatience)).ok());
}

// The disk must not stand still for the older one's fsyncs, nor these wait for more than one write of the younger.
TEST(InFlight, YoungerSaveWritesOneChunkAtATimeWhileTheOlderSeals) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  Options options = SmallOptions(dir);
  options.host_memory_bytes = 16_MiB;
  options.queue_depth = 4;
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors older = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  Tensors younger = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  Tensors youngest = Tensors::Many(1, 1000, kModelGpu);
  const FaultMatch writes{.op = IoOp::kWrite, .path = "shard-"};
  const FaultGate seal = plan->Hold({.op = IoOp::kFsync, .path = "shard-", .nth = 1});
  const auto first = (*checkpointer)->Save(1, older.state());
  ASSERT_TRUE(seal.WaitHeld(Deadline::In(kPatience)));
  const std::size_t before = plan->Count(writes);
  const FaultGate disk = plan->Hold(writes);

  const auto second = (*checkpointer)->Save(2, younger.state());
  EXPECT_TRUE(disk.WaitHeld(Deadline::In(kPatience))) << "the disk stands still\n" << ToString(plan->Seen());
  EXPECT_TRUE(second->WaitCaptured(Deadline::In(kPatience)).ok());
  // Once a third save is captured, the engine has seen all chunks of the second one.
  const auto third = (*checkpointer)->Save(3, youngest.state());
  EXPECT_TRUE(third->WaitCaptured(Deadline::In(kPatience)).ok());

  EXPECT_EQ(plan->Count(writes) - before, 1U) << ToString(plan->Seen());
  disk.Release();
  seal.Release();
  for (const auto& save : {first, second, third}) EXPECT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok());
}

// Two ranks, each with a disk that holds back the first two writes of a younger save.
class TwoRanks : public testing::Test {
 protected:
  static constexpr std::size_t kRanks = 2;

  void SetUp() override {
    for (const auto& group : MakeLocalGroup(kRanks)) {
      plans_.push_back(FaultPlan::Make());
      Wiring wiring = gpu_.Wire();
      wiring.wrap_queue = [plan = plans_.back()](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
      Options options = SmallOptions(dir_);
      options.host_memory_bytes = 16_MiB;
      options.queue_depth = 4;
      options.group = group;
      auto checkpointer = Checkpointer::Open(options, std::move(wiring));
      ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
      ranks_.push_back(*std::move(checkpointer));
    }
  }
  void SaveOnAll(std::uint64_t step, Tensors& tensors) {
    for (const auto& rank : ranks_) {
      const auto handle = rank->Save(step, tensors.state());
      ASSERT_TRUE(handle.ok()) << handle.status();
      saves_.push_back(*handle);
    }
  }
  // Returns once rank 0 could have submitted all that it may.
  void SaveYounger() {
    before_ = plans_[0]->Count(kWrites);
    for (const auto& plan : plans_) {
      for (const std::size_t nth : {1U, 2U}) {
        disks_.push_back(plan->Hold({.op = IoOp::kWrite, .path = "shard-", .nth = nth}));
      }
    }
    SaveOnAll(2, younger_);
    SaveOnAll(3, youngest_);
    EXPECT_TRUE(disks_[0].WaitHeld(Deadline::In(kPatience))) << "the disk stands still\n"
                                                             << ToString(plans_[0]->Seen());
    EXPECT_TRUE(saves_[2 * kRanks].WaitCaptured(Deadline::In(kPatience)).ok());
    // Captured is said before the sums are there, without which no chunk is written.
    static_cast<void>(disks_[1].WaitHeld(Deadline::In(std::chrono::milliseconds(300))));
  }
  [[nodiscard]] std::size_t writes_of_younger() const { return plans_[0]->Count(kWrites) - before_; }
  void ReleaseAndWait(const FaultGate& held) {
    for (const FaultGate& disk : disks_) disk.Release();
    held.Release();
    for (const SaveHandle& one : saves_) EXPECT_TRUE(one.WaitDurable(Deadline::In(kPatience)).ok());
  }

  const FaultMatch kWrites{.op = IoOp::kWrite, .path = "shard-"};
  const TempDir dir_;
  ModelGpu gpu_;
  std::vector<std::shared_ptr<FaultPlan>> plans_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
  Tensors older_ = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  Tensors younger_ = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  Tensors youngest_ = Tensors::Many(1, 1000, kModelGpu);
  std::vector<SaveHandle> saves_;
  std::vector<FaultGate> disks_;
  std::size_t before_ = 0;
};

// The coordinator alone has writes left when all shards are sealed: the index and the manifest.
TEST_F(TwoRanks, YoungerSaveWritesOneChunkAtATimeWhileTheCoordinatorCommits) {
  const FaultGate commit = plans_[0]->Hold({.op = IoOp::kWrite, .path = "manifest", .nth = 1});
  SaveOnAll(1, older_);
  ASSERT_TRUE(commit.WaitHeld(Deadline::In(kPatience)));

  SaveYounger();

  EXPECT_EQ(writes_of_younger(), 1U) << ToString(plans_[0]->Seen());
  EXPECT_TRUE(disks_[3].WaitHeld(Deadline::In(kPatience))) << "rank 1: one at a time\n" << ToString(plans_[1]->Seen());
  ReleaseAndWait(commit);
}

// Otherwise the index and the manifest would wait behind what the coordinator submits until the last rank is done.
TEST_F(TwoRanks, YoungerSaveWritesOneChunkAtATimeWhileTheCoordinatorWaitsForARank) {
  std::promise<void> sealed;
  plans_[0]->CallAfter({.op = IoOp::kClose, .path = "shard-", .nth = 1},
                       [&](const SeenOperation&) { sealed.set_value(); });
  const FaultGate late = plans_[1]->Hold({.op = IoOp::kFsync, .path = "shard-", .nth = 1});
  SaveOnAll(1, older_);
  ASSERT_TRUE(late.WaitHeld(Deadline::In(kPatience)));
  ASSERT_EQ(sealed.get_future().wait_for(kPatience), std::future_status::ready);

  SaveYounger();

  EXPECT_EQ(writes_of_younger(), 1U) << ToString(plans_[0]->Seen());
  ReleaseAndWait(late);
}

}  // namespace
}  // namespace cairn
