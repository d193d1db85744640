#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/gemini/connection.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The peer of a directory's training: a process that keeps the training's checkpoints in its memory, two buffers, of
/// which one has the newest complete checkpoint.
///
/// It outlives the training, however that ends, and serves the one that is started next. It ends soon after the
/// directory is gone, or when no training has come for ten minutes. The file "gemini-peer" in the directory holds its
/// address; the file's lock (fcntl) shows that it is alive. Its errors are in "gemini-peer.log".
///
/// Connects to it, and starts it first if there is none. `bytes_per_second` 0: over the loopback interface.
/// FailedPrecondition if there is one for another size of state; Unsupported as TwoNodes::Make.
[[nodiscard]] Result<std::unique_ptr<Connection>> ConnectToPeer(const std::string& directory, std::uint64_t state_bytes,
                                                                std::uint64_t bytes_per_second);

/// How the peer's process is started: bench_gemini_peer DIRECTORY STATE_BYTES ADDRESS TRAINING_ADDRESS, with these two
/// descriptors.
inline constexpr int kPeerReadyFd = 3;    ///< It writes "ready" here, or why there will be no peer.
inline constexpr int kPeerNetworkFd = 4;  ///< The training's network namespace, where the addresses differ.
/// Its body; returns when it is to end.
Status RunPeer(const std::string& directory, std::uint64_t state_bytes, const std::string& address,
               const std::string& training_address);

}  // namespace cairn::bench
