#include "advice/peers/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/human.h"
#include "base/print_error.h"
#include "base/status_macros.h"
#include "base/uuid.h"

namespace cairn::peers {
namespace {

using nlohmann::json;

constexpr double kMostDelay = 1e6;
// Less than a line takes: half of a character becomes the three bytes of U+FFFD.
constexpr std::size_t kMostError = 1000;

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace

Status Coordinator::Named(int rank, const Status& status) {
  if (status.ok()) return status;
  return Error(status.code(), "{} {}", Name(rank), status.message());
}

Status Coordinator::Say(int rank, const json& message) {
  return Named(rank, member(rank).socket.Say(message, Deadline::In(pace_.patience)));
}

Status Coordinator::Admit(Lobby::Guest& guest) {
  const std::size_t world = members_.size();
  const JsonField hello(guest.hello, "its hello");
  CAIRN_ASSIGN_OR_RETURN(std::string host, hello.At("host").Name());
  CAIRN_ASSIGN_OR_RETURN(std::string domain, hello.At("domain").Name());
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t theirs, hello.At("world").Whole(0));
  if (theirs != world) {
    return Error(StatusCode::kInvalidArgument, "{}: expected WORLD_SIZE {}, as on rank 0, found {}", Printable(host),
                 world, theirs);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t rank, hello.At("rank").Whole(0, world - 1));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t port, hello.At("port").Whole(1, kMostPort));
  std::optional<Member>& place = members_[rank];
  if (place) {
    return Error(StatusCode::kAlreadyExists, "{}: RANK {} is taken by a process on {}", Printable(host), rank,
                 Printable(place->who.host));
  }
  const std::string address = guest.socket.address();
  place.emplace(Member{.socket = std::move(guest.socket),
                       .who = {.host = std::move(host), .domain = std::move(domain)},
                       .address = IsLoopback(address) ? "" : address,
                       .port = static_cast<int>(port)});
  return Status::Ok();
}

Status Coordinator::Late() {
  std::vector<int> missing;
  std::vector<std::string> here;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i]) {
      here.push_back(Name(static_cast<int>(i)));
    } else {
      missing.push_back(static_cast<int>(i));
    }
  }
  return Error(StatusCode::kDeadlineExceeded, "{} {} did not come within {:g} s; here are {}",
               missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
               std::chrono::duration<double>(timeout_).count(), fmt::join(here, ", "));
}

Status Coordinator::Gather() {
  const Deadline deadline = Deadline::In(timeout_);
  const auto come = [&] { return std::ranges::count_if(members_, [](auto& m) { return m.has_value(); }); };
  while (static_cast<std::size_t>(come()) < members_.size()) {
    std::vector<int> fds;
    lobby_.AddTo(fds);
    for (const std::optional<Member>& member : members_) {
      if (member) fds.push_back(member->socket.fd());
    }
    const Status status = AwaitReadable(fds, deadline);
    if (status.code() == StatusCode::kDeadlineExceeded || deadline.passed()) return Late();
    CAIRN_RETURN_IF_ERROR(status);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i]) CAIRN_RETURN_IF_ERROR(Named(static_cast<int>(i), members_[i]->socket.Fill()));
    }
    CAIRN_RETURN_IF_ERROR(ReceiveGuests());
  }
  return Status::Ok();
}

Status Coordinator::ReceiveGuests() {
  CAIRN_ASSIGN_OR_RETURN(std::vector<Lobby::Guest> guests, lobby_.Greet());
  for (Lobby::Guest& guest : guests) {
    const Status admitted = Admit(guest);
    if (admitted.ok()) continue;
    TurnAway(guest.socket, admitted.message());
    static_cast<void>(guest.socket.Say({{"error", "rank 0: " + admitted.message()}}, Deadline::In(pace_.patience)));
  }
  return Status::Ok();
}

