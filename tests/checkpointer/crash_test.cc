// kill -9 at every operation: acknowledged saves exist afterwards, and everything listed is intact.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/points.h"
#include "support/small_run.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using RunInChild = std::function<int(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say)>;

EventCallback SayDurable(const Say& say) {
  return [say](const Event& event) {
    if (event.kind == EventKind::kSaveDurable) say("durable " + std::to_string(*event.step));
  };
}

// Five saves, three in flight at a time, with a removal after each but the first; the last step is saved again.
int RunSaves(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
  Options options = SmallOptions(root);
  options.keep_last = 1;
  options.on_event = SayDurable(say);
  const auto checkpointer = Checkpointer::Open(options, Through(plan));
  if (!checkpointer.ok()) return 2;
  say("open");
  std::vector<std::unique_ptr<Tensors>> states;
  for (std::uint64_t step = 11; step <= 14; ++step) {
    states.push_back(SmallState(step));
    if (!(*checkpointer)->Save(step, states.back()->state()).ok()) return 3;
  }
  if (!(*checkpointer)->Drain(Soon()).ok()) return 4;
  // Replaced by the same bits, so either one is intact.
  if (!(*checkpointer)->Save(14, states.back()->state(), {.if_exists = IfExists::kReplace}).ok()) return 5;
  return (*checkpointer)->Drain(Soon()).ok() ? 0 : 6;
}

/// Whether the last saves of a run overwrote retired files, if this disk supports that.
bool Recycled(const Checkpointer& checkpointer) {
  const CheckpointerStats stats = checkpointer.stats();
  return stats.shards_recycled > 0 || !stats.not_recycled_reason.empty();
}

// Six saves, the fourth to the sixth into the files of the first to the third.
int RunRecycled(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
  Options options = SmallOptions(root);
  options.keep_last = 2;
  options.on_event = SayDurable(say);
  const auto checkpointer = Checkpointer::Open(options, Through(plan));
  if (!checkpointer.ok()) return 2;
  for (std::uint64_t step = 11; step <= 16; ++step) {
    if (!SaveDurably(**checkpointer, step).ok()) return 3;
    if (!(*checkpointer)->Drain(Soon()).ok()) return 4;
  }
  return Recycled(**checkpointer) ? 0 : 5;
}

int RunRanks(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
  Options options = SmallOptions(root);
  options.keep_last = 1;
  options.on_event = SayDurable(say);
  std::vector<std::unique_ptr<Checkpointer>> ranks;
  for (const auto& group : MakeLocalGroup(3)) {
    options.group = group;
    auto opened = Checkpointer::Open(options, Through(plan));
    if (!opened.ok()) return 2;
    ranks.push_back(*std::move(opened));
  }
  say("open");
  std::vector<std::unique_ptr<Tensors>> states;
  for (std::uint64_t step = 11; step <= 14; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      states.push_back(SmallState(step, rank));
      if (!ranks[static_cast<std::size_t>(rank)]->Save(step, states.back()->state()).ok()) return 3;
    }
    // The first two run together; the others reuse their files.
    for (const auto& rank : ranks) {
      if (step > 11 && !rank->Drain(Soon()).ok()) return 4;
    }
  }
  for (const auto& rank : ranks) {
    if (!Recycled(*rank)) return 5;
  }
  return 0;
}

// Two restores, of an older step and of the newest one, each with two saves in flight after it.
int RunLines(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
  Options options = SmallOptions(root);
  options.on_event = SayDurable(say);
  const auto checkpointer = Checkpointer::Open(options, Through(plan));
  if (!checkpointer.ok()) return 2;
  std::vector<std::unique_ptr<Tensors>> states;
  const auto save = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t step = first; step <= last; ++step) {
      states.push_back(SmallState(step));
      if (!(*checkpointer)->Save(step, states.back()->state()).ok()) return false;
    }
    return (*checkpointer)->Drain(Soon()).ok();
  };
  if (!save(11, 12)) return 3;
  if (!RestoreAndCompare(**checkpointer, Step(11)).ok() || !save(12, 13)) return 4;
  return RestoreAndCompare(**checkpointer, Latest()).ok() && save(14, 15) ? 0 : 5;
}

constexpr std::uint64_t kFrozenSeed = 5;
// Where nobody counts writes, the tensor is another one from this element and this step on.
constexpr std::size_t kFrozenRest = (1U << 20) / sizeof(std::uint64_t);
constexpr std::uint64_t kFrozenChanges = 13;

