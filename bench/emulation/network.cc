#include "bench/emulation/network.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): popen

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

// What tbf may send at once: more than one unsegmented packet, and more than the rate allows in one timer tick.
constexpr const char* kBurst = "4mb";

Status Unsupported(const std::string& what, int error) {
  return Error(StatusCode::kUnsupported, "{}; --network loopback needs no privileges, and has no rate",
               ErrnoStatus(error, what).message());
}

// In the calling thread's namespace, which children share.
Status Command(const std::string& command) {
  FILE* const output = ::popen((command + " 2>&1").c_str(), "re");
  if (output == nullptr) return Unsupported("starting " + command, errno);
  std::string said;
  std::array<char, 256> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), output)) said.append(buffer.data(), n);
  if (::pclose(output) == 0) return {};
  return Error(StatusCode::kUnsupported, "\"{}\" (Debian's package iproute2): {}", command,
               said.substr(0, said.find('\n')));
}

// The calling thread moves into it; the descriptor keeps it alive.
Result<UniqueFd> NewNamespace() {
  if (::unshare(CLONE_NEWNET) != 0) return Unsupported("making a network namespace (needs root)", errno);
  UniqueFd made(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!made.valid()) return Unsupported("opening a network namespace", errno);
  return made;
}

Status BringUp(std::size_t node, std::uint64_t bytes_per_second) {
  const std::string end = "node" + std::to_string(node);
  CAIRN_RETURN_IF_ERROR(Command("ip link set lo up"));
  CAIRN_RETURN_IF_ERROR(Command(fmt::format("ip address add {}/30 dev {}", TwoNodes::kAddresses[node], end)));
  CAIRN_RETURN_IF_ERROR(Command("ip link set " + end + " up"));
  return Command(
      fmt::format("tc qdisc add dev {} root tbf rate {}bps burst {} latency 20ms", end, bytes_per_second, kBurst));
}

}  // namespace

Result<TwoNodes> TwoNodes::Make(std::uint64_t bytes_per_second) {
  TwoNodes made;
  const auto make = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(made.networks[1], NewNamespace());
    CAIRN_ASSIGN_OR_RETURN(made.networks[0], NewNamespace());
    CAIRN_RETURN_IF_ERROR(Command(fmt::format("ip link add node0 type veth peer name node1 netns /proc/{}/fd/{}",
                                              ::getpid(), made.networks[1].get())));
    return BringUp(0, bytes_per_second);
  };
  Status status;
  std::thread([&] { status = make(); }).join();
  CAIRN_RETURN_IF_ERROR(status);
  CAIRN_RETURN_IF_ERROR(RunInNetwork(made.networks[1].get(), [&] { return BringUp(1, bytes_per_second); }));
  return made;
}

Status EnterNetwork(int network) {
  return ::setns(network, CLONE_NEWNET) == 0 ? Status::Ok() : Unsupported("entering a network namespace", errno);
}

Status RunInNetwork(int network, const std::function<Status()>& body) {
  Status status;
  std::thread([&] {
    status = EnterNetwork(network);
    if (status.ok()) status = body();
  }).join();
  return status;
}

}  // namespace cairn::bench
