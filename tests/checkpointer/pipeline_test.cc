#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/model_gpu.h"
#include "support/patience.h"
#include "support/tensors.h"
#include "testing/forwarding_device.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using std::chrono::seconds;

Options SmallOptions(const TempDir& dir) {
  return {.root = dir / "run", .host_memory_bytes = 2_MiB, .chunk_bytes = 1_MiB, .queue_depth = 2};
}

std::uint64_t SeedOf(std::uint64_t step) { return step * 1000 + 7; }

// Restores `step` into tensors of the same shape and compares them.
void ExpectHolds(Checkpointer& checkpointer, std::uint64_t step, Tensors fresh) {
  const auto restored = checkpointer.Restore(Step(step), fresh.state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE(fresh.Holds(SeedOf(step))) << "step " << step;
}

// A training loop that must not deadlock: a host that never waits, and a pool far smaller than the state.
TEST(Pipeline, SavesAndFencesWithASmallPoolKeepStepsApart) {
  const TempDir dir;
  ModelGpu gpu;
  Options options = SmallOptions(dir);
  options.max_in_flight = 3;
  options.keep_last = 0;
  auto checkpointer = Checkpointer::Open(options, gpu.Wire());
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(20, 1_MiB / sizeof(float), kModelGpu);
  const Stream stream = gpu.device().MakeStream();

  for (std::uint64_t step = 1; step <= 6; ++step) {
    ASSERT_TRUE((*checkpointer)->Fence(stream).ok());
    gpu.device().Launch(stream, [&tensors, step] { tensors.Fill(SeedOf(step)); });  // The optimizer.
    const auto save = (*checkpointer)->Save(step, tensors.state(), {.streams = {stream}});
    ASSERT_TRUE(save.ok()) << save.status();
  }

  ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());
  for (std::uint64_t step = 1; step <= 6; ++step) {
    ExpectHolds(**checkpointer, step, Tensors::Many(20, 1_MiB / sizeof(float), kModelGpu));
  }
  EXPECT_LE((*checkpointer)->stats().pool_peak_bytes, 2_MiB);
}

TEST(Pipeline, FenceLetsTheHostRunAheadIfTheStateFitsThePool) {
  const TempDir dir;
  ModelGpu gpu;
  Options options = SmallOptions(dir);
  options.host_memory_bytes = 8_MiB;
  auto checkpointer = Checkpointer::Open(options, gpu.Wire());
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu);
  tensors.Fill(SeedOf(1));
  const Stream stream = gpu.device().MakeStream();
  std::promise<void> kernel_may_end;
  gpu.device().Launch(stream, [&] { kernel_may_end.get_future().wait(); });  // The previous step is still running.

  const auto save = (*checkpointer)->Save(1, tensors.state(), {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE((*checkpointer)->Fence(stream).ok());  // Returns although no copy can have run.
  gpu.device().Launch(stream, [&tensors] { tensors.Fill(99); });
  EXPECT_LT(save->stats().phase, SavePhase::kCaptured);
  kernel_may_end.set_value();

  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  gpu.device().Synchronize(stream);
  ExpectHolds(**checkpointer, 1, Tensors::Many(4, 1_MiB / sizeof(float), kModelGpu));
  EXPECT_TRUE(tensors.Holds(99)) << "the fence let the stream continue";
}

TEST(Pipeline, StagingFreesTheTensorsWhateverTheDiskDoes) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  Options options = SmallOptions(dir);
  options.staging_bytes = 40_MiB;
  const FaultGate disk = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(20, 1_MiB / sizeof(float), kModelGpu);
  const Stream stream = gpu.device().MakeStream();

  std::vector<SaveHandle> saves;
  for (std::uint64_t step = 1; step <= 2; ++step) {
    gpu.device().Launch(stream, [&tensors, step] { tensors.Fill(SeedOf(step)); });
    saves.push_back(*(*checkpointer)->Save(step, tensors.state(), {.streams = {stream}}));
    ASSERT_TRUE((*checkpointer)->Fence(stream).ok());
    ASSERT_TRUE(saves.back().WaitCaptured(Deadline::In(kPatience)).ok());  // The disk is blocked.
  }
  disk.Release();

  for (const SaveHandle& save : saves) {
    ASSERT_TRUE(save.WaitDurable(Deadline::In(kPatience)).ok()) << save.status();
    EXPECT_TRUE(save.stats().staged);
    ExpectHolds(**checkpointer, save.step(), Tensors::Many(20, 1_MiB / sizeof(float), kModelGpu));
  }
}

