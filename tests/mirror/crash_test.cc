// Kills a mirror before and after each of its operations, and replays power cuts of the target's disk.

#include <fmt/format.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGKILL
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "mirror_case.h"
#include "store/names.h"
#include "support/points.h"
#include "support/power_cut.h"
#include "support/recording_queue.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr MirrorRules kRules{.keep_last = 2};

/// Steps 10 to 40 in the root, and the first two at the target already. Step 20 is replaced then: a mirror that keeps
/// two copies 40 and 30, and retires what was there.
void Prepare(MirrorCase& run) {
  run.elements = MirrorCase::kFew;
  run.frozen = 1;
  run.Save(10);
  run.Save(20);
  const auto queue = MakeQueue();
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue, run.Options(kRules))).ok());
  run.Save(30);
  run.Save(20, 1);
}

/// Mirrors in a child that the plan kills. Whether it was, and the steps that it had copied durably by then.
bool MirrorInChild(MirrorCase& run, const std::shared_ptr<FaultPlan>& plan, std::set<std::uint64_t>& copied) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    {
      const auto queue = MakeQueue(plan->Wrap(PlainFactory()));
      const auto mirror = Mirror::Open(*queue, run.Options(kRules));
      while (mirror.ok()) {
        const auto one = (*mirror)->CopyNext([] { return false; });
        good = one.ok() && !*one;
        if (!one.ok() || !*one) break;
        const std::uint64_t step = (*one)->info.step;
        static_cast<void>(::write(pipe[1], &step, sizeof(step)));
      }
    }
    ::_exit(good ? 0 : 1);
  }
  ::close(pipe[1]);
  for (std::uint64_t step = 0; ::read(pipe[0], &step, sizeof(step)) == sizeof(step);) copied.insert(step);
  ::close(pipe[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return killed;
}

TEST(MirrorKill, AtEveryOperationItLeavesWholeCheckpointsAndTheNextOneGoesOn) {
  std::size_t runs = 0;
  const Points points = SomePoints(11);
  for (const bool after : {false, true}) {
    bool killed = true;
    for (std::uint64_t k = points.first + 1; killed; k += points.stride, ++runs) {
      SCOPED_TRACE(fmt::format("killed {} operation {}", after ? "after" : "before", k));
      MirrorCase run;
      Prepare(run);
      const auto plan = FaultPlan::Make();
      after ? plan->KillAfter({.nth = k}) : plan->KillBefore({.nth = k});

      std::set<std::uint64_t> copied;
      killed = MirrorInChild(run, plan, copied);

      EXPECT_THAT(run.GoodSteps(run.root()), ElementsAre(10, 20, 30)) << "the root is as it was";
      const std::vector<std::uint64_t> found = run.GoodSteps(run.target());
      EXPECT_GE(found.size(), 2U);
      for (const std::uint64_t step : copied) EXPECT_THAT(found, Contains(step));
      const auto queue = MakeQueue();
      const auto next = OpenMirror(*queue, run.Options(kRules));
      ASSERT_NE(next, nullptr);
      EXPECT_TRUE(CopyAll(*next).ok());
      EXPECT_THAT(run.GoodSteps(run.target()), ElementsAre(20, 30));
      EXPECT_THAT(run.Leftovers(run.root()), IsEmpty());
      EXPECT_THAT(run.Leftovers(run.target()), IsEmpty());
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(runs * points.stride, 60U);
}

TEST(MirrorPowerCut, NoCheckpointThatTheTargetHasIsLost) {
  MirrorCase run;
  Prepare(run);
  const auto recording = Recording::Make(run.base() + "/disk");
  struct Promise {
    std::size_t since;
    std::uint64_t step;
  };
  std::vector<Promise> promises;
  {
    const auto queue = MakeQueue(recording->Wrap(PlainFactory()));
    const auto mirror = OpenMirror(*queue, run.Options(kRules));
    ASSERT_NE(mirror, nullptr);
    while (true) {
      const auto one = mirror->CopyNext([] { return false; });
      ASSERT_TRUE(one.ok()) << one.status();
      if (!*one) break;
      promises.push_back({recording->size(), (*one)->info.step});
    }
  }
  ASSERT_EQ(promises.size(), 2U);

  const Points points = SomePoints(11);
  for (std::size_t upto = points.first; upto <= recording->size(); upto += points.stride) {
    for (const PowerCut cut :
         {PowerCut{}, PowerCut{.data = true}, PowerCut{.entries = true}, PowerCut{.data = true, .entries = true}}) {
      SCOPED_TRACE(fmt::format("power cut after {} of {} operations, data {}, entries {}", upto, recording->size(),
                               cut.data, cut.entries));
      const TempDir after;
      const std::string tree = after / "tree";
      ASSERT_EQ(MaterializeAfterPowerCut(*recording, upto, tree, cut), Status::Ok());
      const std::vector<std::uint64_t> found = run.GoodSteps(tree + "/mirror");
      EXPECT_GE(found.size(), 2U);
      for (const Promise& promise : promises) {
        if (promise.since <= upto) {
          EXPECT_THAT(found, Contains(promise.step));
        }
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace cairn
