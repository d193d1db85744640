#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Where a training finds its peer: what the file "gemini-peer" in its directory says.
struct PeerAddress {
  std::string address;
  int port = 0;
  std::string training_address;  ///< The training's own.
  std::string network;           ///< Names the training's network namespace; empty where it needs none.
  std::uint64_t state_bytes = 0;
};

/// Announces a peer as long as it lives: the file is locked (fcntl) from the moment that others can see it. Another
/// peer's file replaces it.
class PeerNotice {
 public:
  [[nodiscard]] static Result<PeerNotice> Publish(const std::string& directory, const PeerAddress& address);
  /// Whether the file is still the one that trainings find.
  [[nodiscard]] bool Stands() const;

 private:
  PeerNotice(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  UniqueFd file_;
};
/// The directory's peer; none if it is not alive.
[[nodiscard]] Result<std::optional<PeerAddress>> FindPeer(const std::string& directory);

}  // namespace cairn::bench
