#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "group/fake_store.h"
#include "group/group_futures.h"
#include "group/memory_store.h"
#include "group/solo_group.h"
#include "store/file_group.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

/// Ranks in one process.
class LocalRanks {
 public:
  static constexpr int kMany = 1000;
  explicit LocalRanks(int size) : ends_(MakeLocalGroup(size)) {}
  Group& operator[](int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  void Break(const Status& why) { ends_.back()->Break(why); }
  void Close(int rank) { ends_[static_cast<std::size_t>(rank)].reset(); }

 private:
  std::vector<std::shared_ptr<LocalGroup>> ends_;
};

/// Ranks that are served as Python's threads serve them.
class StoreRanks {
 public:
  static constexpr int kMany = 100;
  explicit StoreRanks(int size) : store_(size) {}
  Group& operator[](int rank) { return store_.of(rank); }
  void Break(const Status& why) {
    for (int rank = 0; rank < store_.size(); ++rank) store_.of(rank).Fail(why);
  }
  void Close(int rank) { store_.of(rank).Stop(); }

 private:
  FakeStore store_;
};

/// Ranks of MakeStoreGroup, each with its own connections.
class LinkedRanks {
 public:
  static constexpr int kMany = 50;
  explicit LinkedRanks(int size) : store_(std::make_shared<MemoryStore>()) {
    for (int rank = 0; rank < size; ++rank) {
      ends_.push_back(*MakeStoreGroup({.rank = rank, .size = size, .name = "/a/root"},
                                      [store = store_] { return store->Connect(); }));
    }
  }
  Group& operator[](int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  void Break(const Status& why) { store_->Lose(why); }
  void Close(int rank) { ends_[static_cast<std::size_t>(rank)].reset(); }

 private:
  const std::shared_ptr<MemoryStore> store_;
  std::vector<std::shared_ptr<Group>> ends_;
};

/// The same over files. To break them, their waits and reads fail.
class FileRanks {
 public:
  static constexpr int kMany = 50;
  explicit FileRanks(int size) {
    for (int rank = 0; rank < size; ++rank) {
      const StoreGroupOptions options = {.rank = rank, .size = size, .name = "/a/root"};
      ends_.push_back(*MakeStoreGroup(options, [connect = ConnectFiles(dir_ / "group", options), broken = broken_] {
        Result<KeyValueStore> store = connect();
        const auto is_broken = [broken] {
          return broken.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
        };
        store->wait = [=, wait = store->wait](const std::string& key, std::chrono::milliseconds) -> Result<bool> {
          return is_broken() ? broken.get() : wait(key, kSoon);
        };
        store->get = [=, get = store->get](const std::string& key) -> Result<std::string> {
          return is_broken() ? broken.get() : get(key);
        };
        return store;
      }));
    }
  }
  Group& operator[](int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  void Break(const Status& why) { break_.set_value(why); }
  void Close(int rank) { ends_[static_cast<std::size_t>(rank)].reset(); }

 private:
  const TempDir dir_;
  std::promise<Status> break_;
  const std::shared_future<Status> broken_ = break_.get_future().share();
  std::vector<std::shared_ptr<Group>> ends_;
};

// The contract of every Group.
template <typename Ranks>
class GroupContract : public testing::Test {
 protected:
  void Open(int size) { ranks_.emplace(size); }
  Group& operator[](int rank) { return (*ranks_)[rank]; }
  // Waits until everything that `rank` has sent has arrived.
  void Flush(int rank) {
    const std::string key = "flushed " + std::to_string(flushed_++);
    if (rank == 0) {
      (*this)[0].Announce(key, "");
      for (int other = 1; other < (*this)[0].size(); ++other) ASSERT_TRUE(Await((*this)[other], key).get().ok());
      return;
    }
    auto collected = Collect((*this)[0], key);
    for (int other = 1; other < (*this)[0].size(); ++other) (*this)[other].Send(key, "");
    ASSERT_TRUE(collected.get().end.ok());
  }

