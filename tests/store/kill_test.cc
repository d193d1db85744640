// Kills a process with SIGKILL before and after each operation of the store, and checks what the next process finds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGKILL
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "store/list.h"
#include "store/names.h"
#include "store/pins.h"
#include "store/remove.h"
#include "store_case.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

/// The child reports what is durable, one byte each.
class Reports {
 public:
  explicit Reports(int fd) : fd_(fd) {}
  void Done(char what) const { static_cast<void>(::write(fd_, &what, 1)); }

 private:
  int fd_;
};

struct Story {
  /// The child's filesystem rejects rename flags.
  bool refuses_flags = false;
  /// Runs before the child and is not killed.
  std::function<void(IoQueue& queue, const std::string& root)> before;
  /// Runs in the child. False is a test failure.
  std::function<bool(IoQueue& queue, const std::string& root, const Reports& reports)> child;
  /// Runs after the next process has opened the root.
  std::function<void(const std::string& root, const std::set<char>& reported)> after;
};

struct Outcome {
  bool killed = false;
  std::set<char> reported;
};

Outcome RunChild(const Story& story, const std::string& root, const std::shared_ptr<FaultPlan>& plan) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    bool good = false;
    {
      const auto queue = MakeQueue(plan->Wrap(PlainFactory()));
      good = story.child(*queue, root, Reports(pipe[1]));
    }
    if (good) Reports(pipe[1]).Done('.');
    ::_exit(good ? 0 : 1);
  }
  ::close(pipe[1]);
  Outcome outcome;
  char what = 0;
  while (::read(pipe[0], &what, 1) == 1) outcome.reported.insert(what);
  ::close(pipe[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  outcome.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(outcome.killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return outcome;
}

/// Checks that there are no leftovers and no damage.
void CheckReopened(const std::string& root) {
  const auto queue = MakeQueue();
  const auto opened = OpenRoot(*queue, root);
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const std::string& name : Names(root)) {
    EXPECT_TRUE(name == kLockName || name == kWriterName || ParseStepName(name).has_value()) << name;
  }
  static_cast<void>(GoodSteps(root));
}

/// Runs the story once for each operation of the child, killed at it, and once unharmed.
void KillEverywhere(const Story& story) {
  std::size_t runs = 0;
  for (const bool after : {false, true}) {
    for (std::uint64_t k = 1;; ++k) {
      SCOPED_TRACE(std::string("killed ") + (after ? "after" : "before") + " operation " + std::to_string(k));
      MemoryDir dir;
      const std::string root = dir / "parent/root";
      if (story.before) {
        const auto queue = MakeQueue();
        story.before(*queue, root);
      }
      const auto plan = FaultPlan::Make();
      after ? plan->KillAfter({.nth = k}) : plan->KillBefore({.nth = k});
      if (story.refuses_flags) plan->RefuseRenameFlags();

      const Outcome outcome = RunChild(story, root, plan);
      CheckReopened(root);
      story.after(root, outcome.reported);

      ++runs;
      if (::testing::Test::HasFailure()) return;
      if (!outcome.killed) {
        EXPECT_THAT(outcome.reported, Contains('.'));
        break;
      }
    }
  }
  EXPECT_GT(runs, 10U);
}

void SaveBefore(IoQueue& queue, const std::string& root, const std::vector<TestSave>& saves) {
  const auto opened = OpenRoot(queue, root);
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const TestSave& save : saves) ASSERT_EQ(SaveTo(queue, root, save), Status::Ok());
}

TEST(Kill, AtEveryOperationOfTheFirstSave) {
  const TestSave save{.step = 1, .shards = 3};
  KillEverywhere({.before = nullptr,
                  .child =
                      [&](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root);
                        if (!opened.ok() || !SaveTo(queue, root, save).ok()) return false;
                        reports.Done('1');
                        return true;
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        const bool found = fs::exists(root + "/" + StepName(1));
                        EXPECT_TRUE(found || !reported.contains('1'));
                        if (found) {
                          EXPECT_EQ(CheckContent(root, save), Status::Ok());
                        }
                      }});
}

