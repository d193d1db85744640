#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "advice/peers/socket.h"
#include "cairn/options.h"

namespace cairn::peers {

/// What every connection begins with: an object that has these, and members of its own.
[[nodiscard]] nlohmann::json Hello();

/// The most that a port, and a rate in bytes per second, may be.
inline constexpr std::uint64_t kMostPort = 65535;
inline constexpr double kMostRate = 1e15;
/// The least that a measured rate or a time may be.
inline constexpr double kLeastNumber = 1e-9;

/// "rank 3 (node7)".
[[nodiscard]] std::string RankName(int rank, const std::string& host);

/// Says on stderr that a connection was not taken, and why.
void TurnAway(const PeerSocket& socket, std::string_view why);

/// Accepts connections and hears which of them begin with Hello. Others are turned away, and who says nothing delays
/// nobody, nor takes the last descriptor.
class Lobby {
 public:
  struct Guest {
    PeerSocket socket;
    nlohmann::json hello;
  };

  explicit Lobby(UniqueFd listener) : listener_(std::move(listener)) {}

  /// The descriptors to wait for.
  void AddTo(std::vector<int>& fds) const;
  /// Those who have said hello since, without waiting.
  Result<std::vector<Guest>> Greet();

 private:
  struct Stranger {
    PeerSocket socket;
    Deadline deadline;
  };
  /// Takes whoever has come. Where there is no room, those in hand are heard first: only who has said nothing makes
  /// room.
  Status Accept(std::vector<Guest>& guests);
  void MakeRoom(std::vector<Guest>& guests);
  void Hear(std::vector<Guest>& guests);

  UniqueFd listener_;
  /// By arrival.
  std::vector<Stranger> strangers_;
};

}  // namespace cairn::peers
