// What a group of MakeStoreGroup promises beyond every group's contract: openings, deaths, lost and hanging stores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "group/group_futures.h"
#include "group/memory_store.h"
#include "group/store_entry.h"

namespace cairn {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Connect = std::function<Result<KeyValueStore>()>;

class StoreLinkTest : public testing::Test {
 protected:
  std::shared_ptr<Group> Join(int rank, int size, Connect connect = nullptr) {
    StoreGroupOptions options = {.rank = rank, .size = size, .name = "run7"};
    options.open_timeout = open_deadline_;
    options.close_timeout = close_deadline_;
    if (!connect) connect = [store = store_] { return store->Connect(); };
    return *MakeStoreGroup(options, connect);
  }
  /// The prefix of the session's keys, once the ranks have met.
  std::string Session() {
    for (const auto& [key, value] : store_->contents()) {
      if (const auto at = key.find("/inbox"); at != std::string::npos) return key.substr(0, at);
    }
    ADD_FAILURE() << "no session";
    return "";
  }

  [[nodiscard]] std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : store_->contents()) keys.push_back(key);
    return keys;
  }
  void AwaitKey(const std::string& key) { EXPECT_TRUE(*store_->Wait(key, Deadline::In(std::chrono::seconds(20)))); }
  /// Rank 1, the first that asks, has heard rank 0's answer.
  void AwaitAnswered() {
    store_->AwaitWaiting("welcome");
    while (*store_->Check("cairn/run7/hello/1")) std::this_thread::yield();
  }

  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::chrono::nanoseconds open_deadline_ = std::chrono::minutes(1);
  std::chrono::nanoseconds close_deadline_ = std::chrono::minutes(1);
};

TEST_F(StoreLinkTest, EveryKeyIsRemovedOnceAllRanksHaveClosed) {
  std::vector<std::shared_ptr<Group>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(Join(rank, 3));
  auto collected = Collect(*ranks[0], "sent");
  for (const int rank : {1, 2}) ranks[static_cast<std::size_t>(rank)]->Send("sent", "message");
  EXPECT_TRUE(collected.get().end.ok());
  ranks[0]->Announce("announced", "message");
  EXPECT_TRUE(Await(*ranks[1], "announced").get().ok());
  ranks[2]->Send("nobody reads this", "message");

  for (const std::size_t rank : {1U, 0U, 2U}) ranks[rank].reset();

  EXPECT_THAT(store_->contents(), IsEmpty());
}

TEST_F(StoreLinkTest, GroupThatIsMadeAgainReadsNoOldMessages) {
  {
    const auto zero = Join(0, 2);
    const auto one = Join(1, 2);
    one->Send("key", "old");
    EXPECT_TRUE(Collect(*zero, "key").get().end.ok());
  }
  const auto zero = Join(0, 2);
  const auto one = Join(1, 2);

  one->Send("key", "new");

  EXPECT_THAT(Collect(*zero, "key").get().by_rank(2), ElementsAre("", "new"));
}

TEST_F(StoreLinkTest, MessageOfARankThatDiedWhileItSentItIsPassedOver) {
  const auto zero = Join(0, 3);
  const auto one = Join(1, 3);
  close_deadline_ = kSoon;
  // Counts its message, and writes nothing.
  auto dying = Join(2, 3, [this] {
    KeyValueStore store = store_->Connect();
    store.set_if_absent = [](const std::string&, const std::string&) { return Status(StatusCode::kIoError, "killed"); };
    return store;
  });
  dying->Send("key", "never");
  EXPECT_THAT(Await(*dying, "broken").get().status().message(), HasSubstr("killed"));

  one->Send("key", "one");

  std::promise<std::string> heard;
  zero->Collect(
      "key", Deadline::Infinite(),
      [&](int rank, const std::string& message) { heard.set_value(std::to_string(rank) + ": " + message); },
      [](const Status&) {});
  EXPECT_EQ(heard.get_future().get(), "1: one");
}

TEST_F(StoreLinkTest, RanksThatDoNotComeAreNamed) {
  close_deadline_ = kSoon;
  const auto two = Join(2, 4);
  store_->AwaitWaiting("welcome");  // It has said that it is there, and outlasts the others.
  open_deadline_ = std::chrono::milliseconds(100);
  const auto zero = Join(0, 4);

  const Status end = Collect(*zero, "key").get().end;

  EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(end.message(), HasSubstr("run7: not opened by rank 1, 3 within 0.1 s"));
}

