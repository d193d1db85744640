// How a rank waits for rank 0's port.
#include "ranks/await_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <stdexcept>

namespace cairn::trainer {
namespace {

using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

steady_clock::time_point Soon() { return steady_clock::now() + std::chrono::milliseconds(200); }
steady_clock::time_point Late() { return steady_clock::now() + std::chrono::minutes(1); }

/// A port of this machine that refuses connections until Listen.
class Port {
 public:
  Port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    number_ = ntohs(at.sin_port);
  }
  ~Port() { ::close(fd_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  [[nodiscard]] int number() const { return number_; }
  void Listen(int backlog) const { EXPECT_EQ(::listen(fd_, backlog), 0); }

 private:
  const int fd_;
  int number_ = 0;
};

std::string WhyNot(const std::string& host, int port) {
  try {
    AwaitPort(host, port, Soon());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "it answers";
}

TEST(AwaitPort, ReturnsOnceSomethingListens) {
  const Port port;
  auto waited = std::async(std::launch::async, [&] { AwaitPort("127.0.0.1", port.number(), Late()); });
  port.Listen(1);

  EXPECT_NO_THROW(waited.get());
  EXPECT_EQ(WhyNot("localhost", port.number()), "it answers");
}

TEST(AwaitPort, SaysWhyNothingAnswers) {
  const Port port;

  EXPECT_THAT(WhyNot("127.0.0.1", port.number()), AllOf(HasSubstr("rank 0"), HasSubstr("Connection refused")));
  EXPECT_THAT(WhyNot("no.such.host.invalid", port.number()), HasSubstr("rank 0 does not answer: "));
}

TEST(AwaitPort, EndsInTimeWhereConnectionsGetNoAnswer) {
  const Port port;
  port.Listen(0);
  AwaitPort("127.0.0.1", port.number(), Late());  // The only place in its queue: nobody accepts.

  EXPECT_THAT(WhyNot("127.0.0.1", port.number()), HasSubstr("rank 0 does not answer: "));
}

}  // namespace
}  // namespace cairn::trainer
