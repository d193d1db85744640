#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "advice/peers/socket.h"
#include "cairn/options.h"

namespace cairn::peers {

/// What every connection begins with: an object that has these, and members of its own.
[[nodiscard]] nlohmann::json Hello();

/// Members of a message that came over the network. Empty, or -1, if it lacks them or has them of another type or size.
[[nodiscard]] std::string TextOf(const nlohmann::json& message, const char* name);
[[nodiscard]] double NumberOf(const nlohmann::json& message, const char* name, double most);
[[nodiscard]] int WholeOf(const nlohmann::json& message, const char* name, int most);
/// The most that a port, and a rate in bytes per second, may be.
inline constexpr int kMostPort = 65535;
inline constexpr double kMostRate = 1e15;

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
  Status Accept();

  UniqueFd listener_;
  /// By arrival.
  std::vector<Stranger> strangers_;
};

}  // namespace cairn::peers
