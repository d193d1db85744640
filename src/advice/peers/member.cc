#include "advice/peers/member.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "advice/peers/exchange.h"
#include "advice/peers/lobby.h"
#include "advice/peers/socket.h"
#include "base/human.h"
#include "base/status_macros.h"

namespace cairn::peers {
namespace {

using nlohmann::json;

constexpr double kLongestRound = 86400;

class Member {
 public:
  explicit Member(const MemberOptions& options, Lobby lobby, PeerSocket control)
      : options_(options), lobby_(std::move(lobby)), control_(std::move(control)) {}

  Status Run(int own_port) {
    json hello = Hello();
    hello.update({{"rank", options_.rank},
                  {"world", options_.world},
                  {"host", options_.host},
                  {"domain", options_.domain},
                  {"port", own_port}});
    CAIRN_RETURN_IF_ERROR(Say(hello));
    deadline_ = Deadline::In(options_.timeout + options_.patience);
    while (!done_) {
      std::vector<int> fds{control_.fd()};
      // Before there is a token nobody is served, and who waits for that must not wake this rank.
      if (!token_.empty()) lobby_.AddTo(fds);
      CAIRN_RETURN_IF_ERROR(OfCoordinator(AwaitReadable(fds, deadline_)));
      const Status heard = control_.Fill();
      while (std::optional<json> message = control_.TakeMessage()) CAIRN_RETURN_IF_ERROR(Obey(*message));
      if (!done_) CAIRN_RETURN_IF_ERROR(OfCoordinator(heard));
      if (!token_.empty()) CAIRN_RETURN_IF_ERROR(ServeGuests());
      if (!done_ && deadline_.passed()) {
        return OfCoordinator({StatusCode::kDeadlineExceeded, "does not say how to go on"});
      }
    }
    return Status::Ok();
  }

 private:
  [[nodiscard]] Status OfCoordinator(const Status& status) const {
    if (status.ok()) return status;
    return Error(status.code(), "rank 0 ({}:{}) {}", options_.master, options_.port, status.message());
  }

  Status Say(const json& message) { return OfCoordinator(control_.Say(message, Deadline::In(options_.patience))); }

  Status Obey(const json& message) {
    if (!message.is_object()) return OfCoordinator({StatusCode::kInvalidArgument, "says what is not understood"});
    const JsonField said(message, fmt::format("rank 0 ({}:{}) says", options_.master, options_.port));
    if (const auto error = said.At("error").Name(); error.ok()) return {StatusCode::kIoError, Printable(*error)};
    if (said.Has("done")) {
      done_ = true;
      return Status::Ok();
    }
    if (const auto token = said.At("token").Name(); token.ok()) {
      token_ = *token;
      deadline_ = Deadline::In(options_.timeout + options_.patience);
      return Say({{"ready", true}});
    }
    CAIRN_ASSIGN_OR_RETURN(const double limit, said.At("limit_seconds").Number(0, kLongestRound));
    deadline_ = Deadline::In(2 * options_.patience + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                         std::chrono::duration<double>(limit)));
    return said.Has("with") ? Measure(said.At("with")) : Status::Ok();
  }

  Status Measure(const JsonField& with) {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t rank, with.At("rank").Whole(0, options_.world - 1));
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t port, with.At("port").Whole(1, kMostPort));
    CAIRN_ASSIGN_OR_RETURN(const std::string host, with.At("host").Name());
    CAIRN_ASSIGN_OR_RETURN(std::string address, with.At("address").Text());
    // A rank on rank 0's host is known there by a loopback address; here that host has the address of rank 0.
    if (address.empty()) address = control_.address();
    CAIRN_ASSIGN_OR_RETURN(const Pace pace, PaceOf(with));
    const Result<PairMeasured> measured = MeasurePair(address, static_cast<int>(port), token_, pace);
    if (!measured.ok()) {
      return Say({{"error", fmt::format("{} cannot be measured by {}: {}", RankName(static_cast<int>(rank), host),
                                        RankName(options_.rank, options_.host), measured.status().message())}});
    }
    return Say({{"delay_seconds", measured->delay_seconds}, {"there", measured->there}, {"back", measured->back}});
  }

  Status ServeGuests() {
    CAIRN_ASSIGN_OR_RETURN(std::vector<Lobby::Guest> guests, lobby_.Greet());
    for (Lobby::Guest& guest : guests) {
      if (guest.hello.value("token", json()) != token_) {
        TurnAway(guest.socket, "it is of another job");
        continue;
      }
      // Who measures reports a failure, too, and has the names.
      static_cast<void>(ServeExchange(std::move(guest)));
    }
    return Status::Ok();
  }

  const MemberOptions& options_;
  Lobby lobby_;
  PeerSocket control_;
  std::string token_;
  Deadline deadline_ = Deadline::Infinite();
  bool done_ = false;
};

/// Again and again until rank 0 listens.
Result<PeerSocket> Reach(const MemberOptions& options) {
  constexpr std::chrono::milliseconds kPause{50};
  const Deadline deadline = Deadline::In(options.timeout);
  while (true) {
    Result<PeerSocket> reached = ConnectTo(options.master, options.port, deadline);
    if (reached.ok()) return reached;
    if (deadline.passed()) {
      return Error(reached.status().code(), "rank 0 cannot be reached within {:g} s: {}",
                   std::chrono::duration<double>(options.timeout).count(), reached.status().message());
    }
    ::poll(nullptr, 0, static_cast<int>(kPause.count()));
  }
}

}  // namespace

Status RunMember(const MemberOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(UniqueFd listener, ListenAt(0));
  CAIRN_ASSIGN_OR_RETURN(const int port, PortOf(listener.get()));
  CAIRN_ASSIGN_OR_RETURN(PeerSocket control, Reach(options));
  return Member(options, Lobby(std::move(listener)), std::move(control)).Run(port);
}

}  // namespace cairn::peers
