#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "queue_case.h"

namespace cairn {
namespace {

using namespace std::chrono_literals;
using IoQueueing = IoQueueContract;

std::vector<int> OpenDescriptors() {
  std::vector<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    // Omits the descriptor of the listing itself, which is closed by now.
    if (::fcntl(fd, F_GETFD) >= 0) open.push_back(fd);
  }
  return open;
}

TEST_P(IoQueueing, CallbacksAreCalledOnlyFromRunOnce) {
  MakeFile("file", "x");
  bool called = false;

  queue_->Submit({.op = IoOp::kUnlink, .path = dir_ / "missing"}, [&called](std::int64_t) { called = true; });

  EXPECT_FALSE(called);
  EXPECT_EQ(queue_->pending(), 1U);
  const auto ran = queue_->RunOnce(Deadline::Infinite());
  ASSERT_TRUE(ran.ok());
  EXPECT_EQ(*ran, 1U);
  EXPECT_TRUE(called);
  EXPECT_EQ(queue_->pending(), 0U);
}

TEST_P(IoQueueing, CallbackFindsItsOperationRemoved) {
  std::size_t pending = 99;

  queue_->Submit({.op = IoOp::kFsync}, [&](std::int64_t) { pending = queue_->pending(); });
  Drain();

  EXPECT_EQ(pending, 0U);
}

TEST_P(IoQueueing, MoreOperationsThanDepthAllComplete) {
  constexpr int kCount = 500;
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT);
  std::vector<std::uint64_t> values(kCount);
  std::vector<int> calls(kCount);

  for (int i = 0; i < kCount; ++i) {
    values[i] = 1000U + i;
    queue_->Submit({.op = IoOp::kWrite, .fd = fd, .buffer = &values[i], .length = 8, .offset = i * 8U},
                   [&calls, i](std::int64_t result) { calls[i] += result == 8 ? 1 : 100; });
  }
  EXPECT_EQ(queue_->pending(), std::size_t{kCount});
  Drain();

  EXPECT_THAT(calls, testing::Each(1));
  std::vector<std::uint64_t> read(kCount);
  ASSERT_EQ(Run({.op = IoOp::kRead, .fd = fd, .buffer = read.data(), .length = kCount * 8, .offset = 0}), kCount * 8);
  EXPECT_EQ(read, values);
  Close(fd);
}

TEST_P(IoQueueing, CallbacksMaySubmitMore) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT);
  int left = 200;
  std::string byte = "x";
  std::function<void(std::int64_t)> next = [&](std::int64_t result) {
    EXPECT_EQ(result, 1);
    if (--left == 0) return;
    const auto offset = static_cast<std::uint64_t>(left);
    queue_->Submit({.op = IoOp::kWrite, .fd = fd, .buffer = byte.data(), .length = 1, .offset = offset}, next);
  };

  queue_->Submit({.op = IoOp::kWrite, .fd = fd, .buffer = byte.data(), .length = 1}, next);
  Drain();

  EXPECT_EQ(left, 0);
  Close(fd);
}

TEST_P(IoQueueing, ClosedDescriptorsAreErrorsAndNoHang) {
  const std::vector<int> before = OpenDescriptors();
  auto queue = *GetParam().make();
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  char byte = 0;
  std::vector<std::int64_t> results;
  const IoDone done = [&](std::int64_t result) { results.push_back(result); };
  queue->Submit({.op = IoOp::kRead, .fd = pipe_ends[0], .buffer = &byte, .length = 1}, done);
  ASSERT_TRUE(queue->RunOnce(Deadline::In(0ms)).ok());

  // A program that becomes a daemon closes all descriptors.
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : OpenDescriptors()) {
    const bool of_queue = std::find(before.begin(), before.end(), fd) == before.end() && fd != nothing;
    if (of_queue && fd != pipe_ends[0] && fd != pipe_ends[1]) ::dup2(nothing, fd);
  }
  queue->Submit({.op = IoOp::kUnlink, .path = dir_ / "missing"}, done);
  ASSERT_EQ(::write(pipe_ends[1], "x", 1), 1);
  while (queue->pending() > 0) ASSERT_TRUE(queue->RunOnce(Deadline::Infinite()).ok());

  EXPECT_EQ(results.size(), 2U);  // Errors, or values of operations that ran anyway.
  queue->Wake();
  EXPECT_TRUE(queue->RunOnce(Deadline::Infinite()).ok());
  queue.reset();
  for (const int fd : {pipe_ends[0], pipe_ends[1], nothing}) ::close(fd);
}

