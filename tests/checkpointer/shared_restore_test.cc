// Restore in a group: every rank gets the same attempt, or an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/checkpointer_impl.h"
#include "cairn/cairn.h"
#include "store/names.h"
#include "support/hooked_calls.h"
#include "support/small_run.h"
#include "support/three_ranks.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class RanksRestore : public Ranks {
 protected:
  using Outcomes = std::map<int, Result<Restored>>;  // By rank.
  using OptionsOf = std::function<RestoreOptions(int rank)>;

  [[nodiscard]] std::string Folder(std::uint64_t step) const { return root() + "/" + StepName(step); }
  static std::string ShardName(int of) { return "shard-0000" + std::to_string(of); }

  void Damage(std::uint64_t step, int of) const {
    const std::string path = Folder(step) + "/" + ShardName(of) + ".safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(700'000);
    const int byte = file.get();
    file.seekp(700'000);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good()) << path;
  }
  void DamageManifest(std::uint64_t step) const { std::filesystem::resize_file(Folder(step) + "/manifest.json", 10); }

  using Pending = std::map<int, std::future<Result<Restored>>>;
  // The ranks' fresh tensors are in restored_.
  [[nodiscard]] Pending Begin(const Selector& selector, const std::vector<int>& ranks = {0, 1, 2},
                              const OptionsOf& options = {}) {
    restored_.clear();
    for (int of = 0; of < kRanks; ++of) restored_.push_back(SmallState(0, of));
    Pending pending;
    for (const int of : ranks) {
      pending.emplace(of, std::async(std::launch::async, [this, of, selector, options] {
                        return rank(of).Restore(selector, restored_[static_cast<std::size_t>(of)]->state(),
                                                options ? options(of) : RestoreOptions());
                      }));
    }
    return pending;
  }
  static Outcomes Await(Pending pending) {
    Outcomes outcomes;
    for (auto& [of, one] : pending) outcomes.emplace(of, one.get());
    return outcomes;
  }
  Outcomes RestoreAll(const Selector& selector = Latest().FallBack(), const OptionsOf& options = {}) {
    return Await(Begin(selector, {0, 1, 2}, options));
  }
  void ExpectRestored(const Outcomes& outcomes, std::uint64_t step, std::uint64_t variant = 0) const {
    for (const auto& [of, outcome] : outcomes) {
      ASSERT_TRUE(outcome.ok()) << "rank " << of << ": " << outcome.status();
      EXPECT_EQ(outcome->step, step);
      EXPECT_EQ(outcome->attempt, outcomes.at(0)->attempt);
      EXPECT_EQ(outcome->passed_over, outcomes.at(0)->passed_over);
      EXPECT_TRUE(Holds(*restored_[static_cast<std::size_t>(of)], step, of, variant)) << "rank " << of;
    }
  }
  static void ExpectAll(const Outcomes& outcomes, StatusCode code, const std::string& message = "") {
    for (const auto& [of, outcome] : outcomes) {
      EXPECT_EQ(outcome.status().code(), code) << "rank " << of << ": " << outcome.status();
      EXPECT_THAT(outcome.status().message(), HasSubstr(message)) << "rank " << of;
    }
  }
  // `of` names nobody, and the others name it.
  static void ExpectErrorOf(int of, const Outcomes& outcomes) {
    const std::string who = "rank " + std::to_string(of) + ": ";
    for (const auto& [rank, outcome] : outcomes) {
      const std::string named = rank == of ? "" : who;
      EXPECT_EQ(outcome.status().message(), named + outcomes.at(of).status().message());
    }
    EXPECT_THAT(outcomes.at(of).status().message(), Not(HasSubstr(who)));
  }

  std::vector<std::unique_ptr<Tensors>> restored_;  // By rank.
};

