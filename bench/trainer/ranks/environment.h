#pragma once

#include <cstdint>
#include <string>

namespace cairn::trainer {

/// This process's place in a job of several processes, as torchrun describes it.
struct RankEnvironment {
  int rank = 0;
  int world = 1;
  /// Its number on its machine: the GPU that it uses.
  int local_rank = 0;
  std::string master_address;
  std::uint16_t master_port = 0;
  /// Whether torchrun runs the store; otherwise rank 0 does.
  bool store_runs = false;
  /// Tells a restart of the job from the run before.
  std::string attempt = "0";
};

/// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Without WORLD_SIZE a process is alone. Throws
/// std::runtime_error, naming the variable, for a value that does not fit.
RankEnvironment ReadRankEnvironment();

}  // namespace cairn::trainer
