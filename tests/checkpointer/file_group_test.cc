// A group over files: real processes that save together, die and start again, and what each call of the store promises.
#include "store/file_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "group/group_futures.h"
#include "group/node_ranks.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "support/variable.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

/// While it lives, this process can make files but write nothing into them, as on a full disk.
class NoRoom {
 public:
  NoRoom() {
    std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit none = {.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~NoRoom() { EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0); }
  NoRoom(const NoRoom&) = delete;
  NoRoom& operator=(const NoRoom&) = delete;

 private:
  rlimit before_{};
};

class FileGroupTest : public testing::Test {
 protected:
  static constexpr int kSize = 3;

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  /// What the groups have in the root, apart from rank 0's lock.
  [[nodiscard]] std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root() + "/.group")) {
      const std::string name = entry.path().lexically_relative(root() + "/.group").string();
      if (name != ".lock") names.push_back(name);
    }
    return names;
  }
  [[nodiscard]] std::shared_ptr<Group> Join(int rank, const std::string& name,
                                            std::chrono::nanoseconds open_timeout = 1min,
                                            std::chrono::nanoseconds close_timeout = 5s) const {
    return *MakeFileGroup(
        root(), {.rank = rank, .size = 2, .name = name, .open_timeout = open_timeout, .close_timeout = close_timeout});
  }
  [[nodiscard]] KeyValueStore Connect(int rank, const std::string& name) const {
    return *ConnectFiles(root() + "/.group", {.rank = rank, .size = 2, .name = name})();
  }

  /// A rank that restores, says the step, and saves the next ones, saying how each ended.
  [[nodiscard]] std::unique_ptr<Forked> Train(int rank, const std::string& name, int saves, bool stays = false) const {
    return std::make_unique<Forked>([=, this](const Say& say) {
      const auto group = MakeFileGroup(root(), {.rank = rank, .size = kSize, .name = name, .close_timeout = 100ms});
      Options options = SmallOptions(root());
      options.group = *group;
      options.group_timeout = stays || saves > 2 ? 500ms : 1min;
      const auto checkpointer = Checkpointer::Open(options);
      if (!checkpointer.ok()) return say(checkpointer.status().ToString()), 1;
      const auto state = SmallState(0, rank);
      const auto restored = (*checkpointer)->Restore(Latest(), state->state());
      std::uint64_t step = restored.ok() ? restored->step : 0;
      if (restored.ok() && !Holds(*state, step, rank)) return say("restored other bytes"), 1;
      say("restored " + std::to_string(step));
      for (int left = saves; left > 0; --left) {
        const auto next = SmallState(++step, rank);
        const auto save = (*checkpointer)->Save(step, next->state());
        const Status status = save.ok() ? save->WaitDurable(Soon()) : save.status();
        say(status.ok() ? "saved " + std::to_string(step) : status.ToString());
        if (!status.ok()) return 1;
      }
      while (stays) ::pause();
      return 0;
    });
  }
  [[nodiscard]] std::vector<std::unique_ptr<Forked>> TrainAll(const std::string& name, int saves) const {
    std::vector<std::unique_ptr<Forked>> ranks;
    for (int rank = 0; rank < kSize; ++rank) ranks.push_back(Train(rank, name, saves));
    return ranks;
  }

  const TempDir dir_;
};

TEST_F(FileGroupTest, ProcessesSaveAndRestoreTogetherAndLeaveNoFiles) {
  for (int start = 0; start < 2; ++start) {
    const std::string before = "restored " + std::to_string(2 * start);
    for (const auto& rank : TrainAll("the same name", 2)) {
      const Forked::End end = rank->Wait(Soon());
      EXPECT_THAT(end.lines, ElementsAre(before, "saved " + std::to_string(2 * start + 1),
                                         "saved " + std::to_string(2 * start + 2)));
      EXPECT_EQ(end.value, 0);
    }
    EXPECT_THAT(Files(), ElementsAre());
  }
}

