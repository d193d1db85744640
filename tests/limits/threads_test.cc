// A system that allows too few threads: what cannot start says so and leaves nothing behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread.h"
#include "base/worker_pool.h"
#include "support/forked.h"
#include "support/thread_limit.h"

namespace cairn {
namespace {

TEST(Thread, FailedStartIsAnErrorAndKeepsTheSignalMask) {
  Forked child([](const Say& say) {
    ThreadLimit limit;
    if (!limit.Allow(0)) return kNoThreadLimit;
    say(StartThread("cairn-test", [] {}).status().ToString());
    return SignalsOpen() ? 0 : 1;
  });
  const Forked::End end = child.Wait(Deadline::In(std::chrono::seconds(60)));

  if (end.value == kNoThreadLimit) GTEST_SKIP() << ThreadLimit::kSkipReason;
  ASSERT_THAT(end.lines, ::testing::SizeIs(1));
  EXPECT_THAT(end.lines.front(),
              ::testing::AllOf(::testing::StartsWith("ResourceExhausted: cannot start thread cairn-test:"),
                               ::testing::HasSubstr("ulimit -u")));
  EXPECT_EQ(end.value, 0) << "signals stay blocked";
}

TEST(WorkerPool, FailedStartLeavesNoThreadsAndReportsTheCount) {
  Forked child([](const Say& say) {
    ThreadLimit limit;
    if (!limit.Allow(2)) return kNoThreadLimit;
    {
      const WorkerPool pool("cairn-test", 3);
      say(pool.status().message());
      say(std::to_string(pool.threads()));
    }
    return AloneAgain() ? 0 : 1;
  });
  const Forked::End end = child.Wait(Deadline::In(std::chrono::seconds(60)));

  if (end.value == kNoThreadLimit) GTEST_SKIP() << ThreadLimit::kSkipReason;
  ASSERT_THAT(end.lines, ::testing::SizeIs(2));
  EXPECT_THAT(end.lines[0], ::testing::HasSubstr("2 of 3 threads were started"));
  EXPECT_EQ(end.lines[1], "0");
  EXPECT_EQ(end.value, 0) << "threads are left";
}

}  // namespace
}  // namespace cairn
