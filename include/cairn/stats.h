#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// The phases of a save. A save only moves down this list; it ends in kDurable or kFailed, or in kKept if the disk
/// never gets it.
enum class SavePhase : std::uint8_t {
  kQueued,      ///< Accepted; no byte has moved.
  kCapturing,   ///< Copies are being enqueued and run.
  kCaptured,    ///< The tensors may be overwritten. Their bytes are still being written.
  kCommitting,  ///< All data is written. Header, fsyncs, manifest and rename follow.
  /// Only with Options::memory_root: committed in memory. The death of the process cannot lose it any more, that of the
  /// machine can. The disk gets it if it is free before a newer save is kept.
  kKept,
  kDurable,
  kFailed,  ///< Failed, cancelled, skipped or replaced: the handle's status says which.
};
[[nodiscard]] std::string_view SavePhaseName(SavePhase phase);

/// What one save did. Times count from the beginning of the call of Save; zero if not reached.
struct SaveStats {
  std::uint64_t step = 0;
  SavePhase phase = SavePhase::kQueued;
  std::uint64_t bytes = 0;              ///< Tensor bytes of this rank.
  std::uint64_t bytes_written = 0;      ///< Bytes handed to the filesystem so far, header and padding included.
  std::chrono::nanoseconds call{};      ///< How long the call of Save took.
  std::chrono::nanoseconds stall{};     ///< How long Save and Fence blocked the caller for this save.
  std::chrono::nanoseconds enqueued{};  ///< Every copy had been enqueued.
  std::chrono::nanoseconds captured{};
  std::chrono::nanoseconds written{};  ///< Every data byte had been written and checksummed.
  std::chrono::nanoseconds kept{};     ///< Zero also without Options::memory_root.
  std::chrono::nanoseconds durable{};
  std::uint64_t gpu_checksum_bytes = 0;  ///< Tensor bytes so far whose checksums GPUs computed.
  bool staged = false;                   ///< The snapshot went through spare device memory.
  bool direct = false;                   ///< The shard was written with O_DIRECT.
  bool recycled = false;                 ///< It was written over a retired one's blocks.
};

/// The state of a checkpointer.
struct CheckpointerStats {
  std::string io_queue;                   ///< "io_uring" or "threads".
  std::string io_queue_reason;            ///< Why that one.
  std::uint64_t ranks_of_node = 1;        ///< Which share this node, as far as is known: see host_memory_bytes.
  std::uint64_t pool_bytes = 0;           ///< Size of the pool; never above its limit.
  std::uint64_t pool_limit_bytes = 0;     ///< Options::host_memory_bytes, or what was chosen for 0.
  std::uint64_t pool_hugepage_bytes = 0;  ///< How much of it huge pages back; 0 until the pool was touched.
  std::uint64_t pool_peak_bytes = 0;      ///< The most that was ever in use at once.
  std::uint64_t chunk_bytes = 0;
  std::uint64_t saves_started = 0;
  std::uint64_t saves_kept = 0;
  std::uint64_t saves_durable = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t saves_in_flight = 0;
  /// How long ago the newest of saves_durable became durable; none before the first.
  std::optional<std::chrono::nanoseconds> since_durable;
  std::uint64_t failures_in_a_row = 0;  ///< Failed or refused saves since the last durable one, but no cancelled ones.
  /// On rank 0: the newest checkpoint that is known to be durable, also one that the root had at Open, and its age by
  /// the system's clock.
  std::optional<std::uint64_t> newest_step;
  std::optional<std::chrono::nanoseconds> newest_age;
  /// Free on the root's filesystem, when the last save began or at Open; none if it does not say.
  std::optional<std::uint64_t> disk_free_bytes;
  std::uint64_t shards_recycled = 0;  ///< Files of retired checkpoints that this rank overwrote.
  std::string not_recycled_reason;    ///< Why the last rejected file could not be reused.
  std::uint64_t save_interval = 0;    ///< Chosen by ShouldSave, in iterations. 0: none chosen yet.
  std::string save_interval_reason;   ///< What limits it, with figures. Empty without steering.
  /// Where saves are kept: the folder in Options::memory_root. Empty without that, and once it is not used any more.
  std::string memory_root;
};

enum class Severity : std::uint8_t { kInfo, kWarning, kError };

enum class EventKind : std::uint8_t {
  kLog,
  kSaveCaptured,
  kSaveDurable,
  kSaveFailed,
  kCheckpointRemoved,
  /// Something else was done than was asked for: a restore passed a damaged checkpoint over, a file was copied that
  /// could not be linked, the host computes the checksums. The status says why.
  kFallBack,
  kSaveKept,
};

/// Something that happened. Delivered on a thread of Cairn, or on one that calls Save, Fence or Restore: return soon,
/// and do not call Cairn.
struct Event {
  EventKind kind = EventKind::kLog;
  Severity severity = Severity::kInfo;
  std::optional<std::uint64_t> step;  ///< Set for every kind except kLog and kFallBack, where it is optional.
  Status status;                      ///< For kSaveFailed, and for warnings with a cause: its code is the event's.
  std::string message;
  /// In what it happened: "open", "save", "fence", "retention", "restore", "disk", "memory", "metrics", "mirror" or
  /// "close".
  std::string_view phase = {};
  /// How long it took, or has waited: a save since its call.
  std::optional<std::chrono::nanoseconds> duration = std::nullopt;
  /// What it is about: a checkpoint's folder, a file, a mirror's target. The root if it is nothing else.
  std::string path = {};
  int rank = 0;  ///< This process's in the group.
};
using EventCallback = std::function<void(const Event&)>;

}  // namespace cairn
