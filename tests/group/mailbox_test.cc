#include "group/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "group/group_futures.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A mailbox as a Group.
class MailboxGroup : public Group {
 public:
  MailboxGroup(int rank, int size) : size_(size), box_(std::make_shared<Mailbox>(rank, size, watch_)) {}
  ~MailboxGroup() override { box_->Close(); }
  MailboxGroup(const MailboxGroup&) = delete;
  MailboxGroup& operator=(const MailboxGroup&) = delete;
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return size_; }
  void Send(const std::string& /*key*/, std::string /*message*/) override {}
  void Announce(const std::string& /*key*/, std::string /*message*/) override {}
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override {
    box_->Collect(key, deadline, std::move(on_message), std::move(end));
  }
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override {
    box_->Await(key, deadline, std::move(on_announced));
  }
  Mailbox* operator->() { return box_.get(); }

 private:
  DeadlineWatch watch_;
  const int size_;
  const std::shared_ptr<Mailbox> box_;
};

TEST(Mailbox, OldestUnawaitedKeysAreDropped) {
  MailboxGroup box(1, 2);
  const std::size_t most = Mailbox::kEarlyMessages + 2 * Mailbox::kEarlyMessagesPerRank;
  for (std::size_t i = 0; i < most + 2; ++i) box->Receive(0, std::to_string(i), "message");

  EXPECT_FALSE(Await(box, "1", Deadline::In(kSoon)).get().ok());
  EXPECT_EQ(*Await(box, "2").get(), "message");
  EXPECT_EQ(*Await(box, std::to_string(most + 1)).get(), "message");
}

// A rank that has waited in vain withdraws its message so.
TEST(Mailbox, NewerMessageReplacesAnUnawaitedOne) {
  MailboxGroup box(0, 3);
  box->Receive(1, "key", "first");
  box->Receive(2, "key", "other");
  box->Receive(1, "key", "second");

  EXPECT_THAT(Collect(box, "key").get().by_rank(3), ElementsAre("", "second", "other"));
}

TEST(Mailbox, DuplicateMessageCountsOnce) {
  MailboxGroup box(0, 3);
  auto collected = Collect(box, "key", Deadline::In(kSoon));

  box->Receive(1, "key", "first");
  box->Receive(1, "key", "second");

  const Collected result = collected.get();
  EXPECT_THAT(result.by_rank(3), ElementsAre("", "first", ""));
  EXPECT_THAT(result.end.message(), HasSubstr("nothing from rank 2"));
}

TEST(Mailbox, MessagesFromNonPeersAreDropped) {
  MailboxGroup box(0, 3);
  auto collected = Collect(box, "key", Deadline::In(kSoon));

  for (const int from : {-1, 0, 3}) {
    box->Receive(from, "key", "message");
    box->Leave(from);
  }

  const Collected result = collected.get();
  EXPECT_TRUE(result.messages.empty());
  EXPECT_THAT(result.end.message(), HasSubstr("nothing from ranks 1, 2"));
}

TEST(Mailbox, OnlySomeOfManyMissingRanksAreNamed) {
  MailboxGroup box(0, 4096);

  const Status end = Collect(box, "key", Deadline::In(kSoon)).get().end;

  EXPECT_THAT(end.message(), HasSubstr("nothing from ranks 1, 2, 3,"));
  EXPECT_THAT(end.message(), HasSubstr("64 and 4031 more"));
}

TEST(Mailbox, NearerDeadlineEndsFirst) {
  MailboxGroup box(0, 2);
  auto far = Collect(box, "far", Deadline::In(std::chrono::hours(1)));
  auto near = Collect(box, "near", Deadline::In(2 * kSoon));
  auto nearer = Collect(box, "nearer", Deadline::In(kSoon));

  EXPECT_EQ(nearer.get().end.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(near.get().end.code(), StatusCode::kDeadlineExceeded);

  box->Receive(1, "far", "message");
  EXPECT_TRUE(far.get().end.ok());
}

TEST(Mailbox, FirstFailureReasonIsKept) {
  MailboxGroup box(1, 2);

  box->Fail(Status(StatusCode::kIoError, "first"));
  box->Fail(Status(StatusCode::kIoError, "second"));

  EXPECT_THAT(Await(box, "key").get().status().message(), HasSubstr("first"));
}

}  // namespace
}  // namespace cairn
