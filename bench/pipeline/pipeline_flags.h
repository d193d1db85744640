#pragma once

#include <cstdint>
#include <string>

#include "bench/harness/flags.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Where the launcher's nodes find their listening socket.
inline constexpr int kLinkFd = 3;

/// What the launcher adds to its own arguments when it starts a node, and what a node on a host of its own finds out.
struct NodeFlags {
  int stage = -1;         ///< -1: the launcher itself.
  std::string directory;  ///< Of the run; each node has its own in it, and there is one for both.
  std::string link;       ///< Stage 1: ADDRESS:PORT where stage 0 listens.
  std::string memory;     ///< ADDRESS:PORT of the memory that gemini saves to; empty for other strategies.
  bool resume = false;
  int link_fd = kLinkFd;  ///< Stage 0: the listening socket.
};

/// The flags of bench_pipeline. `run` has those that bench_training has as well, scaled and checked as there; its state
/// and host memory are those of a node, the larger one.
struct PipelineFlags {
  Flags run;
  std::uint64_t micro_batches = 1;
  std::uint64_t activation_bytes = 0;  ///< Scaled.
  int restarts = 0;                    ///< Of both nodes, after one was killed.
  NodeFlags node;
};

/// As ParseFlags.
[[nodiscard]] Result<PipelineFlags> ParsePipelineFlags(int argc, char** argv);

}  // namespace cairn::bench