TEST_F(RanksRestore, SkipsOnAllWhatIsDamagedOnOne) {
  OpenAll();
  for (int damaged = 0; damaged < kRanks; ++damaged) {
    SCOPED_TRACE(testing::Message() << "damaged on rank " << damaged);
    const std::uint64_t first = 10 * static_cast<std::uint64_t>(damaged) + 1;
    for (const std::uint64_t step : {first, first + 1}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
    Damage(first + 1, damaged);

    const Outcomes outcomes = RestoreAll();
    const Statuses saved = SaveAll(first + 1);

    ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, first));
    EXPECT_THAT(outcomes.at(0)->passed_over,
                ElementsAre(AllOf(StartsWith(Folder(first + 1) + ": rank " + std::to_string(damaged) + ": "),
                                  HasSubstr(ShardName(damaged)))));
    EXPECT_THAT(saved, Each(Status::Ok()));
    const auto newest = rank(0).Inspect(Latest());
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_EQ(newest->info.line, static_cast<std::uint64_t>(damaged) + 1);
    EXPECT_EQ(newest->info.parent, first);
  }
}

TEST_F(RanksRestore, SkipsSeveralInOrder) {
  Options options = SmallOptions(root());
  options.keep_last = 0;
  OpenAll(options);
  for (const std::uint64_t step : {1, 2, 3, 4}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  Damage(4, 1);
  DamageManifest(3);
  Damage(2, 0);
  Damage(2, 2);

  const Outcomes outcomes = RestoreAll();

  ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, 1));
  EXPECT_THAT(outcomes.at(0)->passed_over,
              ElementsAre(StartsWith(Folder(3) + ": rank 0: "), StartsWith(Folder(4) + ": rank 1: "),
                          StartsWith(Folder(2) + ": rank 0: ")));
}

TEST_F(RanksRestore, IsCorruptOnAllIfEveryOneIsDamaged) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  Damage(2, 1);
  Damage(1, 2);

  const Outcomes outcomes = RestoreAll();

  ExpectAll(outcomes, StatusCode::kCorrupt, Folder(2));
  ExpectErrorOf(1, outcomes);
}

TEST_F(RanksRestore, IsCorruptOnAllWithoutFallBack) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  ASSERT_NO_FATAL_FAILURE(ExpectRestored(RestoreAll(Latest()), 2));
  Damage(2, 1);

  const Outcomes outcomes = RestoreAll(Latest());

  ExpectAll(outcomes, StatusCode::kCorrupt, Folder(2));
  ExpectErrorOf(1, outcomes);
}

TEST_F(RanksRestore, RefusesDifferentArguments) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  for (const Selector& other : {Step(2), Latest().FallBack(), cairn::Folder(Folder(2))}) {
    Pending pending = Begin(Latest(), {0, 2});

    auto refused = rank(1).Restore(other, restored_[1]->state());

    Outcomes outcomes = Await(std::move(pending));
    outcomes.emplace(1, std::move(refused));
    ExpectAll(outcomes, StatusCode::kInvalidArgument, "expected the newest, as on rank 0; found ");
    ExpectErrorOf(1, outcomes);
  }
}

TEST_F(RanksRestore, IsNotFoundOnAllIfThereIsNone) {
  OpenAll();

  const Outcomes outcomes = RestoreAll();

  ExpectAll(outcomes, StatusCode::kNotFound, "there is no checkpoint");
  ExpectErrorOf(0, outcomes);
}

TEST_F(RanksRestore, EndsOnAllIfOneMismatches) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  Damage(2, 0);
  Pending pending = Begin(Latest().FallBack(), {0, 2});
  Tensors other;
  other.Add("rank1.large", 5);

  auto refused = rank(1).Restore(Latest().FallBack(), other.state());

  Outcomes outcomes = Await(std::move(pending));
  outcomes.emplace(1, std::move(refused));
  ExpectAll(outcomes, StatusCode::kInvalidArgument, "rank1.large");
  ExpectErrorOf(1, outcomes);
}

TEST_F(RanksRestore, EndsOnAllIfOneCancels) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) {
    const Outcomes outcomes = RestoreAll(Latest().FallBack(), [of](int rank) {
      return RestoreOptions{.progress = [gives_up = of == rank](std::uint64_t, std::uint64_t) { return !gives_up; }};
    });

    ExpectAll(outcomes, StatusCode::kCancelled);
    ExpectErrorOf(of, outcomes);
  }
}