// The younger's stream may never get there: a collective whose peer has died. The older must not be lost with it.
TEST(Pipeline, AStagedSaveBecomesDurableWhateverTheStreamOfTheNextOneDoes) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  Options options = SmallOptions(dir);
  options.staging_bytes = 12_MiB;
  FaultGate disk = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(6, 1_MiB / sizeof(float), kModelGpu);
  tensors.Fill(SeedOf(1));
  const Stream stream = gpu.device().MakeStream();
  std::promise<void> kernel_may_end;

  const auto older = (*checkpointer)->Save(1, tensors.state(), {.streams = {stream}});
  ASSERT_TRUE(older.ok()) << older.status();
  ASSERT_EQ((*checkpointer)->Fence(stream, Deadline::In(kPatience)), Status::Ok());
  gpu.device().Launch(stream, [&tensors, ended = kernel_may_end.get_future().share()] {
    ended.wait();
    tensors.Fill(SeedOf(2));
  });
  const auto younger = (*checkpointer)->Save(2, tensors.state(), {.streams = {stream}});
  ASSERT_TRUE(younger.ok()) << younger.status();
  ASSERT_EQ((*checkpointer)->Fence(stream, Deadline::In(kPatience)), Status::Ok());  // Its copies are enqueued.
  disk.Release();

  EXPECT_EQ(older->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  EXPECT_LT(younger->stats().phase, SavePhase::kCaptured);
  kernel_may_end.set_value();
  ASSERT_EQ(younger->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  for (const std::uint64_t step : {1, 2}) {
    ExpectHolds(**checkpointer, step, Tensors::Many(6, 1_MiB / sizeof(float), kModelGpu));
  }
}

// Six chunks: two slots of staging memory and four chunks of the pool take them while the disk stands still.
TEST(Pipeline, FenceWaitsOnlyForWhatNeitherStagingNorThePoolHolds) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  Options options = SmallOptions(dir);
  options.host_memory_bytes = 4_MiB;
  options.staging_bytes = 2_MiB + 1000;
  const FaultGate disk = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(6, 1_MiB / sizeof(float), kModelGpu);
  tensors.Fill(SeedOf(1));
  const Stream stream = gpu.device().MakeStream();

  const auto save = (*checkpointer)->Save(1, tensors.state(), {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ((*checkpointer)->Fence(stream, Deadline::In(kPatience)), Status::Ok());
  gpu.device().Launch(stream, [&tensors] { tensors.Fill(99); });
  gpu.device().Synchronize(stream);
  disk.Release();

  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  ExpectHolds(**checkpointer, 1, Tensors::Many(6, 1_MiB / sizeof(float), kModelGpu));
}

// A state many times the staging memory goes through it while the loop overwrites the tensors behind each fence.
TEST(Pipeline, StagingMemoryIsUsedAgainAsItDrains) {
  const TempDir dir;
  ModelGpu gpu;
  Options options = SmallOptions(dir);
  options.staging_bytes = 3_MiB;
  options.max_in_flight = 3;
  options.keep_last = 0;
  auto checkpointer = Checkpointer::Open(options, gpu.Wire());
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(50, 1_MiB / sizeof(float) / 3, kModelGpu);
  const Stream stream = gpu.device().MakeStream();

  for (std::uint64_t step = 1; step <= 5; ++step) {
    ASSERT_EQ((*checkpointer)->Fence(stream, Deadline::In(kPatience)), Status::Ok());
    gpu.device().Launch(stream, [&tensors, step] { tensors.Fill(SeedOf(step)); });
    const auto save = (*checkpointer)->Save(step, tensors.state(), {.streams = {stream}});
    ASSERT_TRUE(save.ok()) << save.status();
  }

  ASSERT_EQ((*checkpointer)->Drain(Deadline::In(kPatience)), Status::Ok());
  for (std::uint64_t step = 1; step <= 5; ++step) {
    ExpectHolds(**checkpointer, step, Tensors::Many(50, 1_MiB / sizeof(float) / 3, kModelGpu));
  }
}

/// Counts the batches to the host in each lane.
class CountingLanes final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Copy(CopyBatch batch, CopyDone done) override {
    if (batch.direction == CopyDirection::kToHost) ++to_host[static_cast<std::size_t>(batch.lane)];
    return ForwardingDevice::Copy(std::move(batch), std::move(done));
  }
  std::array<std::atomic<int>, 3> to_host{};
};

// Stage, chunk, stage, chunk: so it goes where slots are used again.
TEST(Pipeline, BothLanesCopyChunksWhileStagingSlotsAreUsedAgain) {
  const TempDir dir;
  ModelGpu gpu(0, 3);
  std::shared_ptr<CountingLanes> counting;
  Wiring wiring = gpu.Wire();
  wiring.devices = [make = wiring.devices,
                    &counting](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
    counting = std::make_shared<CountingLanes>(make(workers)->front());
    return std::vector<std::shared_ptr<Device>>{counting};
  };
  Options options = SmallOptions(dir);
  options.staging_bytes = 1_MiB;
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(20, 1_MiB / sizeof(float), kModelGpu);

  const auto save = (*checkpointer)->Save(1, tensors.state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());

  EXPECT_EQ(counting->to_host[0], 10);
  EXPECT_EQ(counting->to_host[1], 10);
  EXPECT_EQ(counting->to_host[2], 0);
}

/// Its first lane is full until MakeRoom(), and its streams may write all CPU memory.
class FullLane final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  [[nodiscard]] bool HasRoom(int lane) const override {
    return (lane != 0 || room_) && ForwardingDevice::HasRoom(lane);
  }
  [[nodiscard]] bool IsWrittenByStreams(const std::byte* /*at*/) const override { return true; }
  void WakeOnRoom(std::weak_ptr<const std::function<void()>> wake) override {
    wake_ = wake;
    ForwardingDevice::WakeOnRoom(std::move(wake));
  }
  void MakeRoom() {
    room_ = true;
    if (const auto wake = wake_.lock()) (*wake)();
  }

 private:
  std::atomic<bool> room_ = false;
  std::weak_ptr<const std::function<void()>> wake_;
};

