#include "bench/pipeline/socket_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "group/blocking.h"

namespace cairn::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// Both ends of one connection; tests/group has the contract of all groups for those of any size.
class SocketGroupTest : public testing::Test {
 protected:
  SocketGroupTest() {
    const Listener listener = *Listener::Open("127.0.0.1");
    one_ = std::make_unique<SocketGroup>(1, *ConnectTo(listener.address(), listener.port()));
    zero_ = std::make_unique<SocketGroup>(0, *listener.Accept(Deadline::Infinite()));
  }
  std::unique_ptr<SocketGroup> zero_;
  std::unique_ptr<SocketGroup> one_;
};

TEST_F(SocketGroupTest, MessagesOfAnySizeAndContentArriveInAnyOrder) {
  const std::string large(3 << 20, '\xff');
  one_->Send("large", large);
  one_->Send("empty", "");
  zero_->Announce("zeros", std::string(17, '\0'));

  EXPECT_THAT(CollectMessages(*zero_, "empty", Deadline::Infinite()).get().messages, ElementsAre(Pair(1, "")));
  EXPECT_THAT(CollectMessages(*zero_, "large", Deadline::Infinite()).get().messages, ElementsAre(Pair(1, large)));
  EXPECT_EQ(*AwaitMessage(*one_, "zeros", Deadline::Infinite()).get(), std::string(17, '\0'));
}

TEST_F(SocketGroupTest, ANodeThatHasGoneEndsTheWaitsForIt) {
  Status ended;
  std::thread waiting([&] { ended = CollectMessages(*zero_, "message", Deadline::Infinite()).get().end; });

  one_.reset();
  waiting.join();

  EXPECT_THAT(ended.message(), HasSubstr("rank 1 closed"));
  zero_->Announce("later", "nobody hears it");
  EXPECT_FALSE(CollectMessages(*zero_, "later", Deadline::Infinite()).get().end.ok());
}

TEST(SocketTest, WaitsEndAtTheDeadlineAndOnShutdown) {
  const Listener listener = *Listener::Open("127.0.0.1");

  EXPECT_EQ(listener.Accept(Deadline::In(std::chrono::milliseconds(1))).status().code(), StatusCode::kDeadlineExceeded);
  listener.Shutdown();
  EXPECT_EQ(listener.Accept(Deadline::Infinite()).status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(ConnectTo(listener.address(), listener.port()).ok());
  EXPECT_EQ(ConnectTo("no address", 1).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::bench
