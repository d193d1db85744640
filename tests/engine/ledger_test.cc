#include "engine/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CheckpointInfo Stored(std::uint64_t step, std::uint64_t line = 0, bool damaged = false) {
  CheckpointInfo one{.step = step, .line = line};
  one.attempt = "attempt-of-" + std::to_string(step);
  one.path = "step-" + std::to_string(step);
  if (damaged) one.status = Status(StatusCode::kCorrupt, "damaged");
  return one;
}

TEST(Ledger, RejectsAnExistingStepUnlessReplacing) {
  Ledger ledger({Stored(100)}, 3, 0);

  const auto refused = ledger.Admit(100, IfExists::kFail);
  const auto replacing = ledger.Admit(100, IfExists::kReplace);

  EXPECT_EQ(refused.status().code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(replacing.ok()) << replacing.status();
  EXPECT_TRUE(replacing->replace);
}

TEST(Ledger, NamesTheFolderOfACommittedStepIfKnown) {
  Ledger ledger({Stored(100)}, 3, 0);
  const auto plan = ledger.Admit(200, IfExists::kFail);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ledger.Committed(*plan, "attempt-of-200");

  EXPECT_EQ(ledger.Admit(100, IfExists::kFail).status().message(), "step 100 is committed already, in step-100");
  EXPECT_EQ(ledger.Admit(200, IfExists::kFail).status().message(), "step 200 is committed already");
}

TEST(Ledger, KeepsTheLastFiniteOne) {
  Ledger ledger({}, /*keep_last=*/1, 0);
  for (const auto& [step, found] : std::vector<std::pair<std::uint64_t, NonFinite>>{
           {1, NonFinite::kNone}, {2, NonFinite::kNone}, {3, NonFinite::kNaN}, {4, NonFinite::kInfinity}}) {
    ledger.Committed(*ledger.Admit(step, IfExists::kFail), "attempt", found);
  }

  EXPECT_THAT(ledger.Retire(), ElementsAre(1, 3));
}

TEST(Ledger, RejectsAStepInFlight) {
  Ledger ledger({}, 3, 0);
  ASSERT_TRUE(ledger.Admit(7, IfExists::kFail).ok());

  EXPECT_EQ(ledger.Admit(7, IfExists::kReplace).status().code(), StatusCode::kAlreadyExists);
}

TEST(Ledger, RejectsAStepBelowTheNewestWithoutARestore) {
  Ledger ledger({Stored(100)}, 3, 0);

  const Status status = ledger.Admit(99, IfExists::kFail).status();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("step 99 is below the newest one, 100"));
}

TEST(Ledger, CountsSavesInFlight) {
  Ledger ledger({}, 3, 0);
  const auto plan = ledger.Admit(50, IfExists::kFail);

  EXPECT_EQ(ledger.Admit(49, IfExists::kFail).status().code(), StatusCode::kFailedPrecondition);
  ledger.Withdraw(*plan);
  EXPECT_TRUE(ledger.Admit(49, IfExists::kFail).ok());
}

TEST(Ledger, ReplacesAStepOfUnknownOutcomeUntilCommitted) {
  Ledger ledger({}, 3, 0);
  ledger.WithdrawUnknown(*ledger.Admit(7, IfExists::kFail));

  const auto again = ledger.Admit(7, IfExists::kFail);

  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->replace);
  ledger.Withdraw(*again);
  EXPECT_TRUE(ledger.Admit(7, IfExists::kFail)->replace) << "a failure in between changes nothing";
  ledger.Committed(*again, "again");
  EXPECT_EQ(ledger.Admit(7, IfExists::kFail).status().code(), StatusCode::kAlreadyExists);
}

TEST(Ledger, DoesNotCountAStepOfUnknownReplacement) {
  Ledger ledger({Stored(5), Stored(6), Stored(7)}, 2, 0);

  ledger.WithdrawUnknown(*ledger.Admit(7, IfExists::kReplace));

  EXPECT_THAT(ledger.Retire(), IsEmpty()) << "7 does not count as one of the two to keep";
  const auto again = ledger.Admit(7, IfExists::kFail);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->replace);
}

TEST(Ledger, RelistRestoresAStepThatWasNotReplaced) {
  Ledger ledger({Stored(5), Stored(6), Stored(7)}, 2, 0);
  ledger.WithdrawUnknown(*ledger.Admit(7, IfExists::kReplace));

  EXPECT_TRUE(ledger.BeginRelist());
  EXPECT_TRUE(ledger.Relist({Stored(5), Stored(6), Stored(7)}));

  EXPECT_THAT(ledger.Retire(), ElementsAre(5));
  EXPECT_EQ(ledger.Admit(7, IfExists::kFail).status().code(), StatusCode::kAlreadyExists);
}

