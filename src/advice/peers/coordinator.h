#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "advice/peers/exchange.h"
#include "advice/peers/lobby.h"
#include "advice/peers/rounds.h"
#include "advice/peers/socket.h"
#include "cairn/status.h"

namespace cairn::peers {

struct PeersMeasured {
  struct Rank {
    std::string host;
    std::string domain;
  };
  struct Pair {
    RankPair ranks;
    PairMeasured link;
  };
  std::vector<Rank> ranks;
  /// Every two of them once.
  std::vector<Pair> pairs;
  std::size_t rounds = 0;
};

/// Leads the ranks of `cairn doctor --peers`, of which rank 0's process is one like the others.
///
/// 1. Each rank connects and says who it is; who it is not understood, or is there already, is turned away.
/// 2. All get a token, by which they know each other, and say that they are ready.
/// 3. Rounds: in each, every rank hears how long it may take, and the first of each pair with whom it measures. That
///    rank reports, and the next round begins when all have.
/// 4. All hear that it is done, or the error that ended it: a rank that is late, that is gone, that cannot be reached.
class Coordinator {
 public:
  Coordinator(int world, Lobby lobby, Pace pace, std::chrono::nanoseconds timeout)
      : lobby_(std::move(lobby)), pace_(pace), timeout_(timeout), members_(static_cast<std::size_t>(world)) {}

  Result<PeersMeasured> Run();

 private:
  struct Member {
    PeerSocket socket;
    PeersMeasured::Rank who;
    /// Empty on this host.
    std::string address;
    int port = 0;
  };

  Result<PeersMeasured> Lead();
  Status Gather();
  /// Admits or turns away whoever has come since.
  Status ReceiveGuests();
  /// Not ok only for who is not a rank of this job.
  Status Admit(Lobby::Guest& guest);
  Status MakeReady();
  Result<std::vector<PeersMeasured::Pair>> Play(const Round& round);
  /// Until each of these ranks has answered.
  Result<std::vector<nlohmann::json>> Answers(const std::vector<int>& ranks, Deadline deadline);
  Status Say(int rank, const nlohmann::json& message);

  [[nodiscard]] Member& member(int rank) { return *members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string Name(int rank) { return RankName(rank, member(rank).who.host); }
  [[nodiscard]] Status Named(int rank, const Status& status);
  [[nodiscard]] Status Late();

  Lobby lobby_;
  const Pace pace_;
  const std::chrono::nanoseconds timeout_;
  /// By rank; nothing before it has come.
  std::vector<std::optional<Member>> members_;
};

}  // namespace cairn::peers
