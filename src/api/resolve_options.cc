#include "api/resolve_options.h"

#include <algorithm>
#include <thread>

#include "api/mirror_specs.h"
#include "base/bytes.h"
#include "base/finite.h"
#include "base/memory_limit.h"
#include "base/status_macros.h"
#include "store/memory_folder.h"

namespace cairn {
namespace {

constexpr std::uint64_t kSmallChunk = 4U << 20;

// At most half of the pool's chunks are being written: the others are filled meanwhile.
std::uint64_t ChooseChunkBytes(std::uint64_t pool_bytes, int queue_depth) {
  constexpr std::uint64_t kLarge = 8U << 20;
  return pool_bytes / kLarge >= 2 * static_cast<std::uint64_t>(queue_depth) ? kLarge : kSmallChunk;
}

/// Beyond a control group's limit the kernel kills the process, whichever page it touches next.
Status CheckMemoryLimit(std::uint64_t pool_bytes) {
  const std::optional<MemoryLimit> limit = FindMemoryLimit();
  if (!limit || pool_bytes <= limit->available) return Status::Ok();
  return Error(StatusCode::kResourceExhausted,
               "host_memory_bytes: expected at most {} ({} allows {}, of which {} are in use and cannot be "
               "reclaimed), found {}",
               limit->available, limit->file, limit->bytes, limit->held, pool_bytes);
}

/// A limit for a pool that chooses its size. What the smallest pool needs by default is allowed on any machine, more
/// only if somebody gives the pool's size.
Result<std::uint64_t> ChoosePoolLimit(const Options& options, std::uint64_t ranks_of_node) {
  constexpr std::uint64_t kLeastPool = 8 * kSmallChunk;
  const std::uint64_t chunk = options.chunk_bytes == 0 ? kSmallChunk : options.chunk_bytes;
  const std::uint64_t needed = static_cast<std::uint64_t>(options.queue_depth) * chunk;
  const std::uint64_t share = ChooseHostMemory(ranks_of_node);
  if (needed <= std::max(share, kLeastPool)) return std::max(share, needed);
  return Error(StatusCode::kInvalidArgument,
               "host_memory_bytes: expected a size, as queue_depth chunks ({} of chunk_bytes {}) need a pool of {}, "
               "found none: a pool that chooses its size has at most {}, a quarter of the available memory divided by "
               "the ranks of this node ({})",
               options.queue_depth, chunk, needed, std::max(share, kLeastPool), ranks_of_node);
}

/// Whoever sums bytes looks at them, so the host must.
Result<MarkNonFinite> ChooseNonFinite(const Options& options) {
  const bool host_sums = options.checksums && !options.gpu_checksums;
  if (options.nonfinite == MarkNonFinite::kMark && !host_sums) {
    return Error(StatusCode::kInvalidArgument, "nonfinite: expected \"off\" or \"auto\" {}, found \"mark\"",
                 options.checksums ? "with gpu_checksums" : "without checksums");
  }
  if (options.nonfinite != MarkNonFinite::kAuto) return options.nonfinite;
  return host_sums && FindsNonFiniteCheaply() ? MarkNonFinite::kMark : MarkNonFinite::kOff;
}

/// One rank's part of what is enough for the whole node.
int Share(std::uint64_t of_node, std::uint64_t ranks_of_node, std::uint64_t least, std::uint64_t most) {
  return static_cast<int>(std::clamp(of_node / ranks_of_node, least, most));
}

Status CheckMemory(const Options& options) {
  if (!options.checksums) {
    return Error(StatusCode::kInvalidArgument, "memory_root: expected checksums, found checksums off");
  }
  return CheckMemoryRoot(options.memory_root);
}

}  // namespace

bool DependOnNodeRanks(const Options& options) {
  return options.host_memory_bytes == 0 || options.queue_depth == 0 || options.worker_threads == 0;
}

std::uint64_t ChooseHostMemory(std::uint64_t ranks_of_node) { return FindMemory().available / 4 / ranks_of_node; }

Result<Options> ResolveOptions(Options options, std::uint64_t ranks_of_node) {
  const auto in_range = [](const char* field, auto value, auto least, auto most) {
    return value >= least && value <= most
               ? Status::Ok()
               : Error(StatusCode::kInvalidArgument, "{}: expected {} to {}, found {}", field, least, most, value);
  };
  if (!options.memory_root.empty()) CAIRN_RETURN_IF_ERROR(CheckMemory(options));
  if (options.root.empty()) return Error(StatusCode::kInvalidArgument, "root is empty");
  CAIRN_ASSIGN_OR_RETURN(options.mirrors, CheckMirrors(options));
  if (!options.restore_from.empty()) {
    CAIRN_ASSIGN_OR_RETURN(options.restore_from, CheckMirrorTarget(options.restore_from, "restore_from"));
  }
  CAIRN_RETURN_IF_ERROR(in_range("max_in_flight", options.max_in_flight, 1, 64));
  CAIRN_RETURN_IF_ERROR(in_range("queue_depth", options.queue_depth, 0, 1024));
  CAIRN_RETURN_IF_ERROR(in_range("worker_threads", options.worker_threads, 0, 1024));
  CAIRN_RETURN_IF_ERROR(in_range("copy_streams", options.copy_streams, 1, 16));
  CAIRN_RETURN_IF_ERROR(in_range("stop_after_failures", options.stop_after_failures, 0, 1'000'000));
  // Beyond this the clock might not have room for it.
  constexpr std::chrono::hours kYear{24 * 365};
  options.stall_timeout = std::clamp<std::chrono::nanoseconds>(options.stall_timeout, {}, kYear);
  options.mirror_timeout = std::clamp<std::chrono::nanoseconds>(options.mirror_timeout, {}, kYear);
  // Two: the disk has work while the next write is prepared.
  if (options.queue_depth == 0) options.queue_depth = Share(8, ranks_of_node, 2, 8);
  if (options.worker_threads == 0) {
    options.worker_threads = Share(std::thread::hardware_concurrency(), ranks_of_node, 1, 4);
  }
  if (options.chunk_bytes != 0) {
    CAIRN_RETURN_IF_ERROR(in_range("chunk_bytes", options.chunk_bytes, kChecksumBlock, std::uint64_t{1} << 30));
  }
  const bool pool_grows = options.host_memory_bytes == 0;
  if (pool_grows) {
    CAIRN_ASSIGN_OR_RETURN(options.host_memory_bytes, ChoosePoolLimit(options, ranks_of_node));
  }
  if (options.chunk_bytes == 0) {
    const bool beside_memory = pool_grows && !options.memory_root.empty();
    options.chunk_bytes =
        beside_memory ? kSmallChunk : ChooseChunkBytes(options.host_memory_bytes, options.queue_depth);
  }
  if (options.chunk_bytes % kChecksumBlock != 0) {
    return Error(StatusCode::kInvalidArgument, "chunk_bytes: expected a multiple of {}, found {}", kChecksumBlock,
                 options.chunk_bytes);
  }
  if (options.staging_bytes != 0 && options.staging_bytes < options.chunk_bytes) {
    return Error(StatusCode::kInvalidArgument, "staging_bytes: expected 0, or at least one chunk of {}, found {}",
                 options.chunk_bytes, options.staging_bytes);
  }
  if (options.gpu_checksums && !options.checksums) {
    return Error(StatusCode::kInvalidArgument, "gpu_checksums: expected false, as checksums is false, found true");
  }
  CAIRN_ASSIGN_OR_RETURN(options.nonfinite, ChooseNonFinite(options));
  CAIRN_RETURN_IF_ERROR(in_range("file_mode", options.file_mode, 0U, 0777U));
  CAIRN_RETURN_IF_ERROR(in_range("directory_mode", options.directory_mode, 0U, 0777U));
  // The writer itself must be able to read and write its files.
  if ((options.file_mode & 0600) != 0600 || (options.directory_mode & 0700) != 0700) {
    return Error(StatusCode::kInvalidArgument,
                 "file_mode, directory_mode: expected at least 0600 and 0700, found {:#o} and {:#o}", options.file_mode,
                 options.directory_mode);
  }
  if (options.steering) {
    const auto seconds = [](std::chrono::nanoseconds span) { return std::chrono::duration<double>(span).count(); };
    CAIRN_RETURN_IF_ERROR(in_range("slowdown", options.steering->slowdown, 1e-9, 1.0));
    CAIRN_RETURN_IF_ERROR(in_range("mtbf (s)", seconds(options.steering->mtbf), 1e-3, 1e9));
    CAIRN_RETURN_IF_ERROR(in_range("restart_time (s)", seconds(options.steering->restart_time), 0.0, 1e9));
  }
  CAIRN_RETURN_IF_ERROR(CheckMemoryLimit(options.host_memory_bytes));
  return options;
}

}  // namespace cairn
