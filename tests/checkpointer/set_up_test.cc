// What is set up at Open and what on first use: devices, and a pool that fits the state; and what events say of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "api/pool_growth.h"
#include "api/resolve_options.h"
#include "base/mutex.h"
#include "base/worker_pool.h"
#include "cairn/cairn.h"
#include "device/buffer_pool.h"
#include "device/host_device.h"
#include "support/faulty_queue.h"
#include "support/model_gpu.h"
#include "support/patience.h"
#include "support/tensors.h"
#include "support/variable.h"
#include "testing/forwarding_device.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Warnings, in their order.
class Warnings {
 public:
  EventCallback Callback() {
    return [this](const Event& event) {
      const bool slow_disk = event.message.find("has waited for the disk") != std::string::npos;
      if (event.severity == Severity::kInfo || slow_disk) return;
      MutexLock lock(mutex_);
      seen_.push_back(event.message);
      changed_.NotifyAll();
    };
  }
  [[nodiscard]] std::vector<std::string> seen() const {
    MutexLock lock(mutex_);
    return seen_;
  }
  [[nodiscard]] bool Wait() {
    MutexLock lock(mutex_);
    const Deadline deadline = Deadline::In(kPatience);
    while (seen_.empty() && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
    return !seen_.empty();
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> seen_ CAIRN_GUARDED_BY(mutex_);
};

/// A device whose pinning `pin` decides on.
class PinningDevice final : public ForwardingDevice {
 public:
  using Pin = std::function<Status()>;
  PinningDevice(std::shared_ptr<Device> inner, Pin pin) : ForwardingDevice(std::move(inner)), pin_(std::move(pin)) {}
  Status PinMemory(MutableBytes memory) override {
    if (const Status status = pin_(); !status.ok()) return status;
    return inner_->PinMemory(memory);
  }

 private:
  const Pin pin_;
};

/// A GPU of the model, whose pinning `pin` decides on.
Wiring WirePinning(ModelGpu& gpu, PinningDevice::Pin pin) {
  Wiring wiring;
  wiring.devices = [inner = gpu.Wire().devices,
                    pin = std::move(pin)](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
    std::vector<std::shared_ptr<Device>> made = *inner(workers);
    return std::vector<std::shared_ptr<Device>>{std::make_shared<PinningDevice>(made.front(), pin)};
  };
  return wiring;
}

/// The checkpointer chooses the pool's size. A restore uses 4 chunks of 1 MiB.
Options AutoOptions(const std::string& root) {
  return {.root = root, .max_in_flight = 2, .chunk_bytes = 1_MiB, .queue_depth = 2};
}

Tensors State20MiB(DeviceId device = {}) { return Tensors::Many(20, 1_MiB / sizeof(float), device); }

std::unique_ptr<Checkpointer> Opened(const Options& options, Wiring wiring = {}) {
  auto opened = Checkpointer::Open(options, std::move(wiring));
  EXPECT_EQ(opened.status(), Status::Ok());
  return opened.ok() ? *std::move(opened) : nullptr;
}

Status SaveNow(Checkpointer& checkpointer, std::uint64_t step, Tensors& tensors) {
  const auto save = checkpointer.Save(step, tensors.state());
  return save.ok() ? save->WaitDurable(Deadline::In(kPatience)) : save.status();
}

/// Whether the pool, which grows behind the calls, gets that size.
bool PoolReaches(const Checkpointer& checkpointer, std::uint64_t bytes) {
  const Deadline patience = Deadline::In(kPatience);
  while (checkpointer.stats().pool_bytes != bytes && !patience.passed()) std::this_thread::yield();
  return checkpointer.stats().pool_bytes == bytes;
}

TEST(SetUp, ThePoolGrowsToTheFirstStateAndNoFurther) {
  const TempDir dir;
  Warnings warnings;
  Options options = AutoOptions(dir / "run");
  options.on_event = warnings.Callback();
  const auto checkpointer = Opened(options);
  EXPECT_EQ(checkpointer->stats().pool_bytes, 4_MiB);
  EXPECT_GT(checkpointer->stats().pool_limit_bytes, 20_MiB);
  Tensors tensors = State20MiB();
  tensors.Fill(1);

  EXPECT_EQ(SaveNow(*checkpointer, 1, tensors), Status::Ok());
  EXPECT_TRUE(PoolReaches(*checkpointer, 20_MiB));
  Tensors smaller = Tensors::Many(2, 100);
  EXPECT_EQ(SaveNow(*checkpointer, 2, smaller), Status::Ok());

  EXPECT_EQ(checkpointer->stats().pool_bytes, 20_MiB);
  EXPECT_LE(checkpointer->stats().pool_peak_bytes, 20_MiB);
  EXPECT_THAT(warnings.seen(), IsEmpty()) << "without a GPU it costs nothing";
  Tensors fresh = State20MiB();
  EXPECT_EQ(checkpointer->Restore(Step(1), fresh.state()).status(), Status::Ok());
  EXPECT_TRUE(fresh.Holds(1));
}

TEST(SetUp, ThePoolNeverPassesItsLimit) {
  const TempDir dir;
  const Variable ranks("LOCAL_WORLD_SIZE", "1000000000000");
  const auto checkpointer = Opened(AutoOptions(dir / "run"));
  Tensors tensors = State20MiB();
  tensors.Fill(1);

  EXPECT_EQ(SaveNow(*checkpointer, 1, tensors), Status::Ok());

  EXPECT_EQ(checkpointer->stats().pool_limit_bytes, 2_MiB) << "the smallest that works";
  EXPECT_LE(checkpointer->stats().pool_peak_bytes, 2_MiB);
  Tensors fresh = State20MiB();
  EXPECT_EQ(checkpointer->Restore(Latest(), fresh.state()).status(), Status::Ok());
  EXPECT_TRUE(fresh.Holds(1));
}

TEST(SetUp, TheRanksOfANodeShareWhatItHas) {
  const auto resolved = [](std::uint64_t ranks) { return *ResolveOptions({.root = "run"}, ranks); };
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());

  EXPECT_EQ(resolved(1).queue_depth, 8);
  EXPECT_EQ(resolved(2).queue_depth, 4);
  EXPECT_EQ(resolved(64).queue_depth, 2);
  EXPECT_EQ(resolved(1).worker_threads, std::min(cores, 4));
  EXPECT_EQ(resolved(2).worker_threads, std::clamp(cores / 2, 1, 4));
  EXPECT_EQ(resolved(100'000).worker_threads, 1);
  EXPECT_LT(ChooseHostMemory(8), ChooseHostMemory(1) / 4);
  EXPECT_LT(resolved(8).host_memory_bytes, std::max<std::uint64_t>(ChooseHostMemory(1) / 4, 16_MiB));
  const Options given =
      *ResolveOptions({.root = "run", .host_memory_bytes = 64_MiB, .queue_depth = 7, .worker_threads = 9}, 8);
  EXPECT_EQ(given.host_memory_bytes, 64_MiB);
  EXPECT_EQ(given.queue_depth, 7);
  EXPECT_EQ(given.worker_threads, 9);
}

TEST(SetUp, ChunksBeyondThePoolsShareNeedASize) {
  Options options{.root = "run", .chunk_bytes = 1_GiB, .queue_depth = 1024};  // More than any machine's quarter.
  const Status refused = ResolveOptions(options, 1).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("host_memory_bytes: expected a size"), HasSubstr("1024 of chunk_bytes 1073741824"),
                    HasSubstr("a pool of 1099511627776"),
                    ContainsRegex("has at most [0-9]+, a quarter of the available memory")));

  options.chunk_bytes = 4_MiB;
  options.queue_depth = 8;
  EXPECT_EQ(ResolveOptions(options, 1'000'000)->host_memory_bytes, 32_MiB) << "allowed on any machine";
}

TEST(SetUp, ARestoreFitsThePoolForTheSavesThatFollow) {
  const TempDir dir;
  Tensors tensors = State20MiB();
  EXPECT_EQ(SaveNow(*Opened(AutoOptions(dir / "run")), 1, tensors), Status::Ok());
  {
    Options options = AutoOptions(dir / "run");
    options.read_only = true;
    const auto reader = Opened(options);
    EXPECT_EQ(reader->Restore(Latest(), tensors.state()).status(), Status::Ok());
    EXPECT_EQ(reader->stats().pool_bytes, 4_MiB) << "a reader needs no more";
    EXPECT_EQ(reader->stats().pool_limit_bytes, 4_MiB);
  }
  const auto checkpointer = Opened(AutoOptions(dir / "run"));

  EXPECT_EQ(checkpointer->Restore(Latest(), tensors.state(), {.resume = false}).status(), Status::Ok());
  EXPECT_EQ(checkpointer->stats().pool_bytes, 4_MiB);
  EXPECT_EQ(checkpointer->Restore(Latest(), tensors.state()).status(), Status::Ok());

  EXPECT_TRUE(PoolReaches(*checkpointer, 20_MiB));
}

TEST(SetUp, ASaveThatPinsMemorySaysSo) {
  const TempDir dir;
  ModelGpu gpu;
  Warnings warnings;
  Options options = AutoOptions(dir / "run");
  options.on_event = warnings.Callback();
  const auto checkpointer = Opened(options, gpu.Wire());
  Tensors tensors = State20MiB(kModelGpu);

  EXPECT_EQ(SaveNow(*checkpointer, 1, tensors), Status::Ok());
  EXPECT_TRUE(warnings.Wait());
  EXPECT_EQ(SaveNow(*checkpointer, 2, tensors), Status::Ok());

  EXPECT_THAT(warnings.seen(), ElementsAre(AllOf(StartsWith("pinned 16.0 MiB more of host memory in "),
                                                 HasSubstr("host_memory_bytes=20971520 does so at Open"))));
}

TEST(SetUp, ASaveDoesNotWaitForMemoryThatIsPinned) {
  const TempDir dir;
  ModelGpu gpu;
  std::atomic<bool> holds = false;
  std::promise<void> pinned;
  Wiring wiring = WirePinning(gpu, [&, released = pinned.get_future().share()] {
    if (holds) released.wait();
    return Status::Ok();
  });
  const auto checkpointer = Opened(AutoOptions(dir / "run"), std::move(wiring));
  Tensors tensors = State20MiB(kModelGpu);
  tensors.Fill(3);
  holds = true;

  EXPECT_EQ(SaveNow(*checkpointer, 1, tensors), Status::Ok()) << "it takes the chunks that there are";
  EXPECT_EQ(checkpointer->stats().pool_bytes, 4_MiB);
  Tensors fresh = State20MiB(kModelGpu);
  EXPECT_EQ(checkpointer->Restore(Latest(), fresh.state()).status(), Status::Ok());
  EXPECT_TRUE(fresh.Holds(3));
  pinned.set_value();

  EXPECT_TRUE(PoolReaches(*checkpointer, 20_MiB));
}

TEST(PoolGrowth, EndsWithoutADriverThatHangsAndSaysNothingMore) {
  WorkerPool workers("workers", 1);
  std::promise<void> pinning;
  std::promise<void> released;
  std::atomic<int> pinned = 0;
  PinningDevice device(HostDevice::Make({}, workers), [&, answer = released.get_future().share()] {
    if (pinned++ == 0) return Status::Ok();
    pinning.set_value();
    answer.wait();
    return Status(StatusCode::kResourceExhausted, "no more memory may be pinned");
  });
  const auto pool = BufferPool::MakeGrowing(4_MiB, 20_MiB, 1_MiB, 2);
  ASSERT_EQ((*pool)->PinWith(device), Status::Ok());
  Warnings warnings;
  const auto growth = PoolGrowth::Start(**pool, workers, 1, warnings.Callback());
  EXPECT_FALSE((*growth)->growing());

  (*growth)->FitTo(20_MiB, Severity::kWarning);
  pinning.get_future().wait();

  EXPECT_TRUE((*growth)->growing());
  EXPECT_FALSE((*growth)->End(Deadline::In({})));
  released.set_value();
  EXPECT_TRUE((*growth)->End(Soon()));
  EXPECT_THAT(warnings.seen(), IsEmpty());
}

TEST(SetUp, ASaveGoesOnIfThePoolCannotGrow) {
  const TempDir dir;
  ModelGpu gpu;
  Warnings warnings;
  std::atomic<bool> refuses = false;
  Wiring wiring = WirePinning(gpu, [&] {
    return refuses ? Status(StatusCode::kResourceExhausted, "no more memory may be pinned") : Status::Ok();
  });
  Options options = AutoOptions(dir / "run");
  options.on_event = warnings.Callback();
  const auto checkpointer = Opened(options, std::move(wiring));
  Tensors tensors = State20MiB(kModelGpu);
  refuses = true;

  EXPECT_EQ(SaveNow(*checkpointer, 1, tensors), Status::Ok());
  EXPECT_TRUE(warnings.Wait());
  EXPECT_EQ(SaveNow(*checkpointer, 2, tensors), Status::Ok());

  EXPECT_EQ(checkpointer->stats().pool_bytes, 4_MiB);
  EXPECT_THAT(warnings.seen(), ElementsAre(AllOf(HasSubstr("stays at 4.0 MiB"), HasSubstr("may be pinned"))));
}

/// Makes a GPU of host memory when a Checkpointer asks for one.
Wiring WithLateGpu() {
  Wiring wiring;
  wiring.cuda = [](DeviceId id, WorkerPool& workers) -> Result<std::unique_ptr<Device>> {
    if (id != kModelGpu) return Status(StatusCode::kInvalidArgument, ToString(id) + ": no such GPU");
    return std::unique_ptr<Device>(HostDevice::Make({.id = id, .lanes = 2, .streams = true}, workers));
  };
  return wiring;
}

TEST(SetUp, ADeviceIsSetUpAtOpenBySetUpOrByTheFirstSaveWhichSaysSo) {
  const TempDir dir;
  Tensors tensors = State20MiB(kModelGpu);
  const auto warnings_of = [&](const std::string& root, bool named, bool set_up) {
    Warnings warnings;
    Options options = AutoOptions(dir / root);
    options.host_memory_bytes = 4_MiB;
    options.on_event = warnings.Callback();
    if (named) options.cuda_devices = {0};
    const auto checkpointer = Opened(options, WithLateGpu());
    if (set_up) {
      EXPECT_EQ(checkpointer->SetUp(kModelGpu), Status::Ok());
    }
    for (const std::uint64_t step : {1, 2}) EXPECT_EQ(SaveNow(*checkpointer, step, tensors), Status::Ok());
    return warnings.seen();
  };

  EXPECT_THAT(warnings_of("named", true, false), IsEmpty());
  EXPECT_THAT(warnings_of("set up", false, true), IsEmpty());
  EXPECT_THAT(warnings_of("both", true, true), IsEmpty());
  EXPECT_THAT(warnings_of("late", false, false),
              ElementsAre(AllOf(StartsWith("cuda:0 was set up in "), HasSubstr("4.0 MiB of host memory were pinned"),
                                HasSubstr("cuda_devices"))));
}

TEST(SetUp, ADeviceThatIsNotThereIsRefusedAndSavesGoOn) {
  const TempDir dir;
  const auto checkpointer = Opened(AutoOptions(dir / "run"), WithLateGpu());

  EXPECT_EQ(checkpointer->SetUp({DeviceKind::kCuda, 7}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(checkpointer->SetUp({}), Status::Ok());

  Tensors tensors = Tensors::Many(2, 1000);
  EXPECT_EQ(SaveNow(*checkpointer, 1, tensors), Status::Ok());
  Options options = AutoOptions(dir / "other");
  options.cuda_devices = {7};
  EXPECT_EQ(Checkpointer::Open(options, WithLateGpu()).status().code(), StatusCode::kInvalidArgument);
}

class FenceWait : public ::testing::Test {
 protected:
  FenceWait() : disk_(plan_->Hold({.op = IoOp::kWrite, .path = "shard-"})) {}

  std::unique_ptr<Checkpointer> Open(std::uint64_t pool) {
    Options options = AutoOptions(dir_ / "run");
    options.host_memory_bytes = pool;
    options.on_event = warnings_.Callback();
    Wiring wiring = gpu_.Wire();
    wiring.wrap_queue = [plan = plan_](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
    return Opened(options, std::move(wiring));
  }

  const TempDir dir_;
  ModelGpu gpu_;
  Warnings warnings_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  const FaultGate disk_;
};

TEST_F(FenceWait, ForTheDiskIsSaidOnceWithTheCure) {
  const auto checkpointer = Open(2_MiB);
  Tensors tensors = State20MiB(kModelGpu);
  const Stream stream = gpu_.device().MakeStream();
  ASSERT_TRUE(checkpointer->Save(1, tensors.state(), {.streams = {stream}}).ok());

  std::future<Status> fence = std::async(std::launch::async, [&] { return checkpointer->Fence(stream); });
  ASSERT_TRUE(warnings_.Wait()) << "while the fence waits";
  EXPECT_NE(fence.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  disk_.Release();

  EXPECT_EQ(fence.get(), Status::Ok());
  EXPECT_THAT(warnings_.seen(), ElementsAre(AllOf(StartsWith("a fence waits for the disk"),
                                                  HasSubstr("the pool of 2.0 MiB"), HasSubstr("this save's 20.0 MiB"),
                                                  HasSubstr("host_memory_bytes"), HasSubstr("staging_bytes"))));
  ASSERT_TRUE(checkpointer->Drain(Deadline::In(kPatience)).ok());

  const FaultGate again = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  ASSERT_TRUE(checkpointer->Save(2, tensors.state(), {.streams = {stream}}).ok());
  EXPECT_EQ(checkpointer->Fence(stream, Deadline::In(std::chrono::milliseconds(700))).code(),
            StatusCode::kDeadlineExceeded);
  again.Release();
  EXPECT_EQ(checkpointer->Fence(stream), Status::Ok());
  EXPECT_THAT(warnings_.seen(), ::testing::SizeIs(1)) << "once";
  EXPECT_EQ(checkpointer->Fence({}), Status::Ok()) << "the tensors die with this test";
}

TEST_F(FenceWait, InManyShortCallsCountsAsOne) {
  const auto checkpointer = Open(2_MiB);
  Tensors tensors = State20MiB(kModelGpu);
  const Stream stream = gpu_.device().MakeStream();
  ASSERT_TRUE(checkpointer->Save(1, tensors.state(), {.streams = {stream}}).ok());
  EXPECT_EQ(checkpointer->Fence(stream, Deadline::In({})).code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(warnings_.seen(), IsEmpty()) << "a short wait is not worth a word";

  const Deadline patience = Deadline::In(kPatience);
  while (warnings_.seen().empty() && !patience.passed()) {
    EXPECT_EQ(checkpointer->Fence(stream, Deadline::In(std::chrono::milliseconds(50))).code(),
              StatusCode::kDeadlineExceeded);
  }

  EXPECT_THAT(warnings_.seen(), ::testing::SizeIs(1));
  disk_.Release();
  EXPECT_EQ(checkpointer->Fence(stream), Status::Ok());
  EXPECT_EQ(checkpointer->Fence({}), Status::Ok()) << "the tensors die with this test";
}

TEST_F(FenceWait, ForTheGpuIsNotTheDisksFault) {
  const auto checkpointer = Open(32_MiB);
  Tensors tensors = State20MiB(kModelGpu);
  const Stream stream = gpu_.device().MakeStream();
  std::promise<void> kernel_may_end;
  gpu_.device().Launch(stream, [&] { kernel_may_end.get_future().wait(); });
  ASSERT_TRUE(checkpointer->Save(1, tensors.state(), {.streams = {stream}}).ok());

  // The host's fence waits until the copies are done.
  EXPECT_EQ(checkpointer->Fence({}, Deadline::In(std::chrono::milliseconds(800))).code(),
            StatusCode::kDeadlineExceeded);

  EXPECT_THAT(warnings_.seen(), IsEmpty());
  kernel_may_end.set_value();
  EXPECT_EQ(checkpointer->Fence({}), Status::Ok()) << "the state is in the pool, whatever the disk does";
  disk_.Release();
}

}  // namespace
}  // namespace cairn
