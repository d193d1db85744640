#include "bench/gemini/peer.h"

#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "bench/gemini/gloo_pair.h"
#include "bench/gemini/peer_address.h"
#include "bench/gemini/peer_memory.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::minutes(10);
constexpr auto kGlance = std::chrono::milliseconds(10);

std::string TrainingNetwork() {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(kPeerNetworkFd);
}

}  // namespace

Status RunPeer(const std::string& directory, std::uint64_t state_bytes, const std::string& address,
               const std::string& training_address) {
  CAIRN_ASSIGN_OR_RETURN(PeerMemory memory, PeerMemory::Make(state_bytes));
  CAIRN_ASSIGN_OR_RETURN(const auto meeting, GlooMeeting::Make(address));
  CAIRN_ASSIGN_OR_RETURN(
      const PeerNotice notice,
      PeerNotice::Publish(directory, {.address = address,
                                      .port = meeting->port(),
                                      .training_address = training_address,
                                      .network = address == training_address ? "" : TrainingNetwork(),
                                      .state_bytes = state_bytes}));
  {
    const UniqueFd ready(kPeerReadyFd);
    static_cast<void>(::write(ready.get(), "ready\n", 6));
  }
  Clock::time_point last = Clock::now();
  while (notice.Stands() && Clock::now() - last < kPatience) {
    CAIRN_ASSIGN_OR_RETURN(const bool asked, meeting->Asked());
    if (!asked) {
      std::this_thread::sleep_for(kGlance);
      continue;
    }
    const Result<std::unique_ptr<Connection>> training = meeting->Accept();
    // It always ends in an error: the training has ended or was killed.
    const Status ended = training.ok() ? memory.Serve(**training) : training.status();
    fmt::print(stderr, "a training has gone: {}\n", ended.ToString());
    last = Clock::now();
  }
  return {};
}

}  // namespace cairn::bench