// Frozen tensors beside what changes: two saves in flight that both write them, two that link them or, where nobody
// counts, write them anew behind their first block, with a removal after each; one whose link is refused, so that the
// file is copied; and the last step saved again.
int RunKept(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say, bool counted) {
  Options options = SmallOptions(root);
  options.keep_last = 1;
  options.on_event = SayDurable(say);
  const auto checkpointer = Checkpointer::Open(options, Through(plan));
  if (!checkpointer.ok()) return 2;
  FrozenTensor frozen;
  frozen.Fill(kFrozenSeed);
  if (!counted) frozen.version = std::nullopt;
  std::vector<std::unique_ptr<Tensors>> states;
  const auto save = [&](std::uint64_t step, const SaveOptions& save_options = {}) {
    if (!counted && step == kFrozenChanges) frozen.Fill(kFrozenSeed + 1, kFrozenRest);
    states.push_back(SmallState(step));
    return (*checkpointer)->Save(step, frozen.With(states.back()->state()), save_options).ok();
  };
  if (!save(11) || !save(12) || !(*checkpointer)->Drain(Soon()).ok()) return 3;
  if (!save(13) || !save(14) || !(*checkpointer)->Drain(Soon()).ok()) return 4;
  plan->Fail({.op = IoOp::kLink, .nth = 1}, EPERM);
  if (!save(15) || !(*checkpointer)->Drain(Soon()).ok()) return 5;
  if (!save(15, {.if_exists = IfExists::kReplace}) || !(*checkpointer)->Drain(Soon()).ok()) return 6;
  return plan->Count({.op = IoOp::kLink}) >= 4 ? 0 : 7;
}

/// What is frozen in each checkpoint is what it was at its step.
void ExpectKept(const std::string& root, bool counted) {
  if (!std::filesystem::exists(root + "/.writer")) return;
  Options options = SmallOptions(root);
  options.read_only = true;
  const std::unique_ptr<Checkpointer> reader = OpenOrFail(options);
  if (reader == nullptr) return;
  for (const std::uint64_t step : ListedSteps(*reader)) {
    FrozenTensor expected;
    expected.Fill(kFrozenSeed);
    if (!counted && step >= kFrozenChanges) expected.Fill(kFrozenSeed + 1, kFrozenRest);
    FrozenTensor read;
    ASSERT_TRUE(ReadAlone(*reader, Step(step), read.With({}), {.resume = false}).ok());
    EXPECT_TRUE(read == expected) << "step " << step;
  }
}

// The fourth save finds that what the second and third have linked had changed; the first and second are removed.
int RunSuspects(const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
  Options options = SmallOptions(root);
  options.keep_last = 2;
  options.on_event = SayDurable(say);
  Wiring wiring = Through(plan);
  wiring.frozen_every = 3;
  const auto checkpointer = Checkpointer::Open(options, wiring);
  if (!checkpointer.ok()) return 2;
  FrozenTensor frozen;
  frozen.Fill(kFrozenSeed);
  for (std::uint64_t step = 11; step <= 14; ++step) {
    if (step == 14) frozen.Fill(kFrozenSeed + 1);
    const auto small = SmallState(step);
    const auto one = (*checkpointer)->Save(step, frozen.With(small->state()));
    if (!one.ok() || !one->WaitDurable(Soon()).ok() || !(*checkpointer)->Drain(Soon()).ok()) return 3;
  }
  return 0;
}

std::optional<std::uint64_t> NewestAcknowledged(const std::vector<std::string>& lines) {
  std::optional<std::uint64_t> newest;
  for (const std::string& line : lines) {
    if (line.starts_with("durable ")) newest = std::max<std::uint64_t>(newest.value_or(0), std::stoull(line.substr(8)));
  }
  return newest;
}

enum class When : bool { kBefore, kAfter };

using InRoot = std::function<void(const std::string& root)>;

// Runs in a child that is killed at its kth operation. False if the run has fewer.
bool KillAt(const RunInChild& run, const std::string& root, std::uint64_t k, When when, int ranks,
            std::optional<std::uint64_t> acknowledged_before, const InRoot& also) {
  Forked child([&](const Say& say) {
    const auto plan = FaultPlan::Make();
    when == When::kBefore ? plan->KillBefore({.nth = k}) : plan->KillAfter({.nth = k});
    return run(root, plan, say);
  });
  const Forked::End end = child.Wait(Soon());
  EXPECT_NE(end.how, Forked::How::kTimedOut) << "it hung instead of reaching operation " << k;
  if (end.how == Forked::How::kExited) {
    EXPECT_EQ(end.value, 0) << "at operation " << k;
    return false;
  }
  EXPECT_EQ(end.value, SIGKILL);
  const std::optional<std::uint64_t> newest = NewestAcknowledged(end.lines);
  if (also) also(root);
  ExpectNothingLost(root, newest ? newest : acknowledged_before, ranks);
  return true;
}

