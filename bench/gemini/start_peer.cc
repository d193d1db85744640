#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "bench/emulation/child_process.h"
#include "bench/emulation/network.h"
#include "bench/gemini/gloo_pair.h"
#include "bench/gemini/peer.h"
#include "bench/gemini/peer_address.h"

namespace cairn::bench {
namespace {

// The nodes of the network.
constexpr std::size_t kTraining = 0;
constexpr std::size_t kPeer = 1;
constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kBinary = "bench_gemini_peer";

std::string ReadLine(int fd) {
  std::string line;
  char next = 0;
  while (::read(fd, &next, 1) == 1 && next != '\n') line += next;
  return line;
}

Status StartPeer(const std::string& directory, std::uint64_t state_bytes, std::uint64_t bytes_per_second) {
  TwoNodes network;
  if (bytes_per_second > 0) {
    CAIRN_ASSIGN_OR_RETURN(network, TwoNodes::Make(bytes_per_second));
  }
  const std::string binary = ProgramBesideThis(kBinary);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  const UniqueFd reads(pipe[0]);
  UniqueFd writes(pipe[1]);
  {
    ChildFiles files;
    files.Log(directory + "/gemini-peer.log");
    CAIRN_RETURN_IF_ERROR(files.Give(writes, kPeerReadyFd));
    const bool far = network.networks[kPeer].valid();
    if (far) CAIRN_RETURN_IF_ERROR(files.Give(network.networks[kTraining], kPeerNetworkFd));
    files.CloseFrom(far ? kPeerNetworkFd + 1 : kPeerReadyFd + 1);
    const std::vector<std::string> arguments{binary, directory, std::to_string(state_bytes),
                                             far ? TwoNodes::kAddresses[kPeer] : kLoopback,
                                             far ? TwoNodes::kAddresses[kTraining] : kLoopback};
    // In a session of its own, so that it outlives the training's.
    const auto spawn = [&] { return Spawn(arguments, files, Session::kOwn).status(); };
    CAIRN_RETURN_IF_ERROR(far ? RunInNetwork(network.networks[kPeer].get(), spawn) : spawn());
  }
  writes.Reset();
  const std::string said = ReadLine(reads.get());
  if (said == "ready") return {};
  return Error(StatusCode::kFailedPrecondition, "{}: {}", binary,
               said.empty() ? "ended before it was ready; see gemini-peer.log" : said);
}

}  // namespace

Result<std::unique_ptr<Connection>> ConnectToPeer(const std::string& directory, std::uint64_t state_bytes,
                                                  std::uint64_t bytes_per_second) {
  CAIRN_ASSIGN_OR_RETURN(std::optional<PeerAddress> peer, FindPeer(directory));
  if (!peer.has_value()) {
    CAIRN_RETURN_IF_ERROR(StartPeer(directory, state_bytes, bytes_per_second));
    CAIRN_ASSIGN_OR_RETURN(peer, FindPeer(directory));
  }
  if (!peer.has_value()) return Error(StatusCode::kFailedPrecondition, "{}: the peer has ended", directory);
  if (peer->state_bytes != state_bytes) {
    return Error(StatusCode::kFailedPrecondition, "{}: expected a peer for {} bytes, found one for {}", directory,
                 state_bytes, peer->state_bytes);
  }
  if (peer->network.empty()) return Connect(peer->training_address, peer->address, peer->port);
  const UniqueFd network(::open(peer->network.c_str(), O_RDONLY | O_CLOEXEC));
  if (!network.valid()) return ErrnoStatus(errno, "opening the network namespace " + peer->network);
  std::unique_ptr<Connection> pair;
  CAIRN_RETURN_IF_ERROR(RunInNetwork(network.get(), [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(pair, Connect(peer->training_address, peer->address, peer->port));
    return {};
  }));
  return pair;
}

}  // namespace cairn::bench
