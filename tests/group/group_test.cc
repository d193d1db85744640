#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "group/local_group.h"
#include "group/solo_group.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct SoloFactory {
  static std::vector<std::shared_ptr<Group>> Make() { return {std::make_shared<SoloGroup>()}; }
};
struct LocalFactory {
  static std::vector<std::shared_ptr<Group>> Make() { return MakeLocalGroup(3); }
};

// What every Group promises.
template <typename Factory>
class GroupContract : public testing::Test {
 protected:
  using Answer = Result<std::vector<std::string>>;

  std::future<Answer> Gather(Group& group, const std::string& key, std::string bytes,
                             Deadline deadline = Deadline::Infinite()) {
    auto promise = std::make_shared<std::promise<Answer>>();
    group.AllGather(key, std::move(bytes), deadline,
                    [promise](Answer answer) { promise->set_value(std::move(answer)); });
    return promise->get_future();
  }

  std::vector<std::shared_ptr<Group>> ranks_ = Factory::Make();
};
using Factories = testing::Types<SoloFactory, LocalFactory>;
TYPED_TEST_SUITE(GroupContract, Factories);

TYPED_TEST(GroupContract, RanksCountFromZeroAndKnowTheirNumber) {
  for (std::size_t i = 0; i < this->ranks_.size(); ++i) {
    EXPECT_EQ(this->ranks_[i]->rank(), static_cast<int>(i));
    EXPECT_EQ(this->ranks_[i]->size(), static_cast<int>(this->ranks_.size()));
  }
}

TYPED_TEST(GroupContract, EveryRankHearsWhatEveryRankSaid) {
  std::vector<std::future<Result<std::vector<std::string>>>> heard;
  std::vector<std::string> expected;
  for (const auto& rank : this->ranks_) {
    expected.push_back("word of " + std::to_string(rank->rank()));
    heard.push_back(this->Gather(*rank, "key", expected.back()));
  }

  for (auto& one : heard) {
    const auto answer = one.get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(*answer, expected);
  }
}

TYPED_TEST(GroupContract, KeysMayBeGivenInDifferentOrders) {
  std::vector<std::future<Result<std::vector<std::string>>>> a;
  std::vector<std::future<Result<std::vector<std::string>>>> b;
  for (const auto& rank : this->ranks_) {
    const bool first = rank->rank() % 2 == 0;
    if (first) a.push_back(this->Gather(*rank, "a", "x"));
    b.push_back(this->Gather(*rank, "b", "y"));
    if (!first) a.push_back(this->Gather(*rank, "a", "x"));
  }

  for (auto& one : a) EXPECT_EQ(one.get()->front(), "x");
  for (auto& one : b) EXPECT_EQ(one.get()->front(), "y");
}

TEST(LocalGroup, NamesTheRanksThatWereNotHeardByTheDeadline) {
  const auto ranks = MakeLocalGroup(3);
  std::promise<Status> heard;

  ranks[1]->AllGather("key", "here", Deadline::In(std::chrono::milliseconds(1)),
                      [&heard](const auto& answer) { heard.set_value(answer.status()); });

  const Status status = heard.get_future().get();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("rank 0, 2"));
}

TEST(LocalGroup, GathersFromManyThreadsAtOnce) {
  const auto ranks = MakeLocalGroup(4);
  std::atomic<int> complete{0};
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&rank, &complete] {
      for (int i = 0; i < 100; ++i) {
        rank->AllGather(std::to_string(i), std::to_string(rank->rank()), Deadline::Infinite(),
                        [&complete](const auto& answer) {
                          EXPECT_THAT(*answer, ElementsAre("0", "1", "2", "3"));
                          ++complete;
                        });
      }
    });
  }

  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complete, 400);
}

}  // namespace
}  // namespace cairn
