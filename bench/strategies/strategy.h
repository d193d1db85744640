#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "bench/emulation/device_state.h"
#include "bench/emulation/gpu.h"
#include "cairn/status.h"
#include "testing/rate_limited_queue.h"

namespace cairn::bench {

/// A way to checkpoint a training: what the loop calls, and nothing of how it is done. [interface]
///
/// All calls come from the training's one thread. Time spent in Save and BeforeUpdate is the training's stall.
class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Starts a checkpoint of the state, which is that of `step`, or makes it. A failure in the background is returned by
  /// a later Save, or by Drain.
  virtual Status Save(std::uint64_t step) = 0;
  /// Returns when the state may be overwritten.
  virtual Status BeforeUpdate() = 0;
  /// Waits for what is under way.
  virtual Status Drain() = 0;
  /// Reads the newest checkpoint in the directory into the state, and returns its step. NotFound where there is none.
  virtual Result<std::uint64_t> Restore() = 0;
};

/// What a strategy works with. All that is referred to outlives it.
struct Workplace {
  std::string directory;
  DeviceState& state;
  Gpu& gpu;
  int in_flight = 2;                           ///< For who can have several checkpoints under way.
  std::uint64_t host_memory_bytes = 0;         ///< For who asks the user how much he may have.
  std::uint64_t chunk_bytes = 0;               ///< For who copies and writes in chunks: pccheck, cairn. 0: its own.
  int writers = 2;                             ///< Threads a checkpoint: pccheck.
  int queue_depth = 8;                         ///< Writes given to the disk at once: cairn.
  std::shared_ptr<RateLimitedDisk> disk;       ///< Null: the machine's own.
  std::uint64_t network_bytes_per_second = 0;  ///< To a peer, both ways; 0: over the loopback interface.
  std::function<void(std::uint64_t)> durable;  ///< Told of each step that a crash can no longer lose. From any thread.
};

/// What a strategy is called, what it needs, and how it is made. Opening one where another has worked continues what
/// that left, as a restart would.
struct StrategyKind {
  std::string_view name;
  std::string_view tuning;  ///< How it is set up, for who reads the figures.
  std::string_view durable_means = "on the disk";
  bool networked = false;  ///< Its checkpoints go to a peer.
  int (*checkpoints_on_disk)(int in_flight) = nullptr;
  std::uint64_t (*host_bytes)(std::uint64_t state_bytes, std::uint64_t host_memory_bytes) = nullptr;
  Result<std::unique_ptr<Strategy>> (*open)(const Workplace& workplace) = nullptr;
};
[[nodiscard]] StrategyKind NoneKind();
[[nodiscard]] StrategyKind SyncKind();
[[nodiscard]] StrategyKind CheckFreqKind();
[[nodiscard]] StrategyKind GpmKind();
[[nodiscard]] StrategyKind GeminiKind();
[[nodiscard]] StrategyKind PcCheckKind();
[[nodiscard]] StrategyKind CairnKind();
/// InvalidArgument for any other name, with those that there are.
[[nodiscard]] Result<StrategyKind> FindStrategy(std::string_view name);

}  // namespace cairn::bench