TEST_F(FileGroupTest, ProcessesCountTheRanksOfTheirNodeWhenTheyMeet) {
  std::vector<std::unique_ptr<Forked>> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.push_back(std::make_unique<Forked>([=, this](const Say& say) {
      const Variable torchrun("LOCAL_WORLD_SIZE", rank == 2 ? "1" : "4");  // Too many; rank 2 thinks itself alone.
      const Variable all("WORLD_SIZE", nullptr);
      const auto group = MakeFileGroup(root(), {.rank = rank, .size = kSize, .name = "run7"});
      // Rank 1 is on another machine, as far as one machine can show that.
      std::promise<void> met;
      if (rank == 1) {
        MeetNodeRanks(**group, "another", true, Deadline::Infinite(), [&](const NodeRanks&) { met.set_value(); });
        met.get_future().wait();
      }
      Options options = SmallOptions(root());
      if (rank != 1) options.queue_depth = 0;
      options.host_memory_bytes = 16_MiB;
      options.group = *group;
      options.on_event = [&say](const Event& event) { say(event.message); };
      const auto checkpointer = Checkpointer::Open(options);
      return say(checkpointer.status().ToString()), 0;
    }));
  }
  const auto lines = [&](int rank) { return ranks[static_cast<std::size_t>(rank)]->Wait(Soon()).lines; };
  EXPECT_THAT(lines(0),
              ElementsAre(AllOf(HasSubstr("ranks on this node: 2, known by the names of the ranks' nodes; not "
                                          "by LOCAL_WORLD_SIZE=4: expected 1 to 3"),
                                HasSubstr("queue_depth=4")),
                          "Ok"));
  EXPECT_THAT(lines(1), ElementsAre("Ok"));
  EXPECT_THAT(lines(2), ElementsAre(AllOf(HasSubstr("ranks on this node: 1, known by LOCAL_WORLD_SIZE=1."),
                                          HasSubstr("queue_depth=8")),
                                    "Ok"));
}

TEST_F(FileGroupTest, KilledRankIsNamedAndItsFilesDoNotReachTheNextStart) {
  {
    const auto zero = Train(0, "run7", 3);
    const auto one = Train(1, "run7", 3);
    const auto two = Train(2, "run7", 1, /*stays=*/true);
    EXPECT_EQ(two->NextLine(Soon()), "restored 0");
    EXPECT_EQ(two->NextLine(Soon()), "saved 1");
    two->Kill();
    EXPECT_THAT(zero->Wait(Soon()).lines, ElementsAre("restored 0", "saved 1", HasSubstr("rank 2")));
    EXPECT_THAT(one->Wait(Soon()).lines, ElementsAre("restored 0", "saved 1", HasSubstr("rank 2")));
  }
  EXPECT_FALSE(Files().empty());

  for (const auto& rank : TrainAll("run7", 1)) {
    EXPECT_THAT(rank->Wait(Soon()).lines, ElementsAre("restored 1", "saved 2"));
  }
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(FileGroupTest, FilesOfAnEarlierStartOfAnotherNameAreRemoved) {
  EXPECT_TRUE(Connect(1, "job 1").set("cairn/job 1/hello/1", "dead").ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("run-job%201", "run-job%201/hello-1"));

  const auto zero = Join(0, "job 2");
  const auto one = Join(1, "job 2");
  one->Send("key", "met");

  EXPECT_THAT(Collect(*zero, "key").get().by_rank(2), ElementsAre("", "met"));
  EXPECT_THAT(Files(), testing::Each(StartsWith("run-job%202")));
}

TEST_F(FileGroupTest, FilesOfAnEarlierStartOfTheSameNameAreRemoved) {
  for (const char* key : {"welcome/old", "old/inbox", "old/log/1", "hello/2"}) {
    EXPECT_TRUE(Connect(1, "run7").set("cairn/run7/" + std::string(key), "dead").ok());
  }

  const auto zero = Join(0, "run7");
  const auto one = Join(1, "run7");
  one->Send("key", "met");

  EXPECT_THAT(Collect(*zero, "key").get().by_rank(2), ElementsAre("", "met"));
  EXPECT_THAT(Files(), testing::Each(testing::Not(AnyOf(HasSubstr("old"), HasSubstr("hello-2")))));
}

TEST_F(FileGroupTest, LongNamesAreToldApart) {
  const std::string name = "/mnt/" + std::string(300, 'd') + "/run";
  EXPECT_TRUE(Connect(1, name + "1").set("cairn/" + name + "1/hello/1", "met").ok());

  EXPECT_TRUE(*Connect(2, name + "1").check("cairn/" + name + "1/hello/1"));
  EXPECT_FALSE(*Connect(2, name + "2").check("cairn/" + name + "2/hello/1"));
}

TEST_F(FileGroupTest, WhatIsNoFileIsNamedAndNotWaitedFor) {
  const KeyValueStore zero = Connect(0, "run7");
  const std::string path = root() + "/.group/run-run7/hello-1";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);

  EXPECT_THAT(zero.get("cairn/run7/hello/1").status().message(), HasSubstr("rank 0: " + path + ": expected a file"));
}

TEST_F(FileGroupTest, LiveRankOfAnEarlierStartStaysOutOfOneOfAnotherName) {
  auto old = Join(1, "job 1", 1min, kSoon);
  auto waits = Await(*old, "key");
  EXPECT_TRUE(*Connect(2, "job 1").wait("cairn/job 1/hello/1", 1min));

  const auto zero = Join(0, "job 2");
  const auto one = Join(1, "job 2");
  one->Send("key", "of job 2");

  EXPECT_THAT(Collect(*zero, "key", Deadline::In(10s)).get().by_rank(2), ElementsAre("", "of job 2"));
  zero->Announce("key", "of job 2");
  EXPECT_EQ(*Await(*one, "key").get(), "of job 2");
  old.reset();
  EXPECT_EQ(waits.get().status().code(), StatusCode::kCancelled);
}

