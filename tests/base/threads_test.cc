#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <latch>
#include <set>

#include "base/mutex.h"
#include "base/thread.h"
#include "base/uuid.h"
#include "base/worker_pool.h"

namespace cairn {
namespace {

TEST(WorkerPool, DestructorRunsAllJobs) {
  std::atomic<int> done = 0;
  {
    WorkerPool pool("test", 3);
    for (int i = 0; i < 1000; ++i) pool.Post([&done] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(WorkerPool, OneThreadRunsJobsInOrder) {
  std::vector<int> order;
  {
    WorkerPool pool("test", 1);
    for (int i = 0; i < 100; ++i) pool.Post([&order, i] { order.push_back(i); });
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order.at(static_cast<std::size_t>(i)), i);
}

TEST(WorkerPool, ThreadsWorkAtTheSameTime) {
  // Each job waits for the other, so one thread would never finish.
  std::latch both(2);
  WorkerPool pool("test", 2);
  for (int i = 0; i < 2; ++i) pool.Post([&both] { both.arrive_and_wait(); });
  both.wait();
  EXPECT_EQ(pool.threads(), 2);
}

TEST(WorkerPool, JobsMayPostJobs) {
  std::atomic<int> done = 0;
  {
    WorkerPool pool("test", 2);
    std::latch posted(1);
    pool.Post([&] {
      pool.Post([&done] { ++done; });
      posted.count_down();
    });
    posted.wait();
  }
  EXPECT_EQ(done, 1);
}

TEST(Thread, BlocksEverySignalAndHasItsName) {
  sigset_t mask;
  char name[16] = {};
  Result<std::thread> thread = StartThread("a name that is too long", [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    pthread_getname_np(pthread_self(), name, sizeof(name));
  });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();

  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGHUP}) EXPECT_EQ(sigismember(&mask, signal), 1);
  EXPECT_STREQ(name, "a name that is ");
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGTERM), 0) << "the caller's mask has changed";
}

// From sched_getattr: size, policy; flags; nice, priority; and runtime, which is the time slice.
std::array<std::uint64_t, 6> Scheduling() {
  std::array<std::uint64_t, 6> attributes{};
  if (::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0) != 0) attributes = {};
  return attributes;
}

TEST(Thread, ShortSlicesChangeOnlyTheSlice) {
  std::array<std::uint64_t, 6> before{};
  std::array<std::uint64_t, 6> after{};
  Result<std::thread> thread = StartThread("test", [&] {
    before = Scheduling();
    RequestShortSlices();
    after = Scheduling();
  });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();

  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(after.at(i), before.at(i));
  const bool ordinary = before.at(0) >> 32 == SCHED_OTHER;
  if (before.at(3) == 0 || !ordinary) GTEST_SKIP() << "this kernel has no per-thread time slices";
  EXPECT_EQ(after.at(3), 100'000U);
}

TEST(CondVar, WaitUntilGivesUpAtItsDeadline) {
  Mutex mutex;
  CondVar condition;
  MutexLock lock(mutex);
  while (condition.WaitUntil(mutex, Deadline::In(std::chrono::milliseconds(1)))) {
  }
  SUCCEED();
}

TEST(Uuid, IsRandomAndOfVersionFour) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string uuid = MakeUuid();
    ASSERT_THAT(uuid, ::testing::MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
    seen.insert(uuid);
  }
  EXPECT_EQ(seen.size(), 1000U);
}

}  // namespace
}  // namespace cairn