TEST_P(IoQueueing, RunOnceReturnsAtTheDeadlineWithNothingToDo) {
  const auto begin = Deadline::Clock::now();

  const auto ran = queue_->RunOnce(Deadline::In(20ms));

  ASSERT_TRUE(ran.ok()) << ran.status();
  EXPECT_EQ(*ran, 0U);
  EXPECT_GE(Deadline::Clock::now() - begin, 20ms);
}

TEST_P(IoQueueing, PassedDeadlineStillSubmitsOperations) {
  std::optional<std::int64_t> result;
  queue_->Submit({.op = IoOp::kFsync, .fd = -1}, [&](std::int64_t value) { result = value; });

  while (!result.has_value()) ASSERT_TRUE(queue_->RunOnce(Deadline::At(Deadline::Clock::now())).ok());

  EXPECT_EQ(*result, -EBADF);
}

TEST_P(IoQueueing, WakeFromAnotherThreadEndsTheSleep) {
  std::atomic<bool> said = false;
  std::thread other([&] {
    said = true;
    queue_->Wake();
  });

  while (!said) ASSERT_TRUE(queue_->RunOnce(Deadline::Infinite()).ok());

  other.join();
}

TEST_P(IoQueueing, EarlierWakeEndsTheNextSleepOnce) {
  queue_->Wake();
  queue_->Wake();

  const auto first = queue_->RunOnce(Deadline::Infinite());
  const auto begin = Deadline::Clock::now();
  const auto second = queue_->RunOnce(Deadline::In(20ms));

  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*first, 0U);
  ASSERT_TRUE(second.ok());
  EXPECT_GE(Deadline::Clock::now() - begin, 20ms);
}

TEST_P(IoQueueing, EveryWakeIsSeenWhileOperationsComplete) {
  // What the waker writes before each Wake is visible after a RunOnce that the Wake ended, whenever completions come.
  constexpr int kRounds = 300;
  std::atomic<int> said = 0;
  std::atomic<int> seen = 0;
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      said = i;
      queue_->Wake();
      seen.wait(i - 1);
    }
  });

  while (seen < kRounds) {
    queue_->Submit({.op = IoOp::kFsync, .fd = -1}, [](std::int64_t) {});
    while (said <= seen) ASSERT_TRUE(queue_->RunOnce(Deadline::Infinite()).ok());
    seen = said.load();
    seen.notify_all();
  }

  other.join();
  Drain();
}

IoQueue* signalled_queue = nullptr;

TEST_P(IoQueueing, WakeWorksFromASignalHandler) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { signalled_queue->Wake(); };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  signalled_queue = queue_.get();

  ASSERT_EQ(::raise(SIGUSR1), 0);
  const auto ran = queue_->RunOnce(Deadline::Infinite());

  EXPECT_TRUE(ran.ok()) << ran.status();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_P(IoQueueing, DestroyingWaitsForOperationsAndDropsCallbacks) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT);
  auto alive = std::make_shared<int>(0);
  {
    AlignedBuffer buffer(4 << 20);
    for (std::uint64_t i = 0; i < 16; ++i) {
      queue_->Submit(
          {.op = IoOp::kWrite, .fd = fd, .buffer = buffer.data(), .length = buffer.size(), .offset = i * buffer.size()},
          [alive](std::int64_t) { ++*alive; });
    }
    ASSERT_TRUE(queue_->RunOnce(Deadline::In(0ms)).ok());
    const int called = *alive;

    queue_.reset();

    EXPECT_EQ(*alive, called);
    EXPECT_EQ(alive.use_count(), 1);
  }
  ::close(fd);
}

TEST_P(IoQueueing, ForkedChildIsRefusedAndTheParentContinues) {
  MakeFile("file", "x");
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = queue_->RunOnce(Deadline::Infinite()).status().code() == StatusCode::kFailedPrecondition;
    queue_.reset();
    ::_exit(refused ? 0 : 1);
  }
  int outcome = 0;

  ASSERT_EQ(::waitpid(child, &outcome, 0), child);

  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(Run({.op = IoOp::kUnlink, .path = dir_ / "file"}), 0);
}

TEST_P(IoQueueing, RunBlockingNamesTheOperationAndThePath) {
  const auto missing = RunBlocking(*queue_, {.op = IoOp::kOpen, .path = dir_ / "missing", .flags = O_RDONLY});
  const auto made = RunBlocking(*queue_, {.op = IoOp::kMkdir, .path = dir_ / "folder", .mode = 0755});

  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), testing::HasSubstr("open of " + (dir_ / "missing")));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made, 0);
}

INSTANTIATE_TEST_SUITE_P(All, IoQueueing, testing::ValuesIn(AllQueues()), CaseName);

}  // namespace
}  // namespace cairn
