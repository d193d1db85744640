// A system that allows too few threads (ulimit -u): Open reports it and leaves nothing behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "support/thread_limit.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ThreadLimited : public testing::TestWithParam<IoQueueKind> {};

// Each thread in turn is the first that cannot be started: workers, the queue's, the engine's, the kernel's.
TEST_P(ThreadLimited, OpenFailsWithTheReasonAndLeavesNothing) {
  const TempDir dir;
  Forked child([&](const Say& say) {
    const ThreadLimit limit(dir.path());
    Options options = SmallOptions(dir / "run");
    options.io_queue = GetParam();
    for (rlim_t threads = 0; threads < 100; ++threads) {
      if (!limit.Allow(threads)) return kNoThreadLimit;
      auto opened = Checkpointer::Open(options);
      if (!SignalsOpen()) return 2;
      if (opened.ok()) {
        if (!limit.Allow(100)) return kNoThreadLimit;
        const Status saved = SaveDurably(**opened, 1);
        say("saved: " + saved.ToString());
        return 0;
      }
      say(opened.status().ToString());
      if (!AloneAgain()) return 3;
    }
    return 4;
  });
  Forked::End end = child.Wait(Soon());

  if (end.value == kNoThreadLimit) GTEST_SKIP() << ThreadLimit::kSkipReason;
  ASSERT_EQ(end.how, Forked::How::kExited);
  ASSERT_EQ(end.value, 0) << "2: signals stay blocked, 3: threads are left, 4: Open never works";
  ASSERT_GE(end.lines.size(), 3U);
  EXPECT_EQ(end.lines.back(), "saved: Ok");
  end.lines.pop_back();
  for (const std::string& line : end.lines) {
    EXPECT_THAT(line, AllOf(StartsWith("ResourceExhausted: "), HasSubstr("ulimit -u")));
  }
  ExpectNothingLost(dir / "run", 1);
}

INSTANTIATE_TEST_SUITE_P(Queues, ThreadLimited, testing::Values(IoQueueKind::kThreads, IoQueueKind::kUring),
                         [](const auto& kind) {
                           return std::string(kind.param == IoQueueKind::kThreads ? "Threads" : "Uring");
                         });

}  // namespace
}  // namespace cairn