// Training continues from the previous state: no rank counts as restored.
TEST_F(RanksRestore, FailureDoesNotCountAsARestore) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));

  const Outcomes outcomes = RestoreAll(Step(1).FallBack(), [](int rank) {
    return RestoreOptions{.progress = [rank](std::uint64_t, std::uint64_t) { return rank != 1; }};
  });

  ExpectAll(outcomes, StatusCode::kCancelled);
  EXPECT_THAT(SaveAll(3), Each(Status::Ok()));
  const auto newest = rank(0).Inspect(Step(3));
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->info.line, 0U);
  EXPECT_EQ(newest->info.parent, std::nullopt);
}

TEST_F(RanksRestore, EndsAtTheDeadlineIfOneNeverCalls) {
  for (int absent = 0; absent < kRanks; ++absent) {
    SCOPED_TRACE(testing::Message() << "without rank " << absent);
    OpenAll(std::chrono::milliseconds(500));
    ASSERT_THAT(SaveAll(static_cast<std::uint64_t>(absent) + 1), Each(Status::Ok()));
    std::vector<int> present = {0, 1, 2};
    std::erase(present, absent);

    const Outcomes outcomes = Await(Begin(Latest().FallBack(), present));

    ExpectAll(outcomes, StatusCode::kDeadlineExceeded, "nothing from rank " + std::to_string(absent));
    if (absent != 0) ExpectErrorOf(0, outcomes);
    // Also the rank that was absent comes to the same round then.
    ASSERT_NO_FATAL_FAILURE(ExpectRestored(RestoreAll(), static_cast<std::uint64_t>(absent) + 1));
    CloseAll();
  }
}

// The deadline is for messages of other ranks, not for reading.
TEST_F(RanksRestore, WaitsWhileRankZeroReads) {
  OpenAll(std::chrono::milliseconds(1500));
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  const FaultGate reading = plan(0).Hold({.op = IoOp::kRead, .path = ShardName(0), .nth = 1});
  Pending pending = Begin(Latest().FallBack());
  ASSERT_TRUE(reading.WaitHeld(Soon()));
  ASSERT_TRUE(group(1).WaitSaid("read/", Soon()) && group(2).WaitSaid("read/", Soon()));
  // More than group_timeout, less than twice that.
  ASSERT_EQ(pending.at(0).wait_for(std::chrono::milliseconds(1700)), std::future_status::timeout);

  reading.Release();

  ASSERT_NO_FATAL_FAILURE(ExpectRestored(Await(std::move(pending)), 1));
}

TEST_F(RanksRestore, ReadsEachShardOnceWithoutDamage) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  ASSERT_EQ(rank(0).Drain(Soon()), Status::Ok());  // Retention reads too.
  const auto reads = [this] {
    std::vector<std::size_t> counts;
    for (int of = 0; of < kRanks; ++of) counts.push_back(plan(of).Count({.op = IoOp::kRead}));
    return counts;
  };
  // It counts for nothing in what the ranks do together.
  ASSERT_TRUE(ReadAlone(rank(1), Latest(), SmallState(0, 1)->state()).ok());
  const std::vector<std::size_t> before = reads();
  for (int of = 0; of < kRanks; ++of) ASSERT_TRUE(ReadAlone(rank(of), Latest(), SmallState(0, of)->state()).ok());
  const std::vector<std::size_t> alone = reads();

  const Outcomes outcomes = RestoreAll();

  ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, 1));
  const std::vector<std::size_t> together = reads();
  for (std::size_t of = 0; of < kRanks; ++of) {
    EXPECT_GT(alone[of], before[of]);
    EXPECT_EQ(together[of] - alone[of], alone[of] - before[of]) << "rank " << of;
  }
}

TEST_F(RanksRestore, CanBeRepeated) {
  OpenAll();
  for (const std::uint64_t step : {1, 2, 3}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  Damage(3, 2);
  for (const std::uint64_t step : {2, 1, 2}) {
    const Outcomes outcomes = RestoreAll(step == 1 ? Step(1).FallBack() : Latest().FallBack());

    ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, step));
  }
  ExpectWorksFrom(4);
}

