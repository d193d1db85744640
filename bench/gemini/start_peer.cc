#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/unique_fd.h"
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
constexpr const char* kBinary = "bench_gemini_peer";  // Beside this process's own.

// The child's descriptors: these and no other of the parent's, such as a pipe that a reader waits on.
class ChildFiles {
 public:
  ChildFiles() { ::posix_spawn_file_actions_init(&actions_); }
  ~ChildFiles() { ::posix_spawn_file_actions_destroy(&actions_); }
  ChildFiles(const ChildFiles&) = delete;
  ChildFiles& operator=(const ChildFiles&) = delete;

  void Log(const std::string& path) {
    ::posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions_, 1, path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::posix_spawn_file_actions_adddup2(&actions_, 1, 2);
  }
  // Duplicated above all numbers that the child gets, so that none is overwritten before its turn.
  Status Give(const UniqueFd& fd, int as) {
    UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 16));
    if (!high.valid()) return ErrnoStatus(errno, "duplicating a descriptor");
    ::posix_spawn_file_actions_adddup2(&actions_, high.get(), as);
    kept_.push_back(std::move(high));
    return {};
  }
  void CloseFrom(int fd) { ::posix_spawn_file_actions_addclosefrom_np(&actions_, fd); }
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
  std::vector<UniqueFd> kept_;
};

// In the calling thread's network namespace, and in a session of its own, so that it outlives the training's.
Status Spawn(std::vector<std::string> arguments, const ChildFiles& files) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t child = -1;
  const int error = ::posix_spawn(&child, pointers[0], files.get(), &attributes, pointers.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  return error == 0 ? Status::Ok() : ErrnoStatus(error, "starting " + arguments[0]);
}

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
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / kBinary;
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
    const auto spawn = [&] { return Spawn(arguments, files); };
    CAIRN_RETURN_IF_ERROR(far ? RunInNetwork(network.networks[kPeer].get(), spawn) : spawn());
  }
  writes.Reset();
  const std::string said = ReadLine(reads.get());
  if (said == "ready") return {};
  return Error(StatusCode::kFailedPrecondition, "{}: {}", binary.string(),
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