TEST(Ledger, RelistDropsAMissingStepOfUnknownOutcome) {
  Ledger ledger({}, 2, 0);
  ledger.WithdrawUnknown(*ledger.Admit(7, IfExists::kFail));

  EXPECT_TRUE(ledger.BeginRelist());
  EXPECT_TRUE(ledger.Relist({}));

  EXPECT_FALSE(ledger.Admit(7, IfExists::kFail)->replace);
}

TEST(Ledger, RetiresAnUnknownStepOnceEnoughNewerOnesAreDurable) {
  Ledger ledger({Stored(1)}, 2, 0);
  ledger.WithdrawUnknown(*ledger.Admit(2, IfExists::kFail));
  CheckpointInfo found = Stored(2);
  found.attempt = "of the unknown one";
  EXPECT_TRUE(ledger.BeginRelist());
  EXPECT_TRUE(ledger.Relist({Stored(1), found}));
  const auto durable = [&ledger](std::uint64_t step) {
    ledger.Committed(*ledger.Admit(step, IfExists::kFail), "attempt");
    return ledger.Retire();
  };

  EXPECT_THAT(durable(3), IsEmpty()) << "1 and 3 are kept; 2 does not count";
  EXPECT_THAT(durable(4), ElementsAre(1, 2));

  EXPECT_EQ(ledger.AttemptOf(2), "of the unknown one");
}

TEST(Ledger, RelistIgnoresOlderAndUnreadableListings) {
  Ledger ledger({Stored(9), Stored(10)}, 2, 0);
  EXPECT_FALSE(ledger.BeginRelist());
  ledger.WithdrawUnknown(*ledger.Admit(10, IfExists::kReplace));

  EXPECT_FALSE(ledger.Relist({Stored(9)})) << "the listing is older than the save's end";
  EXPECT_TRUE(ledger.BeginRelist());
  EXPECT_FALSE(ledger.Relist({Stored(9), Stored(10, 0, /*damaged=*/true)}));

  const auto next = ledger.Admit(11, IfExists::kFail);
  ledger.Committed(*next, "attempt");
  EXPECT_THAT(ledger.Retire(), IsEmpty());
  EXPECT_TRUE(ledger.BeginRelist());
  EXPECT_TRUE(ledger.Relist({Stored(9), Stored(10)})) << "it is readable again";
  EXPECT_THAT(ledger.Retire(), ElementsAre(9));
}

TEST(Ledger, ContinuesTheNewestLineInOneThatTheOpeningBegan) {
  CheckpointInfo unreadable = Stored(30);
  unreadable.status = Status(StatusCode::kCorrupt, "no manifest");
  struct Case {
    std::vector<CheckpointInfo> listed;
    std::uint64_t counter;
    std::uint64_t line;
  };
  for (const auto& [listed, counter, line] : std::vector<Case>{{{}, 0, 0},
                                                               {{}, 7, 7},
                                                               {{unreadable}, 5, 5},
                                                               {{Stored(90), Stored(40, 2)}, 7, 7},
                                                               {{Stored(90), Stored(40, 2)}, 2, 3},
                                                               {{Stored(90), Stored(40, 2)}, 0, 3}}) {
    Ledger ledger(listed, 3, 0, counter);

    EXPECT_EQ(ledger.Admit(20, IfExists::kFail).ok(), listed.empty()) << "it is below the newest";
    const auto plan = ledger.Admit(50, IfExists::kFail);

    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->line, line);
    EXPECT_EQ(plan->parent, std::nullopt);
  }
}

TEST(Ledger, TheLastLineIsForAllThatFollow) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  Ledger ledger({Stored(10, kLast)}, 3, 0);
  ledger.Restored(10, kLast, "attempt-of-10");

  EXPECT_EQ(ledger.Admit(20, IfExists::kFail)->line, kLast);
}

// Of a checkpoint that was copied into the root after the opening.
TEST(Ledger, ALineIsAboveTheRestoredOne) {
  Ledger ledger({Stored(10)}, 3, 0);
  ledger.Restored(5, 4, "of another root");

  EXPECT_EQ(ledger.Admit(20, IfExists::kFail)->line, 5U);
}

TEST(Ledger, EachRestoreTakesALineThatNoSaveWasIn) {
  for (const auto& [counter, next] : {std::pair(0, 3), {2, 3}, {7, 7}}) {
    Ledger ledger({Stored(90, 2), Stored(100, 2)}, 3, 0, counter);

    ledger.Restored(90, 2, "attempt-of-90");
    ledger.Restored(100, 2, "attempt-of-100");
    const auto first = ledger.Admit(110, IfExists::kFail);
    ledger.Restored(100, 2, "attempt-of-100");
    const auto second = ledger.Admit(120, IfExists::kFail);

    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    EXPECT_EQ(first->line, next) << "the save in flight stays in its line";
    EXPECT_EQ(first->parent, (ManifestParent{100, "attempt-of-100"}));
    EXPECT_EQ(second->line, next + 1);
  }
}