TEST_F(RanksRestore, ReadsACopiedFolder) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::filesystem::copy(Folder(1), dir_ / "elsewhere", std::filesystem::copy_options::recursive);

  const Outcomes outcomes = RestoreAll(cairn::Folder(dir_ / "elsewhere").FallBack());

  ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, 1));
}

TEST_F(RanksRestore, ChoosesAgainIfTheChoiceIsRemoved) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  group(1).Hold("choice/");
  Pending pending = Begin(Latest().FallBack());
  ASSERT_TRUE(group(2).WaitSaid("planned/", Soon()));

  std::filesystem::remove_all(Folder(2));
  group(1).Release();

  const Outcomes outcomes = Await(std::move(pending));
  ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, 1));
  EXPECT_THAT(outcomes.at(0)->passed_over, IsEmpty());
}

TEST_F(RanksRestore, ChoosesAgainIfTheChoiceIsReplaced) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::string other_attempt;
  {
    const auto others = OpenRanks(kRanks, SmallOptions(dir_ / "other"));
    ASSERT_THAT(others, SizeIs(kRanks));
    std::vector<std::unique_ptr<Tensors>> states;
    std::vector<SaveHandle> saves;
    for (int of = 0; of < kRanks; ++of) {
      states.push_back(SmallState(1, of, /*variant=*/1));
      saves.push_back(*others[static_cast<std::size_t>(of)]->Save(1, states.back()->state()));
    }
    ASSERT_THAT(WaitAll(saves), Each(Status::Ok()));
    other_attempt = others[0]->List()->front().attempt;
  }
  group(1).Hold("choice/");
  Pending pending = Begin(Latest().FallBack());
  ASSERT_TRUE(group(2).WaitSaid("planned/", Soon()));

  std::filesystem::rename(Folder(1), dir_ / "was");
  std::filesystem::rename(dir_ / "other/" + StepName(1), Folder(1));
  group(1).Release();

  const Outcomes outcomes = Await(std::move(pending));
  ASSERT_NO_FATAL_FAILURE(ExpectRestored(outcomes, 1, /*variant=*/1));
  EXPECT_EQ(outcomes.at(1)->attempt, other_attempt);
}

TEST_F(RanksRestore, RetentionDoesNotCountDamageFoundByAnotherRank) {
  Options options = SmallOptions(root());
  options.keep_last = 2;
  OpenAll(options);
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  Damage(2, 2);
  ASSERT_NO_FATAL_FAILURE(ExpectRestored(RestoreAll(), 1));

  ASSERT_THAT(SaveAll(3), Each(Status::Ok()));

  for (int of = 0; of < kRanks; ++of) EXPECT_EQ(rank(of).Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1, 2, 3));
}

TEST_F(RanksRestore, IsInternalAfterAnInvalidMessage) {
  std::uint64_t step = 0;
  for (const auto& [key, by] :
       std::map<std::string, int>{{"choice/", 0}, {"planned/", 1}, {"begin/", 0}, {"read/", 1}, {"verdict/", 0}}) {
    SCOPED_TRACE(key);
    OpenAll();
    ASSERT_THAT(SaveAll(++step), Each(Status::Ok()));
    group(by).Say(key, "no message at all");

    const Outcomes outcomes = RestoreAll();

    for (const auto& [of, outcome] : outcomes) {
      if (of == 0 && key == "verdict/") continue;  // It knows the real verdict.
      EXPECT_EQ(outcome.status().code(), StatusCode::kInternal) << outcome.status();
      EXPECT_THAT(outcome.status().message(), HasSubstr("rank " + std::to_string(by) + " sent an invalid message"));
    }
    CloseAll();
  }
}

