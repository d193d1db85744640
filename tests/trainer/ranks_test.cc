// The trainer as a job of several processes, as torchrun starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <random>
#include <set>

#include "cairn/cairn.h"
#include "support/points.h"
#include "testing/temp_dir.h"
#include "trainer/training_process.h"

namespace cairn::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string FreePort() {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(listening);
  return std::to_string(ntohs(address.sin_port));
}

/// All ranks of a job.
class Job {
 public:
  explicit Job(int world, const Words& arguments) {
    const std::string port = FreePort();
    for (int rank = 0; rank < world; ++rank) {
      ranks_.push_back(
          std::make_unique<TrainingProcess>(arguments + Words{"--peer-timeout", "20"},
                                            Words{"RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank),
                                                  "WORLD_SIZE=" + std::to_string(world), "MASTER_ADDR=127.0.0.1",
                                                  "MASTER_PORT=" + port, "GLOO_SOCKET_IFNAME=lo"}));
    }
  }
  TrainingProcess& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  /// The ranks' exit statuses.
  std::vector<int> Finish() {
    std::vector<int> all;
    for (const auto& rank : ranks_) all.push_back(rank->Finish());
    return all;
  }
  [[nodiscard]] std::string output() const {
    std::string all;
    for (const auto& rank : ranks_) all += rank->output();
    return all;
  }

 private:
  std::vector<std::unique_ptr<TrainingProcess>> ranks_;
};

/// "done step=60 weights_crc64=...": the final weights' digest.
std::string LastLine(const std::string& output) { return output.substr(output.rfind("done ")); }

const std::vector<int> kBothTrained = {0, 0};

class TwoRanks : public testing::TestWithParam<Words> {};

TEST_P(TwoRanks, EqualOneThatAccumulatesTwoBitByBit) {
  const TempDir root;
  TrainingProcess one(GetParam() + Words{"--steps", "12", "--accumulate", "2"});
  ASSERT_EQ(one.Finish(), 0) << one.output();

  Job two(2, GetParam() + Words{"--steps", "12"});

  ASSERT_EQ(two.Finish(), kBothTrained) << two.output();
  EXPECT_EQ(two[0].losses(), one.losses());
  EXPECT_EQ(LastLine(two[0].output()), LastLine(one.output()));
}

INSTANTIATE_TEST_SUITE_P(Everything, TwoRanks,
                         testing::Values(Words{"--optimizer", "sgd"},  // With dropout.
                                         Words{"--optimizer", "adamw", "--precision", "bf16", "--clip", "1", "--warmup",
                                               "5"}));

TEST(Ranks, WriteOneCheckpointThatAnyNumberOfThemResumes) {
  const TempDir root;
  const Words arguments = {"--optimizer", "adamw", "--every", "4", "--keep", "0", "--size", "width=4", "--resume"};
  TrainingProcess whole(arguments + Words{"--steps", "24", "--accumulate", "2", "--checkpoint-dir", root / "whole"});
  ASSERT_EQ(whole.Finish(), 0) << whole.output();
  const Words ours = arguments + Words{"--checkpoint-dir", root / "ranks"};

  Job two(2, ours + Words{"--steps", "8"});
  ASSERT_EQ(two.Finish(), kBothTrained) << two.output();
  const auto details = NewestCheckpoint(root / "ranks");
  TrainingProcess one(ours + Words{"--steps", "16", "--accumulate", "2"});
  ASSERT_EQ(one.Finish(), 0) << one.output();
  Job again(2, ours + Words{"--steps", "24"});
  ASSERT_EQ(again.Finish(), kBothTrained) << again.output();

  EXPECT_EQ(LastLine(again[0].output()), LastLine(whole.output()));
  EXPECT_THAT(one.output(), HasSubstr("resumed step=8"));
  EXPECT_EQ(one.output().find("warning"), std::string::npos) << one.output();
  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->info.world, 2U);
  std::multiset<std::string> names;
  for (const TensorInfo& tensor : details->tensors) names.insert(tensor.name);
  for (const std::string& name : names) EXPECT_EQ(names.count(name), 1U) << name;
}

