// Checksums are computed after the writes: what happens while only they are missing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "api/checkpointer_impl.h"
#include "cairn/cairn.h"
#include "support/model_gpu.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using std::chrono::milliseconds;
using std::chrono::minutes;
using testing::IsEmpty;

constexpr std::size_t kChunks = 4;
constexpr std::uint64_t kSeed = 7;
constexpr char kShard[] = "shard-";

// The only worker is blocked from the first save's first write until Unblock(), so no checksum is known.
class Checksums : public testing::Test {
 protected:
  void Open(Options options) {
    options.worker_threads = 1;
    Wiring wiring = Through(plan_);
    wiring.devices = [this, make = gpu_.Wire().devices](WorkerPool& workers) {
      workers_ = &workers;
      return make(workers);
    };
    plan_->CallBefore({.op = IoOp::kWrite, .path = kShard, .nth = 1}, [this](const SeenOperation&) {
      workers_->Post([unblocked = unblocked_.get_future().share()] { unblocked.wait(); });
    });
    plan_->CallAfter({.op = IoOp::kWrite, .path = kShard, .nth = kChunks},
                     [this](const SeenOperation&) { written_.set_value(); });
    checkpointer_ = OpenOrFail(options, wiring);
    tensors_.Fill(kSeed);
  }
  void Open() { Open(SmallOptions(root())); }
  [[nodiscard]] std::string root() const { return dir_ / "run"; }

  SaveHandle Save(std::uint64_t step, std::chrono::nanoseconds hold = {}) {
    auto save = Inside::Of(*checkpointer_).Save(step, tensors_.state(), tensors_.state().values(), {}, hold);
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  void AwaitWrites() { ASSERT_TRUE(written_.get_future().wait_until(Soon().when()) == std::future_status::ready); }
  void Unblock() {
    done_ = true;
    unblocked_.set_value();
  }
  void ExpectHolds(std::uint64_t step) {
    Tensors fresh = Tensors::Many(kChunks, 1_MiB / sizeof(float), kModelGpu);
    const auto restored = checkpointer_->Restore(Step(step), fresh.state());
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_TRUE(fresh.Holds(kSeed));
  }

  const TempDir dir_;
  ModelGpu gpu_;
  Tensors tensors_ = Tensors::Many(kChunks, 1_MiB / sizeof(float), kModelGpu);
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  WorkerPool* workers_ = nullptr;
  std::promise<void> unblocked_;
  std::promise<void> written_;
  std::atomic<bool> done_ = false;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(Checksums, AreKnownBeforeTheHeaderIsWritten) {
  Open();
  std::atomic<bool> known = false;
  plan_->CallBefore({.op = IoOp::kWrite, .path = kShard, .nth = kChunks + 1},
                    [&](const SeenOperation&) { known = done_.load(); });

  const SaveHandle save = Save(1);
  AwaitWrites();
  EXPECT_EQ(save.stats().phase, SavePhase::kCaptured);
  Unblock();

  ASSERT_TRUE(save.WaitDurable(Soon()).ok()) << save.status();
  EXPECT_TRUE(known);
  ExpectHolds(1);
}

TEST_F(Checksums, AreWaitedForByACancelledSave) {
  Open();
  const SaveHandle save = Save(1);
  AwaitWrites();

  EXPECT_TRUE(save.Cancel());
  // A worker still has to read its chunks, so it must not have ended.
  EXPECT_EQ(save.WaitDurable(Deadline::In(milliseconds(50))).code(), StatusCode::kDeadlineExceeded);
  Unblock();

  EXPECT_EQ(save.WaitDurable(Soon()).code(), StatusCode::kCancelled);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  ASSERT_TRUE(Save(1).WaitDurable(Soon()).ok());
  ExpectHolds(1);
}

TEST_F(Checksums, AreWaitedForWhenAWriteFails) {
  plan_->Fail({.op = IoOp::kWrite, .path = kShard, .nth = kChunks}, EIO);
  Open();
  std::promise<void> third;
  plan_->CallAfter({.op = IoOp::kWrite, .path = kShard, .nth = kChunks - 1},
                   [&](const SeenOperation&) { third.set_value(); });
  const SaveHandle save = Save(1);
  ASSERT_TRUE(third.get_future().wait_until(Soon().when()) == std::future_status::ready);

  Unblock();

  EXPECT_EQ(save.WaitDurable(Soon()).code(), StatusCode::kIoError);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  // It needs the whole pool.
  ASSERT_TRUE(Save(2).WaitDurable(Soon()).ok());
  ExpectHolds(2);
}

TEST_F(Checksums, DelayTheCommitOfAReleasedSave) {
  Open();
  const SaveHandle save = Save(1, minutes(10));
  AwaitWrites();

  Inside::Of(save).Release();
  Unblock();

  ASSERT_TRUE(save.WaitDurable(Soon()).ok()) << save.status();
  ExpectHolds(1);
}

TEST_F(Checksums, AreWaitedForWhenClosing) {
  Open(SmallOptions(root()));
  const SaveHandle save = Save(1);
  AwaitWrites();

  AbandonAtOnce(*checkpointer_);
  std::thread closing([&] { checkpointer_.reset(); });
  Unblock();
  closing.join();

  // It may or may not have become durable, but it has ended and left nothing half done.
  EXPECT_GE(save.stats().phase, SavePhase::kDurable);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST(ChecksumsOfManyChunks, WorkWithTheSmallestPoolAndOneWorker) {
  const TempDir dir;
  ModelGpu gpu;
  Options options = SmallOptions(dir / "run");
  options.host_memory_bytes = 2_MiB;
  options.worker_threads = 1;
  const auto checkpointer = OpenOrFail(options, gpu.Wire());
  ASSERT_NE(checkpointer, nullptr);
  // Sized so that one chunk has tensors of both kinds.
  constexpr std::size_t kTensors = 60;
  std::vector<std::vector<float>> memory(kTensors, std::vector<float>(200'000));
  State state;
  for (std::size_t i = 0; i < kTensors; ++i) {
    std::iota(memory[i].begin(), memory[i].end(), static_cast<float>(i));
    ASSERT_TRUE(state
                    .Add("t" + std::to_string(i), {.data = memory[i].data(),
                                                   .shape = {static_cast<std::int64_t>(memory[i].size())},
                                                   .device = i % 2 == 0 ? kModelGpu : DeviceId{}})
                    .ok());
  }
  const auto before = memory;

  const auto save = checkpointer->Save(1, state);

  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->WaitDurable(Soon()).ok()) << save->status();
  for (std::vector<float>& one : memory) std::fill(one.begin(), one.end(), -1.0F);
  const auto restored = checkpointer->Restore(Step(1), state);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(memory, before);
}

}  // namespace
}  // namespace cairn