// The older save's first chunk waits for room on the first lane, and its second one behind that. The second lane has
// room: the younger's wait for its stream would come before the second chunk there.
TEST(Pipeline, AYoungerSaveIsNotEnqueuedBeforeAnOlderOneThatWaitsForRoom) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  std::shared_ptr<FullLane> lanes;
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  wiring.devices = [make = wiring.devices,
                    &lanes](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
    lanes = std::make_shared<FullLane>(make(workers)->front());
    return std::vector<std::shared_ptr<Device>>{lanes};
  };
  Options options = SmallOptions(dir);
  options.host_memory_bytes = 8_MiB;
  const FaultGate shard = plan->Hold({.op = IoOp::kOpen, .path = "shard-", .nth = 2});
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(2, 1_MiB / sizeof(float), kModelGpu);
  Tensors next = Tensors::Many(1, 1_MiB / sizeof(float), kModelGpu);
  std::vector<float> on_cpu(1_MiB / sizeof(float));
  ASSERT_TRUE(next.state().Add("cpu", {.data = on_cpu.data(), .shape = {1_MiB / sizeof(float)}}).ok());
  const Stream stream = gpu.device().MakeStream();
  std::promise<void> kernel_may_end;
  gpu.device().Launch(stream, [ended = kernel_may_end.get_future().share()] { ended.wait(); });

  const auto older = (*checkpointer)->Save(1, tensors.state());
  ASSERT_TRUE(older.ok()) << older.status();
  const auto younger = (*checkpointer)->Save(2, next.state(), {.streams = {stream}});
  ASSERT_TRUE(younger.ok()) << younger.status();
  ASSERT_TRUE(shard.WaitHeld(Deadline::In(kPatience)));  // The younger has been laid out, and could have enqueued.
  shard.Release();
  lanes->MakeRoom();

  EXPECT_EQ(older->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  kernel_may_end.set_value();
  EXPECT_EQ(younger->WaitDurable(Deadline::In(kPatience)), Status::Ok());
}

