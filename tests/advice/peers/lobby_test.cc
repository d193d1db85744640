#include "advice/peers/lobby.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <utility>
#include <vector>

#include "advice/peers/socket.h"

namespace cairn::peers {
namespace {

using std::chrono::seconds;

TEST(Lobby, WhoHasSaidHelloIsNotDroppedForStrangersWhoCameLater) {
  constexpr rlim_t kDescriptors = 64;  // A quarter of them may be strangers.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = kDescriptors, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  UniqueFd listener = ListenAt(0).value();
  const int port = PortOf(listener.get()).value();
  Lobby lobby(std::move(listener));
  PeerSocket rank = ConnectTo("127.0.0.1", port, Deadline::In(seconds(60))).value();
  ASSERT_TRUE(rank.Say(Hello(), Deadline::In(seconds(60))).ok());
  std::vector<PeerSocket> silent;
  for (rlim_t i = 0; i < kDescriptors / 2; ++i) {
    silent.push_back(ConnectTo("127.0.0.1", port, Deadline::In(seconds(60))).value());
  }

  const auto guests = lobby.Greet();

  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(guests.ok()) << guests.status().message();
  EXPECT_EQ(guests->size(), 1);
}

}  // namespace
}  // namespace cairn::peers