// Rank 0 has restored and the others do not know: their next save would be a mixture and fails.
TEST_F(RanksRestore, LostVerdictDoesNotCountOnTheOtherRanks) {
  OpenAll(kNever);
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  group(0).Lose("verdict/");
  Pending pending = Begin(Step(1).FallBack());
  for (int of = 1; of < kRanks; ++of) {
    ASSERT_TRUE(group(of).WaitSaid("read/", Soon()));
    group(of).Expire("verdict/");
  }

  const Outcomes outcomes = Await(std::move(pending));

  EXPECT_TRUE(outcomes.at(0).ok()) << outcomes.at(0).status();
  for (int of = 1; of < kRanks; ++of) {
    EXPECT_EQ(outcomes.at(of).status().code(), StatusCode::kDeadlineExceeded) << outcomes.at(of).status();
    EXPECT_THAT(outcomes.at(of).status().message(), HasSubstr("rank 0 did not say"));
  }
  const Statuses statuses = SaveAll(3);
  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kFailedPrecondition)));
  EXPECT_THAT(statuses[0].message(), HasSubstr("ranks continue different checkpoints"));
}

TEST_F(RanksRestore, EndsAtOnceIfTheGroupIsBroken) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) group(of).Break();

  const Outcomes outcomes = RestoreAll();

  ExpectAll(outcomes, StatusCode::kIoError);
}

TEST_F(RanksRestore, EndsAtOnceIfOneIsClosed) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  ranks_[2].reset();
  groups_[2].reset();

  const Outcomes outcomes = Await(Begin(Latest().FallBack(), {0, 1}));

  ExpectAll(outcomes, StatusCode::kFailedPrecondition, "rank 2");
}

class PlannedRestore : public RanksRestore {
 protected:
  /// Rank 1 restores by `call`, and meanwhile the others by Restore.
  Outcomes RestoreWith(RestoreCall call) {
    Pending pending = Begin(Latest(), {0, 2});
    if (!call.plan) {
      call.plan = [this](const CheckpointInfo& /*chosen*/) { return ReadPlan{.state = restored_[1]->state()}; };
    }
    auto own = Inside::Of(rank(1)).Restore(Latest(), call);
    Outcomes outcomes = Await(std::move(pending));
    outcomes.emplace(1, std::move(own));
    return outcomes;
  }
  void ExpectUntouched() const {
    const auto fresh = SmallState(0, 0);
    for (const int of : {0, 2}) EXPECT_TRUE(Holds(*restored_[static_cast<std::size_t>(of)], 0, of)) << "rank " << of;
  }
};

TEST_F(PlannedRestore, WritesNothingUnlessEveryRankHasPlanned) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));

  const Outcomes outcomes = RestoreWith(
      {.plan = [](const CheckpointInfo&) -> Result<ReadPlan> { return Status(StatusCode::kInvalidArgument, "no"); }});

  ExpectAll(outcomes, StatusCode::kInvalidArgument, "no");
  ExpectErrorOf(1, outcomes);
  ExpectUntouched();
}

TEST_F(PlannedRestore, EndsOnAllIfOneIsNotReady) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));

  const Outcomes outcomes = RestoreWith({.ready = Status(StatusCode::kDeadlineExceeded, "a save is in flight")});

  ExpectAll(outcomes, StatusCode::kDeadlineExceeded, "a save is in flight");
  ExpectErrorOf(1, outcomes);
  ExpectUntouched();
}

TEST_F(PlannedRestore, BeginsAndFinishesAroundTheRead) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::string seen;
  const auto plan = [&](const CheckpointInfo& chosen) {
    seen += std::to_string(chosen.step);
    const auto holds = [this](std::uint64_t step) { return Holds(*restored_[1], step, 1) ? "y" : "n"; };
    return ReadPlan{.state = restored_[1]->state(),
                    .begin = [&seen, holds] { return seen += holds(0), Status::Ok(); },
                    .finish = [&seen, holds] { return seen += holds(1), Status(StatusCode::kUnsupported, "odd"); }};
  };

  const Outcomes outcomes = RestoreWith({.plan = plan});

  EXPECT_EQ(seen, "1yy");
  ExpectAll(outcomes, StatusCode::kUnsupported, "odd");
  ExpectErrorOf(1, outcomes);
}