// Chunks that hold tensors of both: the GPU's part is staged, the CPU's part goes to the pool.
TEST(Pipeline, StagesTheGpusPartOfAMixedState) {
  const TempDir dir;
  ModelGpu gpu;
  const auto plan = FaultPlan::Make();
  Wiring wiring = gpu.Wire();
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  Options options = SmallOptions(dir);
  options.staging_bytes = 32_MiB;
  const FaultGate disk = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors on_gpu = Tensors::Many(20, 100'000, kModelGpu);
  Tensors on_cpu = Tensors::Many(20, 100'000);
  Tensors small = Tensors::Many(20, 1);
  State state;
  const auto add = [&state](const std::string& name, Tensors& from, std::size_t i, DeviceId device) {
    std::vector<std::byte>& memory = from.memory()[i];
    const TensorView view{.data = memory.data(),
                          .dtype = DType::kF32,
                          .shape = {static_cast<std::int64_t>(memory.size() / sizeof(float))},
                          .device = device};
    ASSERT_EQ(state.Add(name, view), Status::Ok());
  };
  for (std::size_t i = 0; i < 20; ++i) {
    add(std::to_string(i) + ".gpu", on_gpu, i, kModelGpu);
    add(std::to_string(i) + ".cpu", on_cpu, i, {});
    add(std::to_string(i) + ".small", small, i, {});
  }
  const auto fill = [&](std::uint64_t seed) {
    on_gpu.Fill(seed);
    on_cpu.Fill(seed + 1);
    small.Fill(seed + 2);
  };
  fill(10);

  const auto save = (*checkpointer)->Save(1, state);
  ASSERT_TRUE(save.ok()) << save.status();
  // The pool is full, and the disk stands still.
  EXPECT_EQ(save->WaitCaptured(Deadline::In(std::chrono::milliseconds(300))).code(), StatusCode::kDeadlineExceeded);
  disk.Release();
  ASSERT_EQ(save->WaitCaptured(Deadline::In(kPatience)), Status::Ok());
  fill(20);

  EXPECT_FALSE(save->stats().staged);
  ASSERT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  ASSERT_EQ((*checkpointer)->Restore(Latest(), state).status(), Status::Ok());
  EXPECT_TRUE(on_gpu.Holds(10));
  EXPECT_TRUE(on_cpu.Holds(11));
  EXPECT_TRUE(small.Holds(12));
}

/// A driver whose calls block, as one does whose launch queue is full.
class BlockingFence final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status StreamWait(Stream stream, EventId event) override {
    if (blocks.exchange(false)) {
      reached.set_value();
      release.get_future().wait();
    }
    return ForwardingDevice::StreamWait(stream, event);
  }
  std::atomic<bool> blocks = true;
  std::promise<void> reached;
  std::promise<void> release;
};

TEST(Pipeline, AFenceThatTheDriverBlocksHoldsUpNobodyElse) {
  const TempDir dir;
  std::shared_ptr<HostDevice> gpu;
  std::shared_ptr<BlockingFence> driver;
  Wiring wiring;
  wiring.devices = [&](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
    gpu = HostDevice::Make({.id = kModelGpu, .lanes = 2, .streams = true}, workers);
    driver = std::make_shared<BlockingFence>(gpu);
    return std::vector<std::shared_ptr<Device>>{driver};
  };
  auto checkpointer = Checkpointer::Open(SmallOptions(dir), std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(1, 1000, kModelGpu);
  const Stream stream = gpu->MakeStream();
  std::promise<void> kernel_may_end;
  gpu->Launch(stream, [&] { kernel_may_end.get_future().wait(); });
  const auto save = (*checkpointer)->Save(1, tensors.state(), {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();

  std::thread fence([&] { EXPECT_EQ((*checkpointer)->Fence(stream), Status::Ok()); });
  driver->reached.get_future().wait();
  kernel_may_end.set_value();

  EXPECT_EQ(save->WaitDurable(Deadline::In(seconds(10))), Status::Ok());
  EXPECT_EQ(save->stats().phase, SavePhase::kDurable);
  driver->release.set_value();
  fence.join();
}

TEST(Pipeline, SaveReturnsBeforeCopyingAndSmallCpuTensorsMayChange) {
  const TempDir dir;
  ModelGpu gpu;
  auto checkpointer = Checkpointer::Open(SmallOptions(dir), gpu.Wire());
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors counter;
  counter.Add("step", 1, DType::kI64);
  counter.Fill(5);
  Tensors weights = Tensors::Many(1, 1000, kModelGpu);
  weights.Fill(6);
  State state = weights.state();
  const TensorView view{.data = counter.memory()[0].data(), .dtype = DType::kI64, .shape = {1}};
  ASSERT_TRUE(state.Add("step", view).ok());
  const Stream stream = gpu.device().MakeStream();
  std::promise<void> kernel_may_end;
  gpu.device().Launch(stream, [&] { kernel_may_end.get_future().wait(); });

  const auto save = (*checkpointer)->Save(1, state, {.streams = {stream}});
  counter.Fill(50);  // Adam increments it on the host.
  kernel_may_end.set_value();

  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  ASSERT_TRUE((*checkpointer)->Restore(Latest(), state).ok());
  EXPECT_TRUE(counter.Holds(5));
  EXPECT_TRUE(weights.Holds(6));
}

TEST(Pipeline, FenceHoldsTheHostForCpuTensors) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open(SmallOptions(dir));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(20, 1_MiB / sizeof(float));

  for (std::uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*checkpointer)->Fence().ok());
    tensors.Fill(SeedOf(step));
    ASSERT_TRUE((*checkpointer)->Save(step, tensors.state()).ok());
  }

  ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());
  for (std::uint64_t step = 1; step <= 3; ++step) {
    ExpectHolds(**checkpointer, step, Tensors::Many(20, 1_MiB / sizeof(float)));
  }
}