// Kills at each of SomePoints. Returns how many operations a run has, to within the stride.
std::uint64_t KillAtEach(const RunInChild& run, const std::string& folder, int ranks, const InRoot& prepare = {},
                         std::optional<std::uint64_t> acknowledged_before = std::nullopt, const InRoot& also = {}) {
  const Points points = SomePoints(7);
  for (const When when : {When::kBefore, When::kAfter}) {
    for (std::uint64_t k = 1 + points.first;; k += points.stride) {
      SCOPED_TRACE(testing::Message() << "killed " << (when == When::kBefore ? "before" : "after") << " operation "
                                      << k);
      const std::string root = folder + "/" + std::to_string(k);
      std::filesystem::create_directory(root);
      if (prepare) prepare(root);
      const bool killed = KillAt(run, root, k, when, ranks, acknowledged_before, also);
      std::filesystem::remove_all(root);
      if (testing::Test::HasFailure()) return 0;
      if (killed) continue;
      if (when == When::kAfter) return k - 1;
      break;
    }
  }
  return 0;
}

TEST(Crash, LosesNothingAtAnyOperationOfSavesInFlightWithRemovals) {
  const TempDir dir;
  const std::uint64_t operations = KillAtEach(RunSaves, dir.path(), 1);
  EXPECT_GT(operations, 100U);
}

TEST(Crash, LosesNothingAtAnyOperationOfSavesIntoRecycledFiles) {
  const TempDir dir;
  const std::uint64_t operations = KillAtEach(RunRecycled, dir.path(), 1);
  EXPECT_GT(operations, 100U);
}

TEST(Crash, LosesNothingAtAnyOperationOfThreeRanksSaves) {
  const TempDir dir;
  const std::uint64_t operations = KillAtEach(RunRanks, dir.path(), 3);
  EXPECT_GT(operations, 100U);
}

TEST(Crash, LosesNothingAtAnyOperationOfSavesThatBeginLines) {
  const TempDir dir;
  const std::uint64_t operations = KillAtEach(RunLines, dir.path(), 1);
  EXPECT_GT(operations, 100U);
}

class CrashKept : public testing::TestWithParam<bool> {};

TEST_P(CrashKept, LosesNothingAtAnyOperationOfSavesWithFrozenTensors) {
  const TempDir dir;
  const bool counted = GetParam();
  const RunInChild run = [counted](const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
    return RunKept(root, plan, say, counted);
  };
  const std::uint64_t operations =
      KillAtEach(run, dir.path(), 1, {}, {}, [counted](const std::string& root) { ExpectKept(root, counted); });
  EXPECT_GT(operations, 100U);
}

INSTANTIATE_TEST_SUITE_P(Crash, CrashKept, testing::Bool(),
                         [](const auto& test) { return test.param ? "Counted" : "Compared"; });

TEST(Crash, NoSuspectCheckpointIsUnmarkedOnceTheSaveThatFoundItIsThere) {
  const TempDir dir;
  const std::uint64_t operations =
      KillAtEach(RunSuspects, dir.path(), 1, {}, {}, [](const std::string& root) { ExpectSuspectsIn(root, 11, 14); });
  EXPECT_GT(operations, 80U);
}

// The first save, into a root whose parents must be made too.
TEST(Crash, LeavesAUsableRootDuringTheFirstSave) {
  const TempDir dir;
  const RunInChild first = [](const std::string& folder, const std::shared_ptr<FaultPlan>& plan, const Say& say) {
    Options options = SmallOptions(folder + "/not/yet/there");
    options.on_event = SayDurable(say);
    const auto checkpointer = Checkpointer::Open(options, Through(plan));
    if (!checkpointer.ok()) return 2;
    const auto state = SmallState(1);
    const auto save = (*checkpointer)->Save(1, state->state());
    return save.ok() && save->WaitDurable(Soon()).ok() ? 0 : 3;
  };
  const Points points = SomePoints(5);
  for (std::uint64_t k = 1 + points.first;; k += points.stride) {
    SCOPED_TRACE(testing::Message() << "killed before operation " << k);
    const std::string folder = dir / std::to_string(k);
    Forked child([&](const Say& say) {
      const auto plan = FaultPlan::Make();
      plan->KillBefore({.nth = k});
      return first(folder, plan, say);
    });
    const Forked::End end = child.Wait(Soon());
    ASSERT_NE(end.how, Forked::How::kTimedOut);
    ExpectNothingLost(folder + "/not/yet/there", NewestAcknowledged(end.lines));
    if (HasFailure() || end.how == Forked::How::kExited) {
      EXPECT_EQ(end.value, 0);
      EXPECT_GT(k, 20U);
      return;
    }
  }
}

