#include "device/cuda_kernel_plan.h"

#include <algorithm>
#include <span>
#include <utility>

namespace cairn {
namespace {

// Pieces below this size are faster in a kernel than as a copy each: a copy costs about 2 us to enqueue and start, in
// which PCIe moves 100 KB.
constexpr std::uint64_t kSmallPiece = 128U << 10;
// A copy engine moves rows one by one. An estimate, not measured.
constexpr std::uint64_t kShortRow = 512;
// 64 blocks keep about 16,000 words in flight, which hides PCIe's latency of some microseconds. Within the GPU the rate
// is a hundred times that, and the fence waits for it.
constexpr std::uint64_t kBlocksToHost = 64;
constexpr std::uint64_t kBlocksWithinGpu = 512;

bool IsValid(const CopyPiece& piece) { return piece.begin < piece.end && piece.tensor_end() <= piece.tensor->bytes; }

kernels::PieceTable TableOf(std::span<const CopyPiece> pieces, CopyDirection direction) {
  kernels::PieceTable table{};
  table.memory = reinterpret_cast<std::uintptr_t>(pieces[0].memory);
  table.into_tensor = direction == CopyDirection::kToDevice ? 1 : 0;
  table.pieces = static_cast<kernels::U32>(pieces.size());
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    table.tensors[i] = reinterpret_cast<std::uintptr_t>(pieces[i].tensor->base + pieces[i].begin);
    end += pieces[i].bytes();
    table.ends[i] = static_cast<kernels::U32>(end);
  }
  return table;
}

// How many small pieces from the first on lie back to back in memory.
std::size_t CountBackToBack(std::span<const CopyPiece> pieces) {
  std::size_t count = 0;
  const std::byte* next = pieces[0].memory;
  while (count < pieces.size() && ContinuesTable(pieces[count], next)) {
    next += pieces[count].bytes();
    ++count;
  }
  return count;
}

}  // namespace

bool ContinuesTable(const CopyPiece& piece, const std::byte* next) {
  return IsValid(piece) && piece.rows == 1 && piece.tensor->contiguous() && piece.bytes() < kSmallPiece &&
         piece.memory == next;
}

bool NeedsKernel(const CopyPiece& piece) {
  if (!IsValid(piece)) return false;
  const StridedLayout& layout = *piece.tensor;
  if (layout.outer.size() > 1) return true;
  const std::uint64_t width = piece.end - piece.begin;
  if (piece.rows > 1) {
    const LogicalRows rows{.begin = piece.begin, .bytes = width, .rows = piece.rows, .pitch = piece.tensor_pitch};
    return width < kShortRow || !PlaceRows(layout, rows);
  }
  return !layout.contiguous() && layout.row_bytes < kShortRow;
}

kernels::StridedCopy KernelCopyOf(const CopyPiece& piece, CopyDirection direction) {
  const StridedLayout& layout = *piece.tensor;
  kernels::StridedCopy copy{};
  copy.tensor = reinterpret_cast<std::uintptr_t>(layout.base);
  copy.row_bytes = layout.row_bytes;
  copy.begin = piece.begin;
  copy.width = piece.end - piece.begin;
  copy.rows = piece.rows;
  copy.memory = reinterpret_cast<std::uintptr_t>(piece.memory);
  if (piece.rows > 1) {
    copy.tensor_pitch = piece.tensor_pitch;
    copy.memory_pitch = piece.memory_pitch;
  }
  copy.into_tensor = direction == CopyDirection::kToDevice ? 1 : 0;
  // Where the rows begin at several places of a word, the worst of them.
  const std::uint64_t skip =
      copy.memory_pitch % kernels::kWord == 0 ? copy.memory % kernels::kWord : kernels::kWord - 1;
  copy.words = (skip + copy.width + kernels::kWord - 1) / kernels::kWord;

  std::uint64_t all = copy.tensor | copy.begin | copy.width | copy.memory | copy.tensor_pitch | copy.memory_pitch;
  if (!layout.contiguous()) all |= copy.row_bytes;
  copy.dimensions = static_cast<kernels::U32>(layout.outer.size());
  for (std::size_t d = 0; d < layout.outer.size(); ++d) {
    copy.outer[d] = {static_cast<kernels::U64>(layout.outer[d].size),
                     static_cast<kernels::U64>(layout.outer[d].stride)};
    all |= copy.outer[d].stride;
  }
  all |= kernels::kWord;
  copy.unit = static_cast<kernels::U32>(all & (~all + 1));
  return copy;
}

CudaKernelPlan TakeForKernels(CopyBatch& batch) {
  CudaKernelPlan plan;
  std::vector<CopyPiece> rest;
  const std::span<const CopyPiece> pieces = batch.pieces;
  for (std::size_t i = 0; i < pieces.size();) {
    if (NeedsKernel(pieces[i])) {
      plan.strided.push_back(KernelCopyOf(pieces[i++], batch.direction));
      continue;
    }
    const std::size_t count = CountBackToBack(pieces.subspan(i));
    if (count < kFewPieces) {
      rest.insert(rest.end(), pieces.begin() + static_cast<std::ptrdiff_t>(i),
                  pieces.begin() + static_cast<std::ptrdiff_t>(i + std::max<std::size_t>(count, 1)));
      i += std::max<std::size_t>(count, 1);
      continue;
    }
    for (const std::size_t end = i + count; i < end;) {
      const std::size_t n = std::min<std::size_t>(end - i, kernels::kMaxPieces);
      plan.tables.push_back(TableOf(pieces.subspan(i, n), batch.direction));
      i += n;
    }
  }
  if (plan.size() != 0) batch.pieces = std::move(rest);
  return plan;
}

unsigned int KernelBlocks(std::uint64_t words, CopyDirection direction) {
  const std::uint64_t most = direction == CopyDirection::kToStaging ? kBlocksWithinGpu : kBlocksToHost;
  return static_cast<unsigned int>(
      std::clamp<std::uint64_t>((words + kernels::kThreadsPerBlock - 1) / kernels::kThreadsPerBlock, 1, most));
}

}  // namespace cairn