TEST_F(StoreLinkTest, CoordinatorThatDoesNotComeIsNamed) {
  open_deadline_ = std::chrono::milliseconds(100);
  const auto one = Join(1, 2);

  const Status end = Await(*one, "key").get().status();

  EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(end.message(), HasSubstr("run7: rank 0 did not open it within 0.1 s"));
}

TEST_F(StoreLinkTest, RankThatDiedWhileItOpenedIsReplacedByItsSuccessor) {
  EXPECT_TRUE(store_->Set("cairn/run7/hello/1", "killed of 3").ok());
  const auto zero = Join(0, 3);
  AwaitKey("cairn/run7/welcome/killed");

  const auto one = Join(1, 3);
  const auto two = Join(2, 3);
  one->Send("key", "one");
  two->Send("key", "two");

  EXPECT_THAT(Collect(*zero, "key", Deadline::In(std::chrono::seconds(20))).get().by_rank(3),
              ElementsAre("", "one", "two"));
}

TEST_F(StoreLinkTest, RankThatDiedWhileItOpenedAndNeverComesAgainIsNamed) {
  open_deadline_ = std::chrono::milliseconds(100);
  EXPECT_TRUE(store_->Set("cairn/run7/hello/1", "killed of 2").ok());
  auto zero = Join(0, 2);

  const Status end = Collect(*zero, "key").get().end;

  EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(end.message(), HasSubstr("not opened by rank 1 within 0.1 s"));
  zero.reset();
  EXPECT_THAT(Keys(), Not(Contains(HasSubstr("welcome"))));
}

TEST_F(StoreLinkTest, RankThatDiedWhileItOpenedIsNamedWithThoseThatDoNotCome) {
  open_deadline_ = std::chrono::milliseconds(100);
  EXPECT_TRUE(store_->Set("cairn/run7/hello/1", "killed of 3").ok());
  const auto zero = Join(0, 3);

  EXPECT_THAT(Collect(*zero, "key").get().end.message(), HasSubstr("not opened by rank 1, 2 within 0.1 s"));
}

TEST_F(StoreLinkTest, RankOfAGroupOfAnotherSizeIsRefused) {
  const auto zero = Join(0, 2);
  const auto one = Join(1, 3);

  const Status at_zero = Collect(*zero, "key").get().end;
  const Status at_one = Await(*one, "key").get().status();

  for (const Status& status : {at_zero, at_one}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("run7: rank 0 opened it with 2 ranks, rank 1 with 3"));
  }
}

TEST_F(StoreLinkTest, RankOfAnotherSizeThatDiedIsReplacedByItsSuccessor) {
  EXPECT_TRUE(store_->Set("cairn/run7/hello/1", "killed of 3").ok());
  const auto zero = Join(0, 2);
  AwaitKey("cairn/run7/welcome/killed");

  const auto one = Join(1, 2);
  one->Send("key", "one");

  EXPECT_THAT(Collect(*zero, "key", Deadline::In(std::chrono::seconds(20))).get().by_rank(2), ElementsAre("", "one"));
}

TEST_F(StoreLinkTest, RankBeyondThoseOfRankZeroIsRefused) {
  const auto two = Join(2, 3);
  store_->AwaitWaiting("welcome");

  const auto zero = Join(0, 2);
  const auto one = Join(1, 2);
  one->Send("key", "one");

  EXPECT_THAT(Await(*two, "key").get().status().message(),
              HasSubstr("run7: rank 0 opened it with 2 ranks, rank 2 with 3"));
  EXPECT_THAT(Collect(*zero, "key").get().by_rank(2), ElementsAre("", "one"));
}

