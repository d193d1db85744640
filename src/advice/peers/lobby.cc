#include "advice/peers/lobby.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "base/human.h"
#include "base/print_error.h"
#include "base/status_macros.h"

namespace cairn::peers {
namespace {

using nlohmann::json;

constexpr const char* kProtocol = "cairn doctor --peers";
constexpr int kVersion = 1;
/// How long one may say nothing.
constexpr std::chrono::seconds kPatience{5};

/// Why this is no hello; nothing if it is one.
std::string_view Fault(const json& hello) {
  if (!hello.is_object() || hello.value("protocol", json()) != kProtocol)
    return "it is no rank of cairn doctor --peers";
  if (hello.value("version", json()) != kVersion) return "its cairn is of another version";
  return {};
}

/// How many at once may say nothing: a quarter of the descriptors, because rank 0 has two lobbies, and still connects.
std::size_t MostStrangers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  return static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / 4, 1, 1024));
}

}  // namespace

json Hello() { return {{"protocol", kProtocol}, {"version", kVersion}}; }

std::string RankName(int rank, const std::string& host) { return fmt::format("rank {} ({})", rank, Printable(host)); }

void TurnAway(const PeerSocket& socket, std::string_view why) {
  PrintError("cairn: turned away a connection from {}: {}\n", Printable(socket.address()), why);
}

void Lobby::AddTo(std::vector<int>& fds) const {
  fds.push_back(listener_.get());
  for (const Stranger& stranger : strangers_) fds.push_back(stranger.socket.fd());
}

Status Lobby::Accept(std::vector<Guest>& guests) {
  const std::size_t most = MostStrangers();
  while (true) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      if (strangers_.size() >= most) MakeRoom(guests);
      strangers_.push_back({PeerSocket(std::move(fd)), Deadline::In(kPatience)});
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Status::Ok();
    } else if ((errno == EMFILE || errno == ENFILE) && !strangers_.empty()) {
      MakeRoom(guests);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return ErrnoStatus(errno, "accepting a connection");
    }
  }
}

void Lobby::MakeRoom(std::vector<Guest>& guests) {
  const std::size_t before = strangers_.size();
  Hear(guests);
  if (strangers_.size() == before) strangers_.erase(strangers_.begin());
}

void Lobby::Hear(std::vector<Guest>& guests) {
  std::vector<Stranger> silent;
  for (Stranger& stranger : strangers_) {
    const Status status = stranger.socket.Fill();
    std::optional<json> hello = stranger.socket.TakeMessage();
    if (!hello && status.ok() && !stranger.deadline.passed()) {
      silent.push_back(std::move(stranger));
    } else if (!hello) {
      TurnAway(stranger.socket, status.ok() ? "it says nothing" : status.message());
    } else if (const std::string_view fault = Fault(*hello); !fault.empty()) {
      TurnAway(stranger.socket, fault);
    } else {
      guests.push_back({std::move(stranger.socket), *std::move(hello)});
    }
  }
  strangers_ = std::move(silent);
}

Result<std::vector<Lobby::Guest>> Lobby::Greet() {
  std::vector<Guest> guests;
  CAIRN_RETURN_IF_ERROR(Accept(guests));
  Hear(guests);
  return guests;
}

}  // namespace cairn::peers
