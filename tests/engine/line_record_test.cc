#include "engine/line_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/inline_queue.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LineRecordTest : public testing::Test {
 protected:
  IoTask<Status> Write(std::uint64_t line) {
    written_.push_back(line);
    co_return co_await io::OnThread(root_, [this] { return outcome_; });
  }
  void Ensure(std::uint64_t line) {
    record_.Ensure(*queue_, write_, line, [this](const Status& status) { ended_.push_back(status); });
  }
  void Complete() {
    while (queue_->pending() != 0) ASSERT_TRUE(queue_->RunOnce(Deadline::Infinite()).ok());
  }

  const std::string root_ = "root";
  const LineRecord::Write write_ = [this](std::uint64_t line) { return Write(line); };
  const std::unique_ptr<IoQueue> queue_ = *InlineQueue::Make();
  LineRecord record_;
  Status outcome_;
  std::vector<std::uint64_t> written_;
  std::vector<Status> ended_;
};

TEST_F(LineRecordTest, CommitsOfALineWaitForItsOneWrite) {
  Ensure(3);
  Ensure(3);
  EXPECT_THAT(ended_, ElementsAre()) << "not before it is on the disk";
  Complete();
  EXPECT_THAT(ended_, ElementsAre(Status::Ok(), Status::Ok()));

  Ensure(3);
  Ensure(2);

  EXPECT_EQ(ended_.size(), 4U) << "within the call";
  EXPECT_THAT(written_, ElementsAre(3));
}

TEST_F(LineRecordTest, AFailureFailsAllThatWaitAndTheNextTriesAgain) {
  outcome_ = Status(StatusCode::kNoSpace, "the disk is full");
  Ensure(3);
  Ensure(3);
  Complete();
  outcome_ = Status::Ok();
  ASSERT_EQ(ended_.size(), 2U);
  EXPECT_EQ(ended_[1].code(), StatusCode::kNoSpace);
  EXPECT_THAT(ended_[1].message(), HasSubstr("line 3 could not be begun: the disk is full"));

  Ensure(3);
  Complete();

  EXPECT_EQ(ended_.back(), Status::Ok());
  EXPECT_THAT(written_, ElementsAre(3, 3));
}

TEST_F(LineRecordTest, TheCounterNeverGoesBack) {
  outcome_ = Status(StatusCode::kIoError, "maybe written");
  Ensure(4);
  Complete();
  outcome_ = Status::Ok();
  Ensure(3);
  Ensure(5);
  Complete();

  EXPECT_THAT(written_, ElementsAre(4, 4, 5));
  EXPECT_EQ(ended_.back(), Status::Ok());
}

}  // namespace
}  // namespace cairn