Result<std::vector<json>> Coordinator::Answers(const std::vector<int>& ranks, Deadline deadline) {
  std::vector<json> answers(ranks.size());
  std::size_t missing = ranks.size();
  while (missing > 0) {
    std::vector<int> fds;
    lobby_.AddTo(fds);
    for (const std::optional<Member>& member : members_) fds.push_back(member->socket.fd());
    const Status status = AwaitReadable(fds, deadline);
    if (status.code() == StatusCode::kDeadlineExceeded || deadline.passed()) {
      const auto silent = std::ranges::find(answers, json());
      return Named(ranks[static_cast<std::size_t>(silent - answers.begin())],
                   {StatusCode::kDeadlineExceeded, "does not answer"});
    }
    CAIRN_RETURN_IF_ERROR(status);
    // First what they say: a rank that ends says why.
    Status gone;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const int rank = static_cast<int>(i);
      if (const Status filled = member(rank).socket.Fill(); gone.ok()) gone = Named(rank, filled);
      while (std::optional<json> message = member(rank).socket.TakeMessage()) {
        const auto asked = std::ranges::find(ranks, rank);
        json* const place = asked == ranks.end() ? nullptr : &answers[static_cast<std::size_t>(asked - ranks.begin())];
        if (!message->is_object() || place == nullptr || !place->is_null()) {
          return Named(rank, {StatusCode::kInvalidArgument, "says what is not understood"});
        }
        const Result<std::string> error = JsonField(*message, "its answer").At("error").Name();
        if (error.ok()) return Status(StatusCode::kIoError, Printable(*error));
        *place = *std::move(message);
        --missing;
      }
    }
    CAIRN_RETURN_IF_ERROR(gone);
    CAIRN_RETURN_IF_ERROR(ReceiveGuests());
  }
  return answers;
}

Status Coordinator::MakeReady() {
  std::vector<int> all;
  for (std::size_t i = 0; i < members_.size(); ++i) all.push_back(static_cast<int>(i));
  const std::string token = MakeUuid();
  for (const int rank : all) CAIRN_RETURN_IF_ERROR(Say(rank, {{"token", token}}));
  return Answers(all, Deadline::In(pace_.patience)).status();
}

Result<std::vector<PeersMeasured::Pair>> Coordinator::Play(const Round& round) {
  const std::chrono::nanoseconds limit = LongestMeasurement(pace_);
  const Deadline deadline = Deadline::In(limit + pace_.patience);
  const json plain{{"limit_seconds", std::chrono::duration<double>(limit).count()}};
  std::vector<json> messages(members_.size(), plain);
  std::vector<int> measuring;
  for (const auto& [first, second] : round) {
    const Member& with = member(second);
    json wish{{"rank", second}, {"host", with.who.host}, {"address", with.address}, {"port", with.port}};
    wish.update(ToJson(pace_));
    messages[static_cast<std::size_t>(first)]["with"] = std::move(wish);
    measuring.push_back(first);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) CAIRN_RETURN_IF_ERROR(Say(static_cast<int>(i), messages[i]));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<json> answers, Answers(measuring, deadline));
  std::vector<PeersMeasured::Pair> pairs;
  for (std::size_t i = 0; i < round.size(); ++i) {
    const JsonField answer(answers[i], Name(round[i].first) + " says");
    PairMeasured link;
    CAIRN_ASSIGN_OR_RETURN(link.delay_seconds, answer.At("delay_seconds").Number(0, kMostDelay));
    CAIRN_ASSIGN_OR_RETURN(link.there, answer.At("there").Number(kLeastNumber, kMostRate));
    CAIRN_ASSIGN_OR_RETURN(link.back, answer.At("back").Number(kLeastNumber, kMostRate));
    pairs.push_back({.ranks = round[i], .link = link});
  }
  return pairs;
}

Result<PeersMeasured> Coordinator::Lead() {
  CAIRN_RETURN_IF_ERROR(Gather());
  CAIRN_RETURN_IF_ERROR(MakeReady());
  PeersMeasured measured;
  std::vector<std::string> hosts;
  for (const std::optional<Member>& member : members_) {
    measured.ranks.push_back(member->who);
    hosts.push_back(member->who.host);
  }
  const std::vector<Round> rounds = MakeRounds(hosts);
  measured.rounds = rounds.size();
  PrintError("cairn: all {} ranks are here; {} round{} of at most {:g} s follow\n", members_.size(), rounds.size(),
             rounds.size() == 1 ? "" : "s", std::chrono::duration<double>(LongestMeasurement(pace_)).count());
  for (const Round& round : rounds) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<PeersMeasured::Pair> pairs, Play(round));
    measured.pairs.insert(measured.pairs.end(), pairs.begin(), pairs.end());
  }
  return measured;
}

Result<PeersMeasured> Coordinator::Run() {
  Result<PeersMeasured> measured = Lead();
  const json end =
      measured.ok() ? json{{"done", true}} : json{{"error", measured.status().message().substr(0, kMostError)}};
  for (std::optional<Member>& member : members_) {
    // Who does not hear it notices that the connection ends.
    if (member) static_cast<void>(member->socket.Say(end, Deadline::In({})));
  }
  return measured;
}

}  // namespace cairn::peers
