#include "testing/rate_limited_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <thread>

#include "cairn/options.h"
#include "io/thread_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

class RateLimitedQueues : public testing::Test {
 protected:
  RateLimitedQueues() : fd_(::open((dir_ / "file").c_str(), O_RDWR | O_CREAT, 0644)) {}
  ~RateLimitedQueues() override { ::close(fd_); }

  std::unique_ptr<IoQueue> MakeQueue() {
    return *disk_->Wrap([] { return MakeThreadQueue(2); })();
  }
  IoRequest Write() { return {.op = IoOp::kWrite, .fd = fd_, .buffer = data_.data(), .length = data_.size()}; }
  static void Drain(IoQueue& queue) {
    while (queue.pending() > 0) ASSERT_TRUE(queue.RunOnce(Deadline::Infinite()).ok());
  }

  TempDir dir_;
  int fd_;
  std::string data_ = std::string(100'000, 'x');
  std::shared_ptr<RateLimitedDisk> disk_ = RateLimitedDisk::Make(10'000'000);  // 10 ms for each write.
};

TEST_F(RateLimitedQueues, WritesTakeTurnsOnTheDisk) {
  const auto queue = MakeQueue();
  const auto begin = Clock::now();
  std::vector<Clock::duration> ends;

  for (int i = 0; i < 5; ++i) queue->Submit(Write(), [&](std::int64_t) { ends.push_back(Clock::now() - begin); });
  Drain(*queue);

  ASSERT_EQ(ends.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_GE(ends[i], (i + 1) * 10ms);
  EXPECT_EQ(disk_->bytes(), 500'000U);
}

TEST_F(RateLimitedQueues, QueuesShareTheDisk) {
  const auto mine = MakeQueue();
  mine->Submit(Write(), [](std::int64_t) {});
  const auto begin = Clock::now();
  Clock::duration others{};

  std::thread other([&] {
    const auto queue = MakeQueue();
    queue->Submit(Write(), [&](std::int64_t) { others = Clock::now() - begin; });
    Drain(*queue);
  });
  Drain(*mine);
  other.join();

  // Its own 10 ms, and the rest of the first write's.
  EXPECT_GE(others, 10ms);
  EXPECT_EQ(disk_->bytes(), 200'000U);
}

TEST_F(RateLimitedQueues, OtherOperationsAreNotDelayed) {
  disk_->SetRate(1000);
  const auto queue = MakeQueue();
  bool written = false;
  bool synced = false;
  queue->Submit(Write(), [&](std::int64_t) { written = true; });
  queue->Submit({.op = IoOp::kFsync, .fd = fd_}, [&](std::int64_t) { synced = true; });

  while (!synced) ASSERT_TRUE(queue->RunOnce(Deadline::Infinite()).ok());

  EXPECT_FALSE(written);
}

TEST_F(RateLimitedQueues, SleepsInsteadOfSpinning) {
  disk_->SetRate(1'000'000);  // 100 ms.
  const auto queue = MakeQueue();
  queue->Submit(Write(), [](std::int64_t) {});
  timespec before{};
  timespec after{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);

  Drain(*queue);

  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const auto used =
      std::chrono::seconds(after.tv_sec - before.tv_sec) + std::chrono::nanoseconds(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 50ms);
}

}  // namespace
}  // namespace cairn
