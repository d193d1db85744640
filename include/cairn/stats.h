#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// The life of a save. It only moves down this list; kDurable, kFailed are ends.
enum class SavePhase : std::uint8_t {
  kQueued,      ///< Accepted; no byte has moved.
  kCapturing,   ///< Copies are being enqueued and run.
  kCaptured,    ///< The tensors may be overwritten; bytes are on their way to the disk.
  kCommitting,  ///< All bytes are written; header, fsyncs, manifest, rename.
  kDurable,
  kFailed,  ///< Failed, cancelled, skipped or replaced: the handle's status says which.
};
[[nodiscard]] std::string_view SavePhaseName(SavePhase phase);

/// What one save did. Times are since the call of Save began; zero where not reached.
struct SaveStats {
  std::uint64_t step = 0;
  SavePhase phase = SavePhase::kQueued;
  std::uint64_t bytes = 0;              ///< Tensor bytes of this rank.
  std::uint64_t bytes_written = 0;      ///< Bytes handed to the filesystem so far, header and padding included.
  std::chrono::nanoseconds call{};      ///< How long the call of Save took.
  std::chrono::nanoseconds stall{};     ///< Of it and of Fence: how long the caller was held up for this save.
  std::chrono::nanoseconds enqueued{};  ///< Every copy had been enqueued.
  std::chrono::nanoseconds captured{};
  std::chrono::nanoseconds written{};  ///< Every data byte had been written and summed.
  std::chrono::nanoseconds durable{};
  bool staged = false;    ///< The snapshot went through spare device memory.
  bool direct = false;    ///< The shard was written with O_DIRECT.
  bool recycled = false;  ///< It was written over a retired one's blocks.
};

/// What the checkpointer as a whole looks like.
struct CheckpointerStats {
  std::string io_queue;                   ///< "io_uring" or "threads".
  std::string io_queue_reason;            ///< Why that one.
  std::uint64_t pool_bytes = 0;           ///< Mapped for chunks; never above Options::host_memory_bytes.
  std::uint64_t pool_hugepage_bytes = 0;  ///< Of it, backed by huge pages; 0 until the pool has been touched.
  std::uint64_t pool_peak_bytes = 0;      ///< The most that was ever in use at once.
  std::uint64_t chunk_bytes = 0;
  std::uint64_t saves_started = 0;
  std::uint64_t saves_durable = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t saves_in_flight = 0;
  std::uint64_t shards_recycled = 0;  ///< Retired shards of this rank that later saves were written over.
  std::string not_recycled_reason;    ///< Why the last one that could not be was not. Empty: none was refused.
  std::uint64_t save_interval = 0;    ///< In iterations, as ShouldSave has chosen; 0: not yet, or not asked to.
  std::string save_interval_reason;   ///< What keeps it from being shorter, with figures. Empty without steering.
};

enum class Severity : std::uint8_t { kInfo, kWarning, kError };

enum class EventKind : std::uint8_t { kLog, kSaveCaptured, kSaveDurable, kSaveFailed, kCheckpointRemoved };

/// Something that happened. Delivered from the engine's thread, or from one that restores: return soon, and do not call
/// Cairn from it.
struct Event {
  EventKind kind = EventKind::kLog;
  Severity severity = Severity::kInfo;
  std::optional<std::uint64_t> step;  ///< For every kind but kLog, which need not be about one.
  Status status;                      ///< For kSaveFailed, and for warnings that have a cause.
  std::string message;
};
using EventCallback = std::function<void(const Event&)>;

}  // namespace cairn
