// Several saves in flight: what a younger one gets while an older one is under way.
#include <gtest/gtest.h>

#include <chrono>

#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/tensors.h"
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

}  // namespace
}  // namespace cairn