TEST(Ledger, TakesALineInAnEmptyRootToo) {
  Ledger ledger({}, 3, 0);

  ledger.Restored(100, 8, "of another root");

  EXPECT_EQ(ledger.Admit(99, IfExists::kFail).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ledger.Admit(100, IfExists::kFail)->line, 9U);
}

TEST(Ledger, RefusesTheRestoredStepOnlyIfItWasTheNewest) {
  struct Case {
    std::uint64_t step;
    std::string attempt;
    bool saved_already;
  };
  for (const Case& one : std::vector<Case>{{100, "attempt-of-100", true}, {100, "another", false}, {50, "", false}}) {
    Ledger ledger({Stored(40), Stored(50), Stored(100)}, 0, 0);
    ledger.Restored(one.step, 0, one.attempt.empty() ? "attempt-of-50" : one.attempt);

    const auto again = ledger.Admit(one.step, IfExists::kFail);

    EXPECT_EQ(again.ok(), !one.saved_already) << one.step << one.attempt;
    if (again.ok()) continue;
    EXPECT_EQ(again.status().code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(ledger.Admit(50, IfExists::kFail).status().code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(ledger.Admit(50, IfExists::kReplace).status().code(), StatusCode::kFailedPrecondition)
        << "it would become the newest";
    EXPECT_TRUE(ledger.Admit(100, IfExists::kReplace).ok());
  }
}

TEST(Ledger, ASaveInFlightIsNewerThanWhatWasRestored) {
  Ledger ledger({Stored(100)}, 0, 0);
  ASSERT_TRUE(ledger.Admit(110, IfExists::kFail).ok());

  ledger.Restored(100, 0, "attempt-of-100");

  EXPECT_TRUE(ledger.Admit(100, IfExists::kFail).ok());
}

TEST(Ledger, StartsANewLineAfterRestoringAnOlderStep) {
  Ledger ledger({Stored(50), Stored(100)}, 0, 0);

  ledger.Restored(50, 0, "attempt-of-50");

  EXPECT_EQ(ledger.Admit(49, IfExists::kFail).status().code(), StatusCode::kFailedPrecondition);
  const auto again = ledger.Admit(100, IfExists::kFail);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->line, 1U);
  EXPECT_TRUE(again->replace);
  EXPECT_EQ(again->parent, (ManifestParent{50, "attempt-of-50"}));
}

TEST(Ledger, DoesNotCountOrRetireADamagedStep) {
  Ledger ledger({Stored(1), Stored(2), Stored(3)}, 2, 0);
  ledger.FoundDamaged(2, "another-attempt");
  ledger.FoundDamaged(3, "attempt-of-3");

  const std::vector<std::uint64_t> before = ledger.Retire();
  const auto plan = ledger.Admit(4, IfExists::kFail);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ledger.Committed(*plan, "attempt-of-4");

  EXPECT_THAT(before, IsEmpty());
  EXPECT_THAT(ledger.Retire(), ElementsAre(1));
}

TEST(Ledger, KeepsAnUnknownStepUntilEnoughIntactOnesAreNewer) {
  Ledger ledger({}, 2, 0);
  const auto unknown = ledger.Admit(1, IfExists::kFail);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  ledger.WithdrawUnknown(*unknown);
  ASSERT_TRUE(ledger.BeginRelist());
  ASSERT_TRUE(ledger.Relist({Stored(1)}));
  for (const std::uint64_t step : {2, 3}) {
    const auto plan = ledger.Admit(step, IfExists::kFail);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ledger.Committed(*plan, "attempt-of-" + std::to_string(step));
    if (step == 2) ledger.FoundDamaged(2, "attempt-of-2");
  }

  EXPECT_THAT(ledger.Retire(), IsEmpty());
}

TEST(Ledger, DamagedNewestDoesNotEndTheRestoredLine) {
  Ledger ledger({Stored(50), Stored(100, 0, true)}, 0, 0);

  ledger.Restored(50, 0, "attempt-of-50");  // By fallback.

  const auto plan = ledger.Admit(100, IfExists::kFail);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->line, 1U);
  EXPECT_TRUE(plan->replace);
}

TEST(Ledger, RetiresTheOldestOnce) {
  Ledger ledger({Stored(10), Stored(20)}, 2, 0);
  const auto plan = ledger.Admit(30, IfExists::kFail);
  ledger.Committed(*plan, "new");

  EXPECT_THAT(ledger.Retire(), ElementsAre(10));
  EXPECT_THAT(ledger.Retire(), IsEmpty());
  ledger.CancelRetirement(10);
  EXPECT_THAT(ledger.Retire(), ElementsAre(10));
  ledger.Removed(10);
  EXPECT_THAT(ledger.Retire(), IsEmpty());
}