// The next Open sweeps what a crash left, and is killed at every operation as well.
TEST(Crash, LosesNothingDuringTheSweepOfAnEarlierCrash) {
  const TempDir dir;
  const auto leave_a_mess = [](const std::string& root) {
    // A committed step, an interrupted removal, and an attempt with a shard.
    const auto killed_in = [&root](const FaultMatch& match, std::uint64_t from, std::uint64_t to) {
      Forked child([&](const Say&) {
        Options options = SmallOptions(root);
        options.keep_last = 1;
        const auto plan = FaultPlan::Make();
        const auto checkpointer = Checkpointer::Open(options, Through(plan));
        if (!checkpointer.ok()) return 2;
        plan->KillBefore(match);
        for (std::uint64_t step = from; step <= to; ++step) {
          if (!SaveDurably(**checkpointer, step).ok()) return 3;
        }
        return (*checkpointer)->Drain(Soon()).ok() ? 0 : 4;
      });
      EXPECT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
    };
    killed_in({.op = IoOp::kRename, .path = "step-"}, 7, 7);
    std::filesystem::path attempt;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (entry.path().filename().string().starts_with(".attempt-")) attempt = entry.path();
    }
    // Moved aside, because the next Open would sweep it before the rest is made.
    const std::filesystem::path aside = root + "-aside";
    std::filesystem::remove_all(aside);
    std::filesystem::rename(attempt, aside);
    killed_in({.op = IoOp::kUnlink, .path = ".retired-"}, 8, 9);
    std::filesystem::rename(aside, attempt);
    EXPECT_THAT(Leftovers(root), testing::SizeIs(2));
  };
  const RunInChild open = [](const std::string& root, const std::shared_ptr<FaultPlan>& plan, const Say&) {
    return Checkpointer::Open(SmallOptions(root), Through(plan)).ok() ? 0 : 2;
  };
  const std::uint64_t operations = KillAtEach(open, dir.path(), 1, leave_a_mess, 9);
  EXPECT_GT(operations, 8U);
}

// A data-loader worker outlives the trainer that forked it, and has copies of all descriptors.
TEST(Crash, OpensTheRootDespiteAnOrphanedWorker) {
  const TempDir dir;
  std::optional<pid_t> orphan;
  Forked trainer([&](const Say& say) {
    const auto plan = FaultPlan::Make();
    plan->KillAfter({.op = IoOp::kRename, .path = "step-", .nth = 2});
    Options options = SmallOptions(dir / "run");
    options.on_event = SayDurable(say);
    const auto checkpointer = Checkpointer::Open(options, Through(plan));
    if (!checkpointer.ok() || !SaveDurably(**checkpointer, 1).ok()) return 2;
    if (const pid_t worker = ::fork(); worker == 0) {
      say("worker " + std::to_string(::getpid()));
      while (true) ::pause();
    }
    static_cast<void>(SaveDurably(**checkpointer, 2));
    return 3;
  });
  std::vector<std::string> lines;
  while (lines.size() < 2) {
    const std::optional<std::string> line = trainer.NextLine(Soon());
    ASSERT_TRUE(line.has_value());
    if (line->starts_with("worker ")) orphan = static_cast<pid_t>(std::stol(line->substr(7)));
    lines.push_back(*line);
  }
  ASSERT_TRUE(orphan.has_value());
  const struct Orphan {
    pid_t pid;
    ~Orphan() { ::kill(pid, SIGKILL); }
  } worker{*orphan};
  // The worker keeps the pipe open, so only the trainer's state shows its end.
  ASSERT_TRUE(trainer.AwaitDeath(Soon()));

  EXPECT_EQ(::kill(*orphan, 0), 0) << "the worker should still be running";
  ExpectNothingLost(dir / "run", 1);
}

}  // namespace
}  // namespace cairn