TEST(Pipeline, WritesAStateWithoutBytes) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open(SmallOptions(dir));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  State state;
  ASSERT_TRUE(state.Set("note", "nothing else").ok());

  const auto save = (*checkpointer)->Save(0, state);

  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  const auto restored = (*checkpointer)->Restore(Latest(), State());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->values.at("note"), Value("nothing else"));
}

TEST(Pipeline, StateMayBeChangedAndDestroyedWhileItsSaveIsInFlight) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open(SmallOptions(dir));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(6, 1_MiB / sizeof(float));
  tensors.Fill(SeedOf(1));
  Result<SaveHandle> save = Status(StatusCode::kInternal, "not yet");
  {
    State state = tensors.state();
    save = (*checkpointer)->Save(1, state);
    const TensorView view{.data = tensors.memory()[0].data(), .shape = {10}};
    ASSERT_TRUE(state.Add("later", view).ok());
  }

  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  ExpectHolds(**checkpointer, 1, Tensors::Many(6, 1_MiB / sizeof(float)));
}

TEST(Pipeline, TensorAddedAfterASaveIsInTheNextOne) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open(SmallOptions(dir));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  std::vector<float> first(1000, 1);
  std::vector<float> second(1000, 2);
  State state;
  ASSERT_TRUE(state.Add("first", {.data = first.data(), .shape = {1000}}).ok());
  const auto before = (*checkpointer)->Save(1, state);
  ASSERT_TRUE(before->WaitDurable(Deadline::In(kPatience)).ok()) << before->status();

  ASSERT_TRUE(state.Add("second", {.data = second.data(), .shape = {1000}}).ok());
  const auto after = (*checkpointer)->Save(2, state);

  ASSERT_TRUE(after->WaitDurable(Deadline::In(kPatience)).ok()) << after->status();
  second.assign(1000, 0);
  const auto restored = (*checkpointer)->Restore(Latest(), state);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(second, std::vector<float>(1000, 2));
}

TEST(Pipeline, FenceOfAnotherDevicesStreamMakesTheHostWait) {
  const TempDir dir;
  std::vector<std::shared_ptr<HostDevice>> gpus;
  Wiring wiring;
  wiring.devices = [&gpus](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
    for (const int index : {0, 1}) {
      gpus.push_back(HostDevice::Make({.id = {DeviceKind::kCuda, index}, .lanes = 2, .streams = true}, workers));
    }
    return std::vector<std::shared_ptr<Device>>(gpus.begin(), gpus.end());
  };
  auto checkpointer = Checkpointer::Open(SmallOptions(dir), std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(1, 1000, {DeviceKind::kCuda, 0});
  const Stream own = gpus[0]->MakeStream();
  const Stream other = gpus[1]->MakeStream();
  std::promise<void> kernel_may_end;
  gpus[0]->Launch(own, [&] { kernel_may_end.get_future().wait(); });
  const auto save = (*checkpointer)->Save(1, tensors.state(), {.streams = {own}});
  ASSERT_TRUE(save.ok()) << save.status();

  EXPECT_TRUE((*checkpointer)->Fence(own).ok());
  EXPECT_EQ((*checkpointer)->Fence(other, Deadline::In({})).code(), StatusCode::kDeadlineExceeded);
  kernel_may_end.set_value();
  EXPECT_TRUE((*checkpointer)->Fence(other).ok());

  EXPECT_GE(save->stats().phase, SavePhase::kCaptured);
  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  // Work on a stream of an unused device cannot be ordered before the copies.
  EXPECT_EQ((*checkpointer)->Save(2, tensors.state(), {.streams = {own, other}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Pipeline, ThreadQueueAndChecksumsOffRoundTripToo) {
  const TempDir dir;
  Options options = SmallOptions(dir);
  options.io_queue = IoQueueKind::kThreads;
  options.checksums = false;
  auto checkpointer = Checkpointer::Open(options);
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(5, 300'001);
  tensors.Fill(SeedOf(1));

  const auto save = (*checkpointer)->Save(1, tensors.state());

  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();
  ExpectHolds(**checkpointer, 1, Tensors::Many(5, 300'001));
  EXPECT_EQ((*checkpointer)->stats().io_queue, "threads");
}

TEST(Pipeline, OpenNamesTheSmallestPossiblePool) {
  const TempDir dir;
  Options options = SmallOptions(dir);
  options.host_memory_bytes = 1_MiB;

  const Status status = Checkpointer::Open(options).status();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("2097152"));
}

}  // namespace
}  // namespace cairn
