// Who of a job's ranks is gone, as the others learn it.
#include "ranks/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "group/memory_store.h"
#include "support/forked.h"

namespace cairn::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

class PeersTest : public testing::Test {
 protected:
  /// A rank on another machine, whose process cannot be watched.
  std::unique_ptr<Peers> Join(int rank, std::chrono::nanoseconds patience = 100ms) {
    const std::string host = "host-" + std::to_string(rank);
    return std::make_unique<Peers>(store_->Connect(), rank, 3, ProcessPlace{host, host, 7}, patience);
  }
  /// All three, the first with this patience.
  std::vector<std::unique_ptr<Peers>> JoinAll(std::chrono::nanoseconds patience) {
    auto one = std::async(std::launch::async, [this] { return Join(1, 1min); });
    auto two = std::async(std::launch::async, [this] { return Join(2, 1min); });
    std::vector<std::unique_ptr<Peers>> all;
    store_->AwaitWaiting("place/0");
    all.push_back(std::make_unique<Peers>(store_->Connect(), 0, 3, ThisProcess(), 1min));
    all.push_back(one.get());
    all.push_back(two.get());
    all[0] = std::make_unique<Peers>(store_->Connect(), 0, 3, ThisProcess(), patience);
    return all;
  }

  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
};

TEST_F(PeersTest, RanksThatDoNotComeAreNamed) {
  try {
    Join(1);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0; rank 2: not started within 0 s"));
  }
}

TEST_F(PeersTest, RankThatDoesNotAnswerIsNamed) {
  const auto all = JoinAll(100ms);
  static_cast<void>(store_->Set("end/1", "others"));

  EXPECT_EQ(all[0]->DescribeGone(), "rank 2 (process 7 on host-2) does not answer");
}

TEST_F(PeersTest, ErrorOfARankIsPassedOn) {
  const auto all = JoinAll(1min);
  all[2]->Leave("the loss is not finite");
  static_cast<void>(store_->Set("end/1", "others"));

  EXPECT_EQ(all[0]->DescribeGone(), "rank 2 (process 7 on host-2) failed: the loss is not finite");
}

TEST_F(PeersTest, LostStoreAccusesNoRankOfAnotherMachine) {
  const auto all = JoinAll(1min);
  store_->Lose(Status(StatusCode::kIoError, "connection refused"));

  const std::string gone = all[0]->DescribeGone();

  EXPECT_THAT(gone, HasSubstr("the store of the ranks is lost"));
  EXPECT_THAT(gone, HasSubstr("connection refused"));
  EXPECT_THAT(gone, Not(HasSubstr("rank 1")));
}

TEST_F(PeersTest, EndOfARankThatTookTheStoreWithItIsNotCalledACrash) {
  Forked child([](const Say&) { return ::pause(); });
  const ProcessPlace here = ThisProcess();
  static_cast<void>(
      store_->Set("place/0", here.numbering + " " + std::to_string(child.pid()) + " " + here.host + " 2"));
  Peers one(store_->Connect(), 1, 2, here, 1h);

  store_->Lose(Status(StatusCode::kIoError, "connection refused"));
  child.Kill();

  EXPECT_THAT(one.DescribeGone(), HasSubstr(" has ended: see its output"));
}

template <typename Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

TEST_F(PeersTest, SecondProcessOfTheSameRankIsRefused) {
  const auto all = JoinAll(1min);

  EXPECT_THAT(ErrorOf([&] {
                Peers(store_->Connect(), 1, 3, ProcessPlace{"host-9", "host-9", 8}, 1min);
              }),
              HasSubstr("rank 1 is process 7 on host-1 already"));
}

TEST_F(PeersTest, RankThatWasToldAnotherWorldIsNamed) {
  static_cast<void>(store_->Set("place/0", "elsewhere 7 host-0 2"));

  EXPECT_EQ(ErrorOf([&] { Join(1); }), "rank 0 (process 7 on host-0): expected this rank's WORLD_SIZE, 3, found 2");
}

TEST_F(PeersTest, SettingThatDiffersFromRank0sIsNamed) {
  const auto all = JoinAll(1min);
  all[0]->ExpectAlike({{"--lr", "0.1"}, {"--seed", "1"}});

  EXPECT_EQ(ErrorOf([&] { all[1]->ExpectAlike({{"--lr", "0.1"}, {"--seed", "1"}}); }), "none");
  EXPECT_EQ(ErrorOf([&] {
              all[2]->ExpectAlike({{"--lr", "0.1"}, {"--seed", "2"}});
            }),
            "expected rank 0's --seed 1, found --seed 2");
}

TEST_F(PeersTest, DeathOfAProcessOfThisMachineIsKnownAtOnce) {
  Forked child([](const Say&) { return ::pause(); });
  const ProcessPlace here = ThisProcess();
  static_cast<void>(
      store_->Set("place/1", here.numbering + " " + std::to_string(child.pid()) + " " + here.host + " 2"));
  Peers zero(store_->Connect(), 0, 2, here, 1h);
  const int never = ::eventfd(0, EFD_CLOEXEC);

  child.Kill();

  EXPECT_FALSE(zero.AwaitReadable(never));
  EXPECT_EQ(zero.DescribeGone(),
            "rank 1 (process " + std::to_string(child.pid()) + " on " + here.host + ") was killed or has crashed");
  ::eventfd_write(never, 1);
  EXPECT_TRUE(zero.AwaitReadable(never));
  ::close(never);
}

TEST_F(PeersTest, WhatARankHasSentBeforeItEndedIsWaitedFor) {
  Forked child([](const Say&) { return ::pause(); });
  const ProcessPlace here = ThisProcess();
  static_cast<void>(
      store_->Set("place/1", here.numbering + " " + std::to_string(child.pid()) + " " + here.host + " 2"));
  Peers zero(store_->Connect(), 0, 2, here, 1h);
  const int done = ::eventfd(0, EFD_CLOEXEC);
  auto waited = std::async(std::launch::async, [&] { return zero.AwaitReadable(done); });

  child.Kill();
  EXPECT_TRUE(child.AwaitDeath(Deadline::In(1min)));
  ::eventfd_write(done, 1);

  EXPECT_TRUE(waited.get());
  ::close(done);
}

TEST_F(PeersTest, WaitEndsAfterThePatience) {
  static_cast<void>(store_->Set("place/1", "elsewhere 7 host-1 2"));
  Peers zero(store_->Connect(), 0, 2, ThisProcess(), 50ms);
  const int never = ::eventfd(0, EFD_CLOEXEC);

  EXPECT_FALSE(zero.AwaitReadable(never));
  ::close(never);
}

}  // namespace
}  // namespace cairn::trainer
