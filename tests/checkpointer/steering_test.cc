#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "api/steered_saves.h"
#include "api/wiring.h"
#include "base/modelled_time.h"
#include "cairn/cairn.h"
#include "device/host_device.h"
#include "support/patience.h"
#include "support/tensors.h"
#include "testing/rate_limited_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::milliseconds kIteration{4};

Options Steered(const std::string& root) {
  return {.root = root,
          .steering = SteeringOptions{.slowdown = 0.5, .mtbf = std::chrono::seconds(5)},
          .host_memory_bytes = 64_MiB,
          .chunk_bytes = 1_MiB};
}

TEST(SteeredSaves, DiskRateSetsTheInterval) {
  const TempDir dir;
  const auto disk = RateLimitedDisk::Make(50'000'000);
  Wiring wiring;
  wiring.wrap_queue = [disk](IoQueueFactory inner) { return disk->Wrap(std::move(inner)); };
  const auto time = std::make_shared<ModelledTime>();
  wiring.now = ModelledTime::Source(time);
  auto checkpointer = Checkpointer::Open(Steered(dir / "run"), std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(4, 250'000);
  // An iteration takes 4 ms of modelled time. A save takes at least 80 ms of real time.
  std::uint64_t step = 0;
  std::vector<std::uint64_t> saved;
  const auto train_until = [&](std::size_t saves) {
    while (saved.size() < saves) {
      ASSERT_TRUE((*checkpointer)->Fence({}, Deadline::In(kPatience)).ok());
      time->AdvanceTo(time->Now() + kIteration);
      const auto should = (*checkpointer)->ShouldSave(++step);
      ASSERT_TRUE(should.ok()) << should.status();
      if (!*should) continue;
      ASSERT_TRUE((*checkpointer)->Save(step, tensors.state()).ok());
      saved.push_back(step);
    }
  };

  train_until(1);
  EXPECT_GE(saved[0], 7U) << "iterations are timed first";
  EXPECT_EQ((*checkpointer)->stats().save_interval, 0U);
  train_until(5);

  ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());
  const CheckpointerStats stats = (*checkpointer)->stats();
  EXPECT_EQ(stats.saves_failed, 0U);
  EXPECT_GE(stats.save_interval, 20U) << stats.save_interval_reason;
  EXPECT_FALSE(stats.save_interval_reason.empty());
  for (std::size_t i = 1; i < saved.size(); ++i) EXPECT_GE(saved[i] - saved[i - 1], 20U) << "80 ms are 20 iterations";
}

TEST(SteeredSaves, LongCopiesLengthenTheInterval) {
  const TempDir dir;
  Options options = Steered(dir / "run");
  options.steering = SteeringOptions{.slowdown = 0.01, .mtbf = std::chrono::hours(2)};
  const auto time = std::make_shared<ModelledTime>();
  Wiring wiring;
  wiring.now = ModelledTime::Source(time);
  wiring.devices = [time](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
    return std::vector<std::shared_ptr<Device>>{HostDevice::Make({.bytes_per_second = 50e6, .time = time}, workers)};
  };
  auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(4, 250'000);

  // Copies take 80 ms, iterations 4: the fence delays each save's first iteration by that.
  for (std::uint64_t step = 1; (*checkpointer)->stats().save_interval == 0; ++step) {
    time->AdvanceTo(time->Now() + kIteration);
    ASSERT_TRUE((*checkpointer)->Fence({}, Deadline::In(kPatience)).ok());
    const auto should = (*checkpointer)->ShouldSave(step);
    ASSERT_TRUE(should.ok()) << should.status();
    if (*should) {
      ASSERT_TRUE((*checkpointer)->Save(step, tensors.state()).ok());
    }
  }

  const CheckpointerStats stats = (*checkpointer)->stats();
  EXPECT_GE(stats.save_interval, 2000U) << "80 ms are 1 % of 2000 iterations; " << stats.save_interval_reason;
  EXPECT_THAT(stats.save_interval_reason, HasSubstr("costs training"));
}

TEST(SteeredSaves, EndedSavesAreNotKept) {
  const auto steered = SteeredSaves::Make({.mtbf = std::chrono::hours(1)});
  const auto begin = [&](std::uint64_t step) {
    auto task = std::make_shared<SaveTask>(SavePlan{.step = step}, nullptr, std::vector<DeviceEvents>{},
                                           SaveTask::Clock::now(), std::make_shared<Inbox>());
    steered->Begun(task);
    return task;
  };
  std::vector<std::weak_ptr<SaveTask>> ended;
  auto under_way = begin(1);

  for (std::uint64_t step = 2; step <= 20; ++step) {
    under_way->Finish(step % 2 == 0 ? Status::Ok() : Status(StatusCode::kNoSpace, "the disk is full"));
    ended.push_back(under_way);
    under_way = begin(step);
  }

  for (const auto& task : ended) EXPECT_TRUE(task.expired());
  under_way->Finish(Status::Ok());
}

TEST(SteeredSaves, IsOffByDefault) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();

  const auto should = (*checkpointer)->ShouldSave(1);

  EXPECT_EQ(should.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(should.status().message(), HasSubstr("steering is not set"));
  EXPECT_EQ((*checkpointer)->stats().save_interval, 0U);
  EXPECT_EQ((*checkpointer)->stats().save_interval_reason, "");
}

TEST(SteeredSaves, ImpossibleGoalsAreNamedAtOpen) {
  const TempDir dir;
  const auto message = [&](SteeringOptions steering) {
    Options options = Steered(dir / "run");
    options.steering = steering;
    const Status status = Checkpointer::Open(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  for (const double bad : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message({.slowdown = bad}), HasSubstr("slowdown: expected"));
  }
  EXPECT_THAT(message({.mtbf = {}}), HasSubstr("mtbf"));
  EXPECT_THAT(message({.restart_time = std::chrono::seconds(-1)}), HasSubstr("restart_time"));
}

}  // namespace
}  // namespace cairn
