#include "device/host_copy.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

// Short and strided runs are copied, then summed while they are in the first-level cache. CPU s per GB of contiguous
// memory, by slice (Zen 5): 4 KiB 0.085, 16 KiB 0.064, 32 KiB 0.058, 64 KiB 0.062, 256 KiB 0.063, 1 MiB 0.071.
constexpr std::uint64_t kSlice = 32U << 10;
static_assert(kChecksumBlock % kSlice == 0);
// From here on, copying and summing in one pass takes less.
constexpr std::uint64_t kLongRun = 128U << 10;

void CopyRowsOf(CopyDirection direction, const CopyPiece& piece, const LogicalRows& rows, std::byte* memory) {
  if (direction == CopyDirection::kToDevice) {
    ScatterRows(*piece.tensor, rows, memory, piece.memory_pitch);
  } else {
    GatherRows(*piece.tensor, rows, memory, piece.memory_pitch);
  }
}

// Whether the piece is contiguous in its tensor's memory.
bool IsRun(const CopyPiece& piece) { return piece.rows == 1 && piece.tensor->contiguous(); }

// Copies bytes [skip, skip + n) of the piece, counted over its rows.
void CopyPart(CopyDirection direction, const CopyPiece& piece, std::uint64_t skip, std::uint64_t n) {
  const std::uint64_t row_bytes = piece.end - piece.begin;
  if (piece.rows == 1) {
    const std::uint64_t begin = piece.begin + skip;
    if (direction == CopyDirection::kToDevice)
      return ScatterBytes(*piece.tensor, begin, begin + n, piece.memory + skip);
    return GatherBytes(*piece.tensor, begin, begin + n, piece.memory + skip);
  }
  while (n > 0) {
    const std::uint64_t row = skip / row_bytes;
    const std::uint64_t within = skip % row_bytes;
    const bool whole = within == 0 && n >= row_bytes;
    const LogicalRows rows{.begin = piece.begin + row * piece.tensor_pitch + within,
                           .bytes = whole ? row_bytes : std::min(row_bytes - within, n),
                           .rows = whole ? n / row_bytes : 1,
                           .pitch = piece.tensor_pitch};
    CopyRowsOf(direction, piece, rows, piece.memory + row * piece.memory_pitch + within);
    skip += rows.bytes * rows.rows;
    n -= rows.bytes * rows.rows;
  }
}

}  // namespace

std::uint64_t BatchBytes(const CopyBatch& batch) {
  std::uint64_t bytes = 0;
  for (const CopyPiece& piece : batch.pieces) bytes += piece.bytes();
  return bytes;
}

Status CheckBatch(const CopyBatch& batch, int lanes) {
  if (batch.lane < 0 || batch.lane >= lanes) {
    return Error(StatusCode::kInvalidArgument, "copy: lane: expected 0 to {}, found {}", lanes - 1, batch.lane);
  }
  const bool summed = batch.sums != nullptr && batch.direction == CopyDirection::kToHost;
  const std::byte* next = nullptr;
  for (std::size_t i = 0; i < batch.pieces.size(); ++i) {
    const CopyPiece& piece = batch.pieces[i];
    if (piece.tensor == nullptr || piece.begin > piece.end || piece.rows == 0 ||
        piece.tensor_end() > piece.tensor->bytes) {
      return Error(StatusCode::kInvalidArgument, "copy, piece {}: bytes {} to {} in {} rows of a tensor of {} bytes", i,
                   piece.begin, piece.end, piece.rows, piece.tensor == nullptr ? 0 : piece.tensor->bytes);
    }
    if (piece.bytes() == 0) continue;
    if (piece.memory == nullptr) return Error(StatusCode::kInvalidArgument, "copy, piece {}: no memory", i);
    if (summed && piece.rows > 1) {
      return Error(StatusCode::kInvalidArgument, "copy with checksums, piece {}: expected 1 row, found {}", i,
                   piece.rows);
    }
    if (summed && next != nullptr && piece.memory != next) {
      return Error(StatusCode::kInvalidArgument,
                   "copy with checksums, piece {}: starts {} bytes from the end of the previous piece", i,
                   piece.memory - next);
    }
    next = piece.memory + piece.bytes();
  }
  return Status::Ok();
}

void CopyOnHost(const CopyBatch& batch, std::uint64_t begin, std::uint64_t end, RateLimit* link) {
  const bool summed = batch.sums != nullptr && batch.direction == CopyDirection::kToHost;
  std::size_t i = 0;
  std::uint64_t skip = begin;
  // Skips finished and empty pieces, so that (i, skip) is the next byte's position.
  const auto skip_finished = [&] {
    while (i < batch.pieces.size() && skip >= batch.pieces[i].bytes()) skip -= batch.pieces[i++].bytes();
  };
  skip_finished();
  std::uint32_t crc = 0;
  NonFinite worst = NonFinite::kNone;
  const auto look_in = [&](const CopyPiece& piece) {
    return batch.worst != nullptr ? FiniteLook{.dtype = piece.dtype, .worst = &worst} : FiniteLook{};
  };
  for (std::uint64_t at = begin; at < end;) {
    const CopyPiece& piece = batch.pieces[i];
    std::byte* const memory = piece.memory + skip;
    std::uint64_t n = std::min({kChecksumBlock - at % kChecksumBlock, end - at, piece.bytes() - skip});
    if (n >= kLongRun && batch.direction == CopyDirection::kToHost && IsRun(piece)) {
      crc = CopyWithCrc32c({piece.tensor->base + piece.begin + skip, n}, memory, crc, look_in(piece));
      skip += n;
      skip_finished();
    } else {
      n = std::min(kSlice - at % kSlice, end - at);
      const std::byte* unsummed = memory;
      for (std::uint64_t left = n; left > 0;) {
        const CopyPiece& next = batch.pieces[i];
        const std::uint64_t part = std::min(left, next.bytes() - skip);
        CopyPart(batch.direction, next, skip, part);
        left -= part;
        skip += part;
        const std::byte* const copied = next.memory + skip;
        skip_finished();
        const bool last_of_dtype = left == 0 || batch.pieces[i].dtype != next.dtype;
        if (summed && last_of_dtype) crc = Crc32c({std::exchange(unsummed, copied), copied}, crc, look_in(next));
      }
    }
    at += n;
    if (summed && (at % kChecksumBlock == 0 || at == end)) {
      batch.sums[(at - 1) / kChecksumBlock] = std::exchange(crc, 0);
    }
    if (link != nullptr) link->Pass(n);
  }
  if (worst != NonFinite::kNone) Raise(*batch.worst, worst);
}

}  // namespace cairn