TEST(Kill, AtEveryOperationOfConcurrentSaves) {
  const TestSave first{.step = 1};
  const TestSave second{.step = 2, .shards = 2};
  const TestSave third{.step = 3, .shards = 2};
  KillEverywhere({.before = [&](IoQueue& queue, const std::string& root) { SaveBefore(queue, root, {first}); },
                  .child =
                      [&](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root);
                        if (!opened.ok()) return false;
                        TestRanks two(queue, root, second);
                        TestRanks three(queue, root, third);
                        bool good = two.Begin().ok() && two.Write().ok() && three.Begin().ok() && two.Seal().ok() &&
                                    three.Write().ok() && two.Commit().ok();
                        if (!good) return false;
                        reports.Done('2');
                        good = three.Seal().ok() && three.Commit().ok();
                        if (good) reports.Done('3');
                        return good;
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        EXPECT_EQ(CheckContent(root, first), Status::Ok());
                        for (const TestSave& save : {second, third}) {
                          const bool found = fs::exists(root + "/" + StepName(save.step));
                          EXPECT_TRUE(found || !reported.contains(static_cast<char>('0' + save.step)));
                          if (found) {
                            EXPECT_EQ(CheckContent(root, save), Status::Ok());
                          }
                        }
                      }});
}

void KillReplacements(bool refuses_flags) {
  const TestSave old{.step = 1, .seed = 1};
  const TestSave fresh{.step = 1, .seed = 2, .shards = 2, .replace = true};
  KillEverywhere({.refuses_flags = refuses_flags,
                  .before = [&](IoQueue& queue, const std::string& root) { SaveBefore(queue, root, {old}); },
                  .child =
                      [&](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root);
                        if (!opened.ok() || !SaveTo(queue, root, fresh).ok()) return false;
                        reports.Done('f');
                        return true;
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        const bool is_fresh = CheckContent(root, fresh).ok();
                        EXPECT_TRUE(is_fresh || CheckContent(root, old).ok());
                        EXPECT_TRUE(is_fresh || !reported.contains('f'));
                      }});
}

TEST(Kill, AtEveryOperationOfAReplacement) { KillReplacements(/*refuses_flags=*/false); }

TEST(Kill, AtEveryOperationOfAReplacementInTwoRenames) { KillReplacements(/*refuses_flags=*/true); }

TEST(Kill, AtEveryOperationOfARemoval) {
  const TestSave old{.step = 1, .shards = 2};
  const TestSave fresh{.step = 2};
  KillEverywhere({.before =
                      [&](IoQueue& queue, const std::string& root) {
                        SaveBefore(queue, root, {old, fresh});
                      },
                  .child =
                      [&](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root);
                        if (!opened.ok() || !Remove(queue, root, 1).ok()) return false;
                        reports.Done('r');
                        return true;
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        EXPECT_EQ(CheckContent(root, fresh), Status::Ok());
                        const bool found = fs::exists(root + "/" + StepName(1));
                        EXPECT_FALSE(found && reported.contains('r'));
                        if (found) {
                          EXPECT_EQ(CheckContent(root, old), Status::Ok());
                        }
                      }});
}

TEST(Kill, AtEveryOperationOfASaveIntoARecycledFile) {
  const TestSave first{.step = 1, .shards = 2};
  const TestSave second{.step = 2, .shards = 2};
  const TestSave third{.step = 3, .shards = 2, .recycle = true};
  KillEverywhere({.before =
                      [&](IoQueue& queue, const std::string& root) {
                        SaveBefore(queue, root, {first, second});
                      },
                  .child =
                      [&](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root);
                        if (!opened.ok() || !Retire(queue, root, 1, 2).ok()) return false;
                        TestRanks ranks(queue, root, third);
                        if (!ranks.Save().ok() || !ranks.rank(0).recycled() || !ranks.rank(1).recycled()) return false;
                        reports.Done('3');
                        static_cast<void>(RunTaskBlocking(queue, RemoveSparesTask(root)));
                        return true;
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        EXPECT_EQ(CheckContent(root, second), Status::Ok());
                        for (const TestSave& save : {first, third}) {
                          const bool found = fs::exists(root + "/" + StepName(save.step));
                          EXPECT_TRUE(found || save.step == 1 || !reported.contains('3'));
                          if (found) {
                            EXPECT_EQ(CheckContent(root, save), Status::Ok());
                          }
                        }
                      }});
}

