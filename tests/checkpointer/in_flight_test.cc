// Several saves in flight: what a younger one gets while an older one is under way.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/tensors.h"
#include "testing/local_group.h"
#include "testing/model_gpu.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using std::chrono::seconds;

constexpr seconds kPatience{60};

Options SmallOptions(const TempDir& dir) {
  return {.root = dir / "run",
          .keep_last = 0,
          .max_in_flight = 3,
          .host_memory_bytes = 2_MiB,
          .chunk_bytes = 1_MiB,
          .queue_depth = 2};
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

// The coordinator alone has writes left when all shards are sealed: the index and the manifest.
TEST(InFlight, YoungerSaveWritesOneChunkAtATimeWhileTheCoordinatorCommits) {
  const TempDir dir;
  ModelGpu gpu;
  std::vector<std::shared_ptr<FaultPlan>> plans;
  std::vector<std::unique_ptr<Checkpointer>> ranks;
  for (const auto& group : MakeLocalGroup(2)) {
    plans.push_back(FaultPlan::Make());
    Wiring wiring = gpu.Wire();
    wiring.wrap_queue = [plan = plans.back()](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
    Options options = SmallOptions(dir);
    options.host_memory_bytes = 16_MiB;
    options.queue_depth = 4;
    options.group = group;
    auto checkpointer = Checkpointer::Open(options, std::move(wiring));
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
    ranks.push_back(*std::move(checkpointer));
  }
  Tensors older = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  Tensors younger = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  Tensors youngest = Tensors::Many(1, 1000, kModelGpu);
  std::vector<SaveHandle> saves;
  const auto save = [&](std::size_t rank, std::uint64_t step, Tensors& tensors) {
    const auto handle = ranks[rank]->Save(step, tensors.state());
    ASSERT_TRUE(handle.ok()) << handle.status();
    saves.push_back(*handle);
  };
  const FaultGate commit = plans[0]->Hold({.op = IoOp::kWrite, .path = "manifest", .nth = 1});
  for (const std::size_t rank : {0U, 1U}) save(rank, 1, older);
  ASSERT_TRUE(commit.WaitHeld(Deadline::In(kPatience)));

  const FaultMatch writes{.op = IoOp::kWrite, .path = "shard-"};
  const std::size_t before = plans[0]->Count(writes);
  std::vector<FaultGate> disks;
  for (const std::size_t rank : {0U, 1U}) {
    disks.push_back(plans[rank]->Hold({.op = IoOp::kWrite, .path = "shard-", .nth = 1}));
    disks.push_back(plans[rank]->Hold({.op = IoOp::kWrite, .path = "shard-", .nth = 2}));
  }
  for (const std::size_t rank : {0U, 1U}) save(rank, 2, younger);
  for (const std::size_t rank : {0U, 1U}) save(rank, 3, youngest);
  EXPECT_TRUE(disks[0].WaitHeld(Deadline::In(kPatience))) << "the disk stands still\n" << ToString(plans[0]->Seen());
  EXPECT_TRUE(saves[4].WaitCaptured(Deadline::In(kPatience)).ok());
  EXPECT_EQ(plans[0]->Count(writes) - before, 1U) << ToString(plans[0]->Seen());
  EXPECT_TRUE(disks[3].WaitHeld(Deadline::In(kPatience))) << "one at a time\n" << ToString(plans[1]->Seen());

  for (const FaultGate& disk : disks) disk.Release();
  commit.Release();
  for (const SaveHandle& one : saves) EXPECT_TRUE(one.WaitDurable(Deadline::In(kPatience)).ok());
}

}  // namespace
}  // namespace cairn