TEST(Ranks, OtherSumsThanOfTwoGradientsAreWarnedOf) {
  const TempDir root;
  const Words arguments = {"--every", "2", "--resume", "--checkpoint-dir", root.path()};
  Job two(2, arguments + Words{"--steps", "2", "--accumulate", "2"});
  ASSERT_EQ(two.Finish(), kBothTrained) << two.output();

  TrainingProcess one(arguments + Words{"--steps", "4", "--accumulate", "4"});

  ASSERT_EQ(one.Finish(), 0) << one.output();
  EXPECT_THAT(one.output(), HasSubstr("the checkpoint's ranks is \"2\", this run's \"1\""));
}

TEST(Ranks, KilledOneIsNamedByTheOthersAndTheJobResumes) {
  const TempDir root;
  const Words arguments = {"--every", "2",  "--resume", "--in-flight", "2",
                           "--steps", "40", "--keep",   "3",           "--checkpoint-dir"};
  Job whole(3, arguments + Words{root / "whole"});
  ASSERT_EQ(whole.Finish(), std::vector<int>(3, 0)) << whole.output();
  const auto seed = std::random_device{}();
  SCOPED_TRACE("random seed " + std::to_string(seed));
  std::mt19937 random(seed);

  for (int round = 0; round < SomeRounds(6); ++round) {
    Job job(3, arguments + Words{root / "killed"});
    const int victim = static_cast<int>(random() % 3);
    // From the first to the last round at any moment, also before the ranks have met.
    if (round > 0) job[0].NextLine("step=");
    const auto until = steady_clock::now() + milliseconds(random() % 400);
    while (job[0].NextLine(std::chrono::duration_cast<milliseconds>(until - steady_clock::now()))) {
    }
    const std::string who = "rank " + std::to_string(victim) + " (process " + std::to_string(job[victim].pid());

    job[victim].Kill();

    const auto killed = steady_clock::now();
    const std::vector<int> ends = job.Finish();
    // The patience, 20 s. If rank 0 dies between two connections to its store, c10d takes up to three times as long.
    EXPECT_LT(steady_clock::now() - killed, std::chrono::seconds(60)) << job.output();
    if (ends[static_cast<std::size_t>(victim)] == 0) continue;  // It had trained to the end.
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim || ends[static_cast<std::size_t>(rank)] == 0) continue;
      EXPECT_EQ(ends[static_cast<std::size_t>(rank)], 1) << job.output();
      EXPECT_THAT(job[rank].output(),
                  AnyOf(HasSubstr(who), HasSubstr("rank " + std::to_string(victim) + ": not started"),
                        HasSubstr("at 127.0.0.1")))
          << "rank " << rank;
    }
  }
  Job last(3, arguments + Words{root / "killed"});

  ASSERT_EQ(last.Finish(), std::vector<int>(3, 0)) << last.output();
  EXPECT_EQ(LastLine(last[0].output()), LastLine(whole[0].output()));
  for (const auto& [step, loss] : last[0].losses()) EXPECT_EQ(loss, whole[0].losses().at(step)) << "step " << step;
}

TEST(Ranks, SignalToOneEndsAllAfterTheSameStepWithACheckpoint) {
  const TempDir root;
  Job job(2, {"--steps", "1000000", "--every", "1000000", "--checkpoint-dir", root.path()});
  ASSERT_TRUE(job[0].NextLine("step=2 ")) << job.output();

  job[1].Signal(SIGTERM);

  EXPECT_EQ(job.Finish(), (std::vector<int>{3, 3})) << job.output();
  const auto details = NewestCheckpoint(root.path());
  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_THAT(job[0].output(), HasSubstr("stopped step=" + std::to_string(details->info.step)));
}

