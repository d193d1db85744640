#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bench/emulation/device_state.h"
#include "bench/emulation/gpu.h"
#include "bench/gemini/connection.h"
#include "cairn/group.h"
#include "cairn/status.h"
#include "testing/rate_limited_queue.h"

namespace cairn::bench {

/// A way to checkpoint a training, as the training loop calls it. [interface]
///
/// All calls come from the training's one thread. Time spent in Save and BeforeUpdate is the training's stall.
class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Starts a checkpoint of the state, which is that of `step`, or makes a whole one. A failure in the background is
  /// returned by a later Save, or by Drain.
  virtual Status Save(std::uint64_t step) = 0;
  /// Returns when the state may be overwritten.
  virtual Status BeforeUpdate() = 0;
  /// Waits for what is under way.
  virtual Status Drain() = 0;
  /// Reads the newest checkpoint in the directory into the state, and returns its step. NotFound where there is none.
  /// Of several nodes it is the newest that all have, and later saves replace what only some have.
  virtual Result<std::uint64_t> Restore() = 0;
  /// Its process, if it has one of its own: what that uses counts as this process's.
  [[nodiscard]] virtual std::optional<pid_t> process() const { return std::nullopt; }
};

/// What a strategy works with. Everything it refers to outlives it.
struct Workplace {
  std::string directory;
  std::string memory = {};  ///< A directory on tmpfs, which survives the process: cairn-memory.
  DeviceState& state;
  Gpu& gpu;
  int in_flight = 2;                           ///< For strategies with several checkpoints under way.
  std::uint64_t host_memory_bytes = 0;         ///< For strategies whose user sets a limit.
  std::uint64_t chunk_bytes = 0;               ///< Of one copy and one write: pccheck, cairn. 0: the default.
  int writers = 2;                             ///< Threads a checkpoint: pccheck.
  int queue_depth = 8;                         ///< Writes given to the disk at once: cairn.
  std::shared_ptr<RateLimitedDisk> disk;       ///< Null: the machine's own.
  std::uint64_t network_bytes_per_second = 0;  ///< To a peer, both ways; 0: over the loopback interface.
  /// The nodes that checkpoint together, each with its part of the state. A step then counts only once every node has
  /// it. cairn shares one directory with the others; other strategies have one for each node. Null: this node alone.
  std::shared_ptr<Group> group = nullptr;
  /// For gemini: how to reach the memory of the peer. Empty: of a process that belongs to the directory.
  std::function<Result<std::unique_ptr<Connection>>()> connect_to_peer = nullptr;
  std::function<void(std::uint64_t)> durable;  ///< Called for each step that a crash can no longer lose. On any thread.
};

/// A strategy's name, what it needs, and how to open it. Opening it where it has worked before continues from what is
/// there, as a restart would.
struct StrategyKind {
  std::string_view name;
  std::string_view tuning;  ///< How it is set up, for readers of the figures.
  std::string_view durable_means = "on the disk";
  bool networked = false;    ///< Its checkpoints go to a peer.
  bool needs_torch = false;  ///< Only bench_training_torch has it.
  int (*checkpoints_on_disk)(int in_flight) = nullptr;
  std::uint64_t (*host_bytes)(std::uint64_t state_bytes, std::uint64_t host_memory_bytes, int in_flight) = nullptr;
  Result<std::unique_ptr<Strategy>> (*open)(const Workplace& workplace) = nullptr;
};
[[nodiscard]] StrategyKind NoneKind();
[[nodiscard]] StrategyKind SyncKind();
[[nodiscard]] StrategyKind TorchSaveKind();
[[nodiscard]] StrategyKind CheckFreqKind();
[[nodiscard]] StrategyKind GpmKind();
[[nodiscard]] StrategyKind GeminiKind();
[[nodiscard]] StrategyKind PcCheckKind();
[[nodiscard]] StrategyKind CairnKind();
[[nodiscard]] StrategyKind CairnMemoryKind();
/// InvalidArgument for an unknown name, with a list of the known ones.
[[nodiscard]] Result<StrategyKind> FindStrategy(std::string_view name);

}  // namespace cairn::bench