TEST(Ledger, KeepsPinnedStepsAndEveryKth) {
  Ledger ledger({Stored(10), Stored(20), Stored(30), Stored(40)}, 1, 20);
  ledger.SetPinned(30, true);

  EXPECT_THAT(ledger.Retire(), ElementsAre(10));
}

// Before anything has read its pin from the disk.
TEST(Ledger, KeepsAStepThatItsSavePinned) {
  Ledger ledger({Stored(10)}, 1, 0);
  for (const std::uint64_t step : {20U, 30U}) {
    auto plan = ledger.Admit(step, IfExists::kFail);
    plan->pin = step == 20;
    ledger.Committed(*plan, "attempt");
  }

  EXPECT_THAT(ledger.Retire(), ElementsAre(10));
}

TEST(Ledger, CountsTheNewLineAsNewer) {
  Ledger ledger({Stored(50), Stored(100), Stored(200)}, 2, 0);
  ledger.Restored(50, 0, "attempt-of-50");
  const auto plan = ledger.Admit(60, IfExists::kFail);
  ledger.Committed(*plan, "new");

  // Of {0, 50}, {0, 100}, {0, 200}, {1, 60} the last two are kept.
  EXPECT_THAT(ledger.Retire(), ElementsAre(50, 100));
}

TEST(Ledger, DoesNotRetireAStepBeingReplaced) {
  Ledger ledger({Stored(50), Stored(100), Stored(200)}, 1, 0);
  ledger.Restored(50, 0, "attempt-of-50");
  ASSERT_TRUE(ledger.Admit(100, IfExists::kFail).ok());

  EXPECT_THAT(ledger.Retire(), ElementsAre(50));
  EXPECT_EQ(ledger.BeginRemoval(100).code(), StatusCode::kFailedPrecondition);
}

TEST(Ledger, AdmitTimesOutWhileTheStepIsBeingRemoved) {
  Ledger ledger({Stored(100)}, 0, 0);
  ASSERT_TRUE(ledger.BeginRemoval(100).ok());

  const Status status = ledger.Admit(100, IfExists::kReplace, Deadline::In({})).status();

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "step 100: its old checkpoint is still being removed");
  ledger.Removed(100);
  EXPECT_TRUE(ledger.Admit(100, IfExists::kFail, Deadline::In({})).ok());
}

TEST(Ledger, AdmitWaitsForARemovalOfTheStep) {
  Ledger ledger({Stored(100)}, 0, 0);
  ASSERT_TRUE(ledger.BeginRemoval(100).ok());
  std::thread saver([&ledger] { EXPECT_FALSE(ledger.Admit(100, IfExists::kFail)->replace); });

  ledger.Removed(100);

  saver.join();
}

TEST(Ledger, WithASharedOrderNoLineAndStepIsGivenTwice) {
  Ledger ledger({Stored(100)}, 0, 0, 5);
  ledger.ShareOrder();
  const auto admit = [&](std::uint64_t step) {
    const Result<SavePlan> plan = ledger.Admit(step, IfExists::kReplace);
    EXPECT_TRUE(plan.ok()) << plan.status();
    ledger.Committed(*plan, "attempt");
    return plan->line;
  };

  EXPECT_EQ(admit(101), 5U);
  EXPECT_EQ(admit(102), 5U);
  EXPECT_EQ(admit(101), 6U) << "again";
  EXPECT_EQ(admit(103), 6U);
  const Result<SavePlan> failed = ledger.Admit(104, IfExists::kFail);
  ASSERT_TRUE(failed.ok()) << failed.status();
  ledger.Withdraw(*failed);
  EXPECT_EQ(admit(104), 7U) << "the other place may have it";
  EXPECT_EQ(ledger.FindNewest()->step, 104U);
}

TEST(Ledger, RetiresDamagedOnesBelowTheNewestIfAsked) {
  const auto retired = [](bool asked) {
    Ledger ledger({Stored(1, 1, /*damaged=*/true), Stored(2, 1), Stored(3, 1, /*damaged=*/true)}, 1, 0, 2);
    if (asked) ledger.RetireDamaged();
    EXPECT_EQ(ledger.Retire(), std::vector<std::uint64_t>(asked ? 1 : 0, 1)) << "3 may be newer than 2";
    const Result<SavePlan> plan = ledger.Admit(4, IfExists::kFail);
    EXPECT_TRUE(plan.ok()) << plan.status();
    ledger.Committed(*plan, "attempt");
    return ledger.Retire();
  };

  EXPECT_THAT(retired(false), ElementsAre(2));
  EXPECT_THAT(retired(true), ElementsAre(2, 3));
}

}  // namespace
}  // namespace cairn