TEST(Kill, AtEveryOperationOfASweep) {
  const TestSave save{.step = 1};
  KillEverywhere(
      {.before =
           [&](IoQueue& queue, const std::string& root) {
             SaveBefore(queue, root, {save});
             TestRanks half(queue, root, {.step = 2, .shards = 2});
             ASSERT_EQ(half.Begin(), Status::Ok());
             fs::copy(root + "/" + StepName(1), root + "/" + RetiredName("x"));
           },
       .child = [](IoQueue& queue, const std::string& root, const Reports&) { return OpenRoot(queue, root).ok(); },
       .after = [&](const std::string& root,
                    const std::set<char>&) { EXPECT_EQ(CheckContent(root, save), Status::Ok()); }});
}

TEST(Kill, AtEveryOperationOfASweepThatMakesSparesAndASave) {
  const TestSave save{.step = 1};
  const TestSave next{.step = 3, .shards = 2, .recycle = true};
  KillEverywhere({.before =
                      [&](IoQueue& queue, const std::string& root) {
                        SaveBefore(queue, root, {save});
                        TestRanks half(queue, root, {.step = 2, .shards = 2});
                        ASSERT_EQ(half.Begin(), Status::Ok());
                      },
                  .child =
                      [&](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root, {.folders = 1, .shards = 2});
                        if (!opened.ok() || !SaveTo(queue, root, next).ok()) return false;
                        reports.Done('3');
                        return true;
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        EXPECT_EQ(CheckContent(root, save), Status::Ok());
                        const bool found = fs::exists(root + "/" + StepName(3));
                        EXPECT_TRUE(found || !reported.contains('3'));
                        if (found) {
                          EXPECT_EQ(CheckContent(root, next), Status::Ok());
                        }
                      }});
}

TEST(Kill, AtEveryOperationOfAPin) {
  const TestSave save{.step = 1};
  KillEverywhere({.before = [&](IoQueue& queue, const std::string& root) { SaveBefore(queue, root, {save}); },
                  .child =
                      [](IoQueue& queue, const std::string& root, const Reports& reports) {
                        const auto opened = OpenRoot(queue, root);
                        if (!opened.ok() || !SetPin(queue, root, 1, PinOwner::kBest, 0644).ok()) return false;
                        reports.Done('b');
                        if (!SetPin(queue, root, 1, PinOwner::kUser, 0644).ok()) return false;
                        reports.Done('u');
                        return SetPin(queue, root, 1, std::nullopt, 0644).ok();
                      },
                  .after =
                      [&](const std::string& root, const std::set<char>& reported) {
                        EXPECT_EQ(CheckContent(root, save), Status::Ok());
                        const std::string folder = root + "/" + StepName(1);
                        const std::optional<PinOwner> pin = FindPin(folder);
                        std::vector<std::string> expected{std::string(kManifestName), ShardName(0)};
                        if (pin) expected.emplace_back(kPinName);
                        EXPECT_THAT(Names(folder), UnorderedElementsAreArray(expected)) << "a draft is left";
                        if (reported.contains('.')) {
                          EXPECT_EQ(pin, std::nullopt);
                        } else if (reported.contains('u')) {
                          EXPECT_NE(pin, PinOwner::kBest);
                        } else {
                          EXPECT_TRUE(pin || !reported.contains('b'));
                        }
                      }});
}

TEST(Kill, AtEveryOperationOfASaveThatPins) {
  const TestSave save{.step = 1, .shards = 2, .pin = true};
  KillEverywhere({.child = [&](IoQueue& queue, const std::string& root,
                               const Reports&) { return OpenRoot(queue, root).ok() && SaveTo(queue, root, save).ok(); },
                  .after =
                      [&](const std::string& root, const std::set<char>&) {
                        const std::string folder = root + "/" + StepName(1);
                        EXPECT_EQ(FindPin(folder).has_value(), fs::exists(folder));
                      }});
}

}  // namespace
}  // namespace cairn