TEST_F(PlannedRestore, EndsWhileItWaitsIfItsCallerDoesNotGoOn) {
  for (const auto& [said, awaited] :
       std::map<std::string, std::string>{{"planned/", "begin/"}, {"read/", "verdict/"}}) {
    SCOPED_TRACE(awaited);
    OpenAll(kNever);
    ASSERT_THAT(SaveAll(said == "read/" ? 2 : 1), Each(Status::Ok()));
    group(1).Hold(awaited);

    const Outcomes outcomes =
        RestoreWith({.goes_on = [this, what = said] { return !group(1).WaitSaid(what, Deadline::In({})); }});

    group(1).Release();
    EXPECT_EQ(outcomes.at(1).status().code(), StatusCode::kCancelled) << outcomes.at(1).status();
    // It had read its part when it waited for the verdict.
    const StatusCode others = said == "read/" ? StatusCode::kOk : StatusCode::kCancelled;
    for (const int of : {0, 2}) EXPECT_EQ(outcomes.at(of).status().code(), others) << "rank " << of;
    CloseAll();
  }
}

// A single rank may read a checkpoint, and waits for nobody.
TEST_F(RanksRestore, ReadingAloneIsIndependent) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));

  const auto restored = ReadAlone(rank(1), Latest(), SmallState(0, 1)->state(), {.resume = false});

  EXPECT_TRUE(restored.ok()) << restored.status();
  EXPECT_FALSE(group(1).WaitSaid("planned/", Deadline::In({})));
}

class LateChoice : public RanksRestore {
 protected:
  /// Restores on all ranks; rank 1 does not see the newest step the first `looks` times.
  Outcomes RestoreSeenLate(int looks) {
    Pending others = Begin(Latest().FallBack(), {0, 2});
    std::optional<Result<Restored>> own;
    int looked = 0;
    const auto hide = [&](const seccomp_data& call) {
      return PathOf(call).ends_with(StepName(2)) && looked++ < looks ? ENOENT : 0;
    };
    hooked_ =
        RunHooked(SYS_openat, hide, [&] { own = rank(1).Restore(Latest().FallBack(), restored_[1]->state(), {}); });
    if (!hooked_) own = rank(1).Restore(Latest().FallBack(), restored_[1]->state(), {});
    Outcomes outcomes = Await(std::move(others));
    outcomes.emplace(1, *std::move(own));
    return outcomes;
  }
  void OpenWithTwoSteps(std::chrono::nanoseconds group_timeout) {
    Options options = SmallOptions(root());
    options.group_timeout = group_timeout;
    options.on_event = [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.severity == Severity::kWarning) warnings_.push_back(event.message);
    };
    OpenAll(options);
    for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  }
  [[nodiscard]] std::string Unseen(const std::string& is) const {
    return Folder(2) + ", which rank 0 has chosen, is not visible " + is + " on rank 1 (";
  }

  bool hooked_ = false;
  Mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(LateChoice, IsLookedForAndReportedOnce) {
  OpenWithTwoSteps(kNever);

  const Outcomes outcomes = RestoreSeenLate(/*looks=*/7);

  if (!hooked_) GTEST_SKIP() << "seccomp cannot hook calls here";
  ExpectRestored(outcomes, 2);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr(Unseen("yet"))));
}

TEST_F(LateChoice, NeverSeenEndsTheRestoreAfterTheDeadline) {
  OpenWithTwoSteps(std::chrono::milliseconds(500));

  const Outcomes outcomes = RestoreSeenLate(/*looks=*/1'000'000);

  if (!hooked_) GTEST_SKIP() << "seccomp cannot hook calls here";
  for (const auto& [of, outcome] : outcomes) {
    EXPECT_EQ(outcome.status().code(), StatusCode::kFailedPrecondition) << of << ": " << outcome.status();
    EXPECT_THAT(outcome.status().message(),
                AllOf(HasSubstr(Folder(2) + ", which rank 0 has chosen, is not visible on rank 1 ("),
                      HasSubstr("(there is no step 2 under")));
  }
}

}  // namespace
}  // namespace cairn