TEST_F(StoreLinkTest, RankThatHasJoinedHearsWhoIsMissing) {
  const auto one = Join(1, 3);
  store_->AwaitWaiting("welcome");
  open_deadline_ = std::chrono::seconds(1);
  const auto zero = Join(0, 3);

  const Status heard = Await(*one, "key").get().status();

  EXPECT_EQ(heard.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(heard.message(), HasSubstr("run7: not opened by rank 2 within 1 s"));
}

TEST_F(StoreLinkTest, RankThatHasJoinedHearsThatRankZeroCloses) {
  const auto one = Join(1, 3);
  close_deadline_ = std::chrono::milliseconds(100);
  auto zero = Join(0, 3);
  AwaitAnswered();

  zero.reset();

  const Status heard = Await(*one, "key").get().status();
  EXPECT_EQ(heard.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(heard.message(), HasSubstr("run7: closed before all ranks had opened it"));
}

TEST_F(StoreLinkTest, RanksThatHaveJoinedHearThatAnotherIsRefused) {
  close_deadline_ = std::chrono::milliseconds(100);
  const auto zero = Join(0, 4);
  const auto one = Join(1, 4);
  AwaitAnswered();
  EXPECT_TRUE(store_->Set("cairn/run7/hello/2", "killed of 4").ok());
  AwaitKey("cairn/run7/welcome/killed");

  const auto three = Join(3, 5);

  const std::string why = "run7: rank 0 opened it with 4 ranks, rank 3 with 5";
  EXPECT_THAT(Await(*three, "key").get().status().message(), HasSubstr(why));
  EXPECT_THAT(Collect(*zero, "key").get().end.message(), HasSubstr(why));
  EXPECT_THAT(Await(*one, "key").get().status().message(), HasSubstr(why));
}

TEST_F(StoreLinkTest, SuccessorThatComesWhileOthersAreRefusedHearsSo) {
  close_deadline_ = std::chrono::milliseconds(100);
  EXPECT_TRUE(store_->Set("cairn/run7/hello/1", "killed of 3").ok());
  EXPECT_TRUE(store_->Set("cairn/run7/hello/2", "other of 4").ok());
  const auto zero = Join(0, 3, [shared = store_] {
    KeyValueStore store = shared->Connect();
    store.get = [shared](const std::string& key) {
      Result<std::string> value = shared->Get(key);
      const bool heard = !value.ok() && key.ends_with("hello/2");
      return heard && !shared->Set("cairn/run7/hello/1", "later of 3").ok() ? Status(StatusCode::kInternal, "") : value;
    };
    return store;
  });
  AwaitKey("cairn/run7/welcome/other");

  EXPECT_TRUE(store_->Erase("cairn/run7/hello/2").ok());

  AwaitKey("cairn/run7/welcome/later");
  EXPECT_THAT(*store_->Get("cairn/run7/welcome/later"), StartsWith("!rank 0 opened it with 3 ranks, rank 2 with 4"));
  EXPECT_THAT(Keys(), Not(Contains("cairn/run7/welcome/killed")));
}

// NotFound is what a restore says of a root without checkpoints.
TEST_F(StoreLinkTest, EntryThatTheStoreLosesIsAnErrorOfTheStore) {
  const auto zero = Join(0, 2);
  const auto one = Join(1, 2, [shared = store_] {
    KeyValueStore store = shared->Connect();
    store.get = [shared](const std::string& key) {
      const bool lost = key.find("/log/") != std::string::npos;
      return lost ? Result<std::string>(Status(StatusCode::kNotFound, "no such key")) : shared->Get(key);
    };
    return store;
  });

  zero->Announce("key", "message");

  EXPECT_EQ(Await(*one, "key").get().status().code(), StatusCode::kIoError);
}

TEST_F(StoreLinkTest, RankThatGivesUpLeavesItsSuccessorsHello) {
  open_deadline_ = std::chrono::milliseconds(100);
  auto one = Join(1, 2);
  store_->AwaitWaiting("welcome");
  EXPECT_TRUE(store_->Set("cairn/run7/hello/1", "successor of 2").ok());

  EXPECT_EQ(Await(*one, "key").get().status().code(), StatusCode::kDeadlineExceeded);

  one.reset();
  EXPECT_EQ(*store_->Get("cairn/run7/hello/1"), "successor of 2");
}

TEST_F(StoreLinkTest, RanksThatOpenDifferentGroupsHearOfEachOther) {
  EXPECT_TRUE(store_->Set("cairn/opens/1", "run8 on host other").ok());
  open_deadline_ = std::chrono::milliseconds(100);

  EXPECT_THAT(
      Collect(*Join(0, 2), "key").get().end.message(),
      HasSubstr("not opened by rank 1 within 0.1 s, but rank 1 opened run8 on host other; all ranks must open"));
}

TEST_F(StoreLinkTest, NewestOfARanksMessagesUnderOneKeyCounts) {
  const auto zero = Join(0, 2);
  const auto one = Join(1, 2);
  one->Send("key", "first");
  one->Send("key", "withdrawn");
  while (!testing::Value(Keys(), Contains(testing::EndsWith("/inbox/2")))) std::this_thread::yield();

  EXPECT_THAT(Collect(*zero, "key").get().by_rank(2), ElementsAre("", "withdrawn"));
}

TEST_F(StoreLinkTest, ClosesWhileItWaitsForOthers) {
  close_deadline_ = kSoon;
  auto zero = Join(0, 2);
  auto one = Join(2, 3);  // They do not meet.
  store_->AwaitWaiting("welcome");
  auto collected = Collect(*zero, "key");

  zero.reset();
  one.reset();

  EXPECT_EQ(collected.get().end.code(), StatusCode::kCancelled);
}

TEST_F(StoreLinkTest, HangingStoreDelaysNeitherDeadlinesNorTheDestructor) {
  close_deadline_ = kSoon;
  auto zero = Join(0, 2);
  auto one = Join(1, 2);
  one->Send("key", "message");
  EXPECT_TRUE(Collect(*zero, "key").get().end.ok());

  store_->Hang(true);
  one->Send("lost", "message");

  EXPECT_EQ(Collect(*zero, "lost", Deadline::In(kSoon)).get().end.code(), StatusCode::kDeadlineExceeded);
  auto waiting = Await(*one, "never");
  one.reset();
  zero.reset();
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kCancelled);
}

TEST_F(StoreLinkTest, StoreThatCannotBeReachedBreaksTheGroup) {
  const auto zero = Join(0, 2, [] { return Status(StatusCode::kIoError, "no route to the store"); });

  EXPECT_THAT(Collect(*zero, "key").get().end.message(), HasSubstr("group run7: no route to the store"));
}

TEST_F(StoreLinkTest, ForeignBytesInTheInboxBreakTheGroup) {
  const auto zero = Join(0, 2);
  const auto one = Join(1, 2);
  one->Send("key", "message");
  EXPECT_TRUE(Collect(*zero, "key").get().end.ok());

  EXPECT_TRUE(store_->Set(Session() + "/inbox/2", "9999999999999999999:message").ok());

  const Status end = Collect(*zero, "next").get().end;
  EXPECT_EQ(end.code(), StatusCode::kIoError);
  EXPECT_THAT(end.message(), HasSubstr("inbox/2, found other bytes"));
}

TEST_F(StoreLinkTest, RankThatClosesTwiceCountsOnce) {
  const auto zero = Join(0, 3);
  const auto one = Join(1, 3);
  const auto two = Join(2, 3);
  one->Send("key", "message");
  two->Send("key", "message");
  EXPECT_TRUE(Collect(*zero, "key").get().end.ok());
  const auto closed = [](int rank) { return StoreEntry{.kind = StoreEntry::Kind::kClosed, .number = rank}; };
  // The second of another process of the rank, the last of a rank of another group.
  for (const StoreEntry& entry :
       {StoreEntry{StoreEntry::Kind::kMessage, 2, "next", ""}, closed(2), closed(2), closed(7)}) {
    const auto number = store_->Add(Session() + "/inbox", 1);
    EXPECT_TRUE(store_->Set(Session() + "/inbox/" + std::to_string(*number), PackEntry(entry)).ok());
  }
  one->Send("next", "message");
  EXPECT_TRUE(Collect(*zero, "next").get().end.ok());

  zero->Announce("announced", "message");

  EXPECT_TRUE(Await(*one, "announced", Deadline::In(std::chrono::seconds(20))).get().ok());
}

TEST_F(StoreLinkTest, RankOutsideTheGroupIsRefused) {
  for (const int rank : {-1, 2}) {
    const auto made = MakeStoreGroup({.rank = rank, .size = 2, .name = "run7"}, [this] { return store_->Connect(); });
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(StoreLinkTest, RankAloneNeedsNoStore) {
  const auto alone = Join(0, 1, [] { return Status(StatusCode::kIoError, "unused"); });

  EXPECT_TRUE(Collect(*alone, "key").get().end.ok());
}

TEST(StoreEntry, ComesBackFromItsBytes) {
  for (const StoreEntry& entry : {StoreEntry{StoreEntry::Kind::kMessage, 7, "a/b", std::string(1000, '\xff')},
                                  StoreEntry{StoreEntry::Kind::kMessage, 0, "", ""},
                                  StoreEntry{.kind = StoreEntry::Kind::kLate, .number = 2, .text = "3:x"},
                                  StoreEntry{.kind = StoreEntry::Kind::kClosed, .number = 1}}) {
    EXPECT_EQ(UnpackEntry(PackEntry(entry)), entry);
  }
}

TEST(StoreEntry, OtherBytesAreRefused) {
  for (const char* bytes : {"", "x", "7:message", "7:message1:1", "7:message1:13:key", "6:closed1:13:key",
                            "6:closed2:-1", "6:closed1:x", "5:other1:1", "99:message1:1", "-1:message", "6:closed1:1 ",
                            "18446744073709551615:message", "6:closed10:4294967296"}) {
    EXPECT_EQ(UnpackEntry(bytes), std::nullopt) << bytes;
  }
}

}  // namespace
}  // namespace cairn