TEST_F(FileGroupTest, SecondGroupWaitsUntilTheFirstHasEndedAndLeavesItsFiles) {
  auto zero = Join(0, "job 1");
  auto one = Join(1, "job 1");
  one->Send("key", "before");
  EXPECT_THAT(Collect(*zero, "key").get().by_rank(2), ElementsAre("", "before"));

  const Status refused = Collect(*Join(0, "job 2", 100ms), "key").get().end;
  ASSERT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("rank 0: " + root() + "/.group/.lock is locked"),
                                       HasSubstr("give each group a folder of its own")));

  const auto later_zero = Join(0, "job 2");
  const auto later_one = Join(1, "job 2");
  EXPECT_TRUE(*Connect(2, "job 2").wait("cairn/job 2/hello/1", 1min));
  one->Send("next", "after");
  EXPECT_THAT(Collect(*zero, "next").get().by_rank(2), ElementsAre("", "after"));
  zero.reset();
  one.reset();
  later_one->Send("key", "of job 2");
  EXPECT_THAT(Collect(*later_zero, "key").get().by_rank(2), ElementsAre("", "of job 2"));
}

TEST_F(FileGroupTest, NextStartOutlivesTheFolderThatTheFirstOneRemoves) {
  const KeyValueStore zero = Connect(0, "run7");
  { const KeyValueStore first = Connect(1, "run7"); }
  EXPECT_THAT(Files(), ElementsAre());
  const std::string hello = "cairn/run7/hello/1";

  EXPECT_FALSE(*zero.check(hello));

  EXPECT_TRUE(Connect(1, "run7").set(hello, "of the next").ok());
  EXPECT_TRUE(*zero.check(hello));
}

TEST_F(FileGroupTest, FolderThatCannotBeMadeIsNamedWithTheRank) {
  std::filesystem::create_directories(root());
  std::ofstream(root() + "/.group").close();

  EXPECT_THAT(Await(*Join(1, "run7"), "key").get().status().message(),
              AllOf(HasSubstr("rank 1: making " + root() + "/.group/run-run7"), HasSubstr("Not a directory")));
  EXPECT_EQ(MakeFileGroup("", {.rank = 0, .size = 2}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileGroupTest, MessagesPassAgainOnceTheDiskHasRoom) {
  auto full = std::make_unique<NoRoom>();
  auto zero = Join(0, "run7", 1min, 100ms);
  auto one = Join(1, "run7", 1min, 100ms);
  for (const char* key : {"while it opens", "later"}) {
    one->Send(key, "late");
    EXPECT_EQ(Collect(*zero, key, Deadline::In(50ms)).get().end.code(), StatusCode::kDeadlineExceeded) << key;
    zero->Announce(key, "late");
    full.reset();

    one->Send(std::string("after ") + key, "sent");
    EXPECT_THAT(Collect(*zero, std::string("after ") + key, Soon()).get().by_rank(2), ElementsAre("", "sent"));
    EXPECT_EQ(*Await(*one, key, Soon()).get(), "late");
    full = std::make_unique<NoRoom>();
  }

  one.reset();  // Does not wait for room.
  zero.reset();
  EXPECT_THAT(Await(*Join(1, "full", 100ms), "key").get().status().message(), HasSubstr("rank 1: writing "));
}

TEST_F(FileGroupTest, AddsOfManyProcessesAllCount) {
  constexpr int kEach = 100;
  std::vector<std::unique_ptr<Forked>> adding;
  for (int process = 0; process < 3; ++process) {
    adding.push_back(std::make_unique<Forked>([&](const Say&) {
      const KeyValueStore store = Connect(1, "run7");
      for (int i = 0; i < kEach; ++i) {
        if (!store.add("cairn/run7/sum", 1).ok()) return 1;
      }
      return 0;
    }));
  }

  for (const auto& one : adding) EXPECT_EQ(one->Wait(Soon()).value, 0);

  EXPECT_EQ(*Connect(1, "run7").add("cairn/run7/sum", 0), 3 * kEach);
}

TEST_F(FileGroupTest, ValuesAreSeenWholeAndSetOnce) {
  const KeyValueStore store = Connect(1, "run7");
  const std::string key = "cairn/run7/key";
  EXPECT_TRUE(*store.set_if_absent(key, std::string(100'000, 'a')));
  EXPECT_FALSE(*store.set_if_absent(key, "other"));
  Forked writer([&](const Say& say) {
    say("writes");
    while (true) {
      for (const char c : {'b', 'a'}) {
        if (!store.set(key, std::string(100'000, c)).ok()) return 1;
      }
    }
  });
  EXPECT_EQ(writer.NextLine(Soon()), "writes");

  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(*store.get(key), AnyOf(std::string(100'000, 'a'), std::string(100'000, 'b')));
  }
}

}  // namespace
}  // namespace cairn