  std::optional<Ranks> ranks_;
  int flushed_ = 0;
};
using Implementations = testing::Types<LocalRanks, StoreRanks, LinkedRanks, FileRanks>;
TYPED_TEST_SUITE(GroupContract, Implementations);

TYPED_TEST(GroupContract, RanksCountFromZeroAndKnowTheGroupSize) {
  this->Open(3);

  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ((*this)[rank].rank(), rank);
    EXPECT_EQ((*this)[rank].size(), 3);
  }
}

TYPED_TEST(GroupContract, CoordinatorCollectsFromEveryOtherRank) {
  this->Open(3);
  auto collected = Collect((*this)[0], "key");

  (*this)[1].Send("key", "one");
  (*this)[2].Send("key", "two");

  const Collected result = collected.get();
  EXPECT_TRUE(result.end.ok()) << result.end;
  EXPECT_THAT(result.by_rank(3), ElementsAre("", "one", "two"));
}

TYPED_TEST(GroupContract, EveryOtherRankReceivesAnnouncements) {
  this->Open(3);
  auto one = Await((*this)[1], "key");
  auto two = Await((*this)[2], "key");

  (*this)[0].Announce("key", "all");

  EXPECT_EQ(*one.get(), "all");
  EXPECT_EQ(*two.get(), "all");
}

TYPED_TEST(GroupContract, EarlyMessagesAreKeptUntilAwaited) {
  this->Open(3);

  (*this)[1].Send("sent", "one");
  (*this)[2].Send("sent", "two");
  this->Flush(1);
  (*this)[0].Announce("announced", "all");
  this->Flush(0);

  EXPECT_THAT(Collect((*this)[0], "sent").get().by_rank(3), ElementsAre("", "one", "two"));
  EXPECT_EQ(*Await((*this)[2], "announced").get(), "all");
}

TYPED_TEST(GroupContract, KeysMayBeUsedInDifferentOrders) {
  this->Open(3);
  auto a = Collect((*this)[0], "a");
  auto b = Collect((*this)[0], "b");

  for (const char* key : {"a", "b"}) (*this)[1].Send(key, key);
  for (const char* key : {"b", "a"}) (*this)[2].Send(key, key);

  EXPECT_THAT(b.get().by_rank(3), ElementsAre("", "b", "b"));
  EXPECT_THAT(a.get().by_rank(3), ElementsAre("", "a", "a"));
}

TYPED_TEST(GroupContract, MessagesOfAnySizeAndContentArrive) {
  this->Open(2);
  const std::string large(3 << 20, '\xff');
  const std::string zeros(17, '\0');

  (*this)[1].Send("large", large);
  (*this)[0].Announce("zeros", zeros);

  EXPECT_EQ(Collect((*this)[0], "large").get().messages.at(0).second, large);
  EXPECT_EQ(*Await((*this)[1], "zeros").get(), zeros);
}

TYPED_TEST(GroupContract, RanksMissingAtTheDeadlineAreNamed) {
  this->Open(5);
  (*this)[1].Send("key", "one");
  (*this)[3].Send("key", "three");
  this->Flush(1);

  const auto begun = Deadline::Clock::now();
  const Collected result = Collect((*this)[0], "key", Deadline::In(kSoon)).get();

  EXPECT_GE(Deadline::Clock::now() - begun, kSoon);
  EXPECT_EQ(result.end.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(result.end.message(), HasSubstr("\"key\" from 5 ranks: nothing from ranks 2, 4"));
  EXPECT_THAT(result.by_rank(5), ElementsAre("", "one", "", "three", ""));
}

TYPED_TEST(GroupContract, MissingAnnouncementIsAnErrorAfterTheDeadline) {
  this->Open(2);

  const Result<std::string> message = Await((*this)[1], "key", Deadline::In(kSoon)).get();

  EXPECT_EQ(message.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(message.status().message(), HasSubstr("\"key\": nothing from rank 0"));
}

TYPED_TEST(GroupContract, DeadlineEndsOnlyItsWait) {
  this->Open(2);
  auto later = Collect((*this)[0], "later", Deadline::In(std::chrono::hours(1)));
  auto never = Collect((*this)[0], "never");

  EXPECT_FALSE(Collect((*this)[0], "soon", Deadline::In(kSoon)).get().end.ok());

  for (const char* key : {"later", "never"}) (*this)[1].Send(key, "message");
  EXPECT_TRUE(later.get().end.ok());
  EXPECT_TRUE(never.get().end.ok());
}

TYPED_TEST(GroupContract, MessagesAfterTheDeadlineAreDropped) {
  this->Open(2);
  EXPECT_FALSE(Collect((*this)[0], "sent", Deadline::In(kSoon)).get().end.ok());
  EXPECT_FALSE(Await((*this)[1], "announced", Deadline::In(kSoon)).get().ok());

  (*this)[1].Send("sent", "late");
  (*this)[0].Announce("announced", "late");
  this->Flush(1);
  this->Flush(0);

  EXPECT_FALSE(Collect((*this)[0], "sent", Deadline::In(kSoon)).get().end.ok());
  EXPECT_FALSE(Await((*this)[1], "announced", Deadline::In(kSoon)).get().ok());
}

TYPED_TEST(GroupContract, LeavingRankEndsWaitsForIt) {
  this->Open(4);
  auto under_way = Collect((*this)[0], "under way");
  (*this)[1].Send("under way", "one");
  this->Flush(1);

  this->ranks_->Close(2);

  const Collected result = under_way.get();
  EXPECT_EQ(result.end.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(result.end.message(), HasSubstr("rank 2 closed"));
  EXPECT_THAT(result.by_rank(4), ElementsAre("", "one", "", ""));
  EXPECT_THAT(Collect((*this)[0], "after").get().end.message(), HasSubstr("rank 2 closed"));
}

TYPED_TEST(GroupContract, MessagesSentBeforeLeavingCount) {
  this->Open(3);
  (*this)[1].Send("key", "one");
  (*this)[1].Send("other", "one");
  this->ranks_->Close(1);
  auto collected = Collect((*this)[0], "key");

  (*this)[2].Send("key", "two");

  const Collected result = collected.get();
  EXPECT_TRUE(result.end.ok()) << result.end;
  EXPECT_THAT(result.by_rank(3), ElementsAre("", "one", "two"));
}

TYPED_TEST(GroupContract, LeavingCoordinatorEndsTheOthersWaits) {
  this->Open(3);
  auto under_way = Await((*this)[1], "under way");
  (*this)[0].Announce("before", "message");

  this->ranks_->Close(0);

  EXPECT_EQ(under_way.get().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Await((*this)[2], "after").get().status().message(), HasSubstr("rank 0 closed"));
  EXPECT_EQ(*Await((*this)[1], "before").get(), "message");
}

TYPED_TEST(GroupContract, BrokenGroupEndsEveryWaitWithTheReason) {
  this->Open(3);
  auto collected = Collect((*this)[0], "sent");
  auto awaited = Await((*this)[1], "announced");

  this->ranks_->Break(Status(StatusCode::kIoError, "the store is gone"));

  EXPECT_THAT(collected.get().end.message(), HasSubstr("the store is gone"));
  EXPECT_THAT(awaited.get().status().message(), HasSubstr("the store is gone"));
  (*this)[1].Send("later", "");
  (*this)[0].Announce("later", "");
  EXPECT_EQ(Collect((*this)[0], "later").get().end.code(), StatusCode::kIoError);
  EXPECT_EQ(Await((*this)[2], "later").get().status().code(), StatusCode::kIoError);
}

TYPED_TEST(GroupContract, KeyUsedTwiceIsRefused) {
  this->Open(2);
  auto first = Collect((*this)[0], "key");

  EXPECT_EQ(Collect((*this)[0], "key").get().end.code(), StatusCode::kInternal);

  (*this)[1].Send("key", "message");
  EXPECT_TRUE(first.get().end.ok());
}

TYPED_TEST(GroupContract, CallbacksMayCallTheGroup) {
  this->Open(2);
  std::promise<Status> done;
  Group& zero = (*this)[0];
  Group& one = (*this)[1];

  // Callbacks answer a message with an announcement, and the announcement with a message.
  zero.Collect(
      "first", Deadline::Infinite(),
      [&](int /*rank*/, const std::string& message) { zero.Announce("second", message + "2"); },
      [&](const Status& end) {
        EXPECT_TRUE(end.ok());
        zero.Collect(
            "third", Deadline::Infinite(), [&](int /*rank*/, const std::string& message) { EXPECT_EQ(message, "123"); },
            [&](const Status& last) { done.set_value(last); });
      });
  one.Await("second", Deadline::Infinite(),
            [&](const Result<std::string>& message) { one.Send("third", *message + "3"); });
  one.Send("first", "1");

  EXPECT_TRUE(done.get_future().get().ok());
}

TYPED_TEST(GroupContract, DestructorCancelsWaits) {
  this->Open(2);
  auto collected = Collect((*this)[0], "sent");
  auto awaited = Await((*this)[1], "announced", Deadline::In(std::chrono::hours(1)));

  this->ranks_.reset();

  EXPECT_THAT(collected.get().end.code(), testing::AnyOf(StatusCode::kCancelled, StatusCode::kFailedPrecondition));
  EXPECT_THAT(awaited.get().status().code(), testing::AnyOf(StatusCode::kCancelled, StatusCode::kFailedPrecondition));
}

TYPED_TEST(GroupContract, NoCallbackRunsAfterDestruction) {
  for (int round = 0; round < 50; ++round) {
    this->Open(2);
    auto alive = std::make_unique<int>(0);  // Lets sanitizers detect a late callback.
    for (int i = 0; i < 10; ++i) {
      (*this)[0].Collect(
          std::to_string(i), Deadline::In(std::chrono::microseconds(20 * i)), [](int /*rank*/, const std::string&) {},
          [&alive](const Status& /*end*/) { ++*alive; });
    }

    this->ranks_->Close(0);

    EXPECT_EQ(*alive, 10);
    alive.reset();
  }
}

TYPED_TEST(GroupContract, EachOfManyRanksIsCollectedOnceAndReceivesTheAnswer) {
  const int many = TypeParam::kMany;
  this->Open(many);
  auto collected = Collect((*this)[0], "key");
  std::vector<std::future<Result<std::string>>> awaited;

  for (int rank = 1; rank < many; ++rank) {
    (*this)[rank].Send("key", std::to_string(rank));
    awaited.push_back(Await((*this)[rank], "answer"));
  }
  const Collected result = collected.get();
  (*this)[0].Announce("answer", "all");

  ASSERT_EQ(result.messages.size(), static_cast<std::size_t>(many - 1));
  const std::vector<std::string> messages = result.by_rank(many);
  for (int rank = 1; rank < many; ++rank) EXPECT_EQ(messages[static_cast<std::size_t>(rank)], std::to_string(rank));
  for (auto& answer : awaited) EXPECT_EQ(*answer.get(), "all");
}

TYPED_TEST(GroupContract, ThreadsMayCallAtOnce) {
  constexpr int kRounds = 100;
  this->Open(4);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 4; ++rank) {
    threads.emplace_back([this, rank] {
      for (int i = 0; i < kRounds; ++i) {
        (*this)[rank].Send("sent/" + std::to_string(i), std::to_string(rank));
        EXPECT_EQ(*Await((*this)[rank], "announced/" + std::to_string(i)).get(), std::to_string(i));
      }
    });
  }

  for (int i = 0; i < kRounds; ++i) {
    EXPECT_THAT(Collect((*this)[0], "sent/" + std::to_string(i)).get().by_rank(4), ElementsAre("", "1", "2", "3"));
    (*this)[0].Announce("announced/" + std::to_string(i), std::to_string(i));
  }

  for (std::thread& thread : threads) thread.join();
}

TEST(LocalGroup, MessagesArriveInOrder) {
  const auto ranks = MakeLocalGroup(4);
  auto collected = Collect(*ranks[0], "key");

  for (const int rank : {2, 3, 1}) ranks[static_cast<std::size_t>(rank)]->Send("key", "message");

  EXPECT_THAT(collected.get().messages, ElementsAre(Pair(2, "message"), Pair(3, "message"), Pair(1, "message")));
}

TEST(StoreGroup, MessagesSentBeforeStopAreDelivered) {
  StoreGroup group(1, 2);
  group.Send("key", "message");

  group.Stop();
  group.Send("key", "after");

  const Result<StoreGroup::Message> message = group.NextMessage(Deadline::Infinite());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->text, "message");
  EXPECT_EQ(group.NextMessage(Deadline::Infinite()).status().code(), StatusCode::kCancelled);
}

TEST(StoreGroup, StoreIsPolledOnlyDuringAWait) {
  StoreGroup group(1, 2);
  EXPECT_EQ(group.WaitUntilWanted(Deadline::In(kSoon)).code(), StatusCode::kDeadlineExceeded);

  auto wanted = std::async(std::launch::async, [&] { return group.WaitUntilWanted(Deadline::Infinite()); });
  auto message = Await(group, "key");
  EXPECT_TRUE(wanted.get().ok());
  group.Hear(0, "key", "message");

  EXPECT_EQ(*message.get(), "message");
  EXPECT_EQ(group.WaitUntilWanted(Deadline::In(kSoon)).code(), StatusCode::kDeadlineExceeded);
  group.Stop();
  EXPECT_EQ(group.WaitUntilWanted(Deadline::Infinite()).code(), StatusCode::kCancelled);
}

TEST(SoloGroup, CollectsNothing) {
  SoloGroup solo;

  solo.Announce("key", "message");

  EXPECT_EQ(solo.rank(), 0);
  EXPECT_EQ(solo.size(), 1);
  EXPECT_TRUE(Collect(solo, "key").get().end.ok());
  EXPECT_FALSE(Await(solo, "key").get().ok());
}

}  // namespace
}  // namespace cairn