TEST(Ranks, ErrorOfOneIsToldByTheOthers) {
  const TempDir root;
  const std::string port = FreePort();
  const auto of = [&](int rank) {
    return Words{"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                 "GLOO_SOCKET_IFNAME=lo"};
  };
  TrainingProcess good({"--checkpoint-dir", root / "a"}, of(0));
  TrainingProcess bad({"--data", "/nowhere"}, of(1));
  const std::string named = "rank 1 (process " + std::to_string(bad.pid());

  EXPECT_EQ(bad.Finish(), 1);
  EXPECT_EQ(good.Finish(), 1);

  EXPECT_THAT(bad.output(), HasSubstr("cairn_train: rank 1: --data /nowhere"));
  EXPECT_THAT(good.output(), HasSubstr("cairn_train: rank 0: " + named));
  EXPECT_THAT(good.output(), HasSubstr("failed: see its output"));
}

TEST(Ranks, OtherFlagsThanRank0sAreRefused) {
  for (const Words& other : {Words{"--seed", "9"}, Words{"--every", "3"}, Words{"--size", "width=4"}}) {
    const std::string port = FreePort();
    const auto of = [&](int rank) {
      return Words{"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                   "GLOO_SOCKET_IFNAME=lo"};
    };
    TrainingProcess first({"--steps", "2"}, of(0));
    TrainingProcess second(Words{"--steps", "2"} + other, of(1));

    EXPECT_EQ(second.Finish(), 1) << second.output();
    EXPECT_EQ(first.Finish(), 1) << first.output();

    EXPECT_THAT(second.output(), HasSubstr("expected rank 0's " + other[0]));
    EXPECT_THAT(first.output(), HasSubstr("failed: expected rank 0's " + other[0]));
  }
}

TEST(Ranks, RankWhoseStoreNeverComesEndsWithinThePatience) {
  const auto begun = steady_clock::now();
  TrainingProcess one({"--peer-timeout", "5"},
                      {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + FreePort()});

  EXPECT_EQ(one.Finish(), 1);

  EXPECT_LT(steady_clock::now() - begun, std::chrono::seconds(8)) << one.output();
  EXPECT_THAT(one.output(), HasSubstr("rank 1 of 2 at 127.0.0.1"));
}

TEST(Ranks, WrongEnvironmentIsRefused) {
  const auto refused = [](const Words& environment, const std::string& why) {
    TrainingProcess training({"--steps", "1"}, environment);
    EXPECT_EQ(training.Finish(), 1);
    EXPECT_THAT(training.output(), HasSubstr(why));
  };

  refused({"WORLD_SIZE=2"}, "the environment's RANK: expected a number from 0 to 1, found none");
  refused({"WORLD_SIZE=2", "RANK=2"}, "RANK: expected a number from 0 to 1, found 2");
  refused({"WORLD_SIZE=x"}, "WORLD_SIZE: expected a number");
  TrainingProcess alone({"--prove-backend"});
  EXPECT_EQ(alone.Finish(), 1);
  EXPECT_THAT(alone.output(), HasSubstr("--prove-backend: expected the environment of torchrun"));
  refused({"WORLD_SIZE=2", "RANK=0"}, "MASTER_ADDR: expected the host of rank 0, found none");
}

TEST(Ranks, MemoryOfStreamsIsRefused) {
  Job job(2, {"--model", "transformer-xl-base", "--data", "synthetic", "--sequence", "4", "--size", "hidden=64",
              "layers=2", "heads=4", "head_size=16", "ffn=64", "memory=16", "vocabulary=500", "cutoff1=100",
              "cutoff2=200", "cutoff3=300"});

  EXPECT_EQ(job.Finish(), (std::vector<int>{1, 1}));
  EXPECT_THAT(job[0].output(), HasSubstr("its memory follows the batches of one process: expected 1 rank, found 2"));
}

TEST(Ranks, ProveThatTheBackendMovesBytes) {
  Job job(2, {"--prove-backend"});

  EXPECT_EQ(job.Finish(), kBothTrained) << job.output();
  EXPECT_THAT(job[0].output(), HasSubstr("backend ok: 2 ranks"));
}

}  // namespace
}  // namespace cairn::trainer
