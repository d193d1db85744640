#include "device/cuda_sum_plan.h"

#include <algorithm>

namespace cairn {
namespace {

// 10,816 pieces: as many as fit one batch of copies.
constexpr std::size_t kMaxTables = 32;

}  // namespace

static_assert(kernels::kSumBlock == kChecksumBlock);

std::optional<CudaSumPlan> PlanCudaSums(std::span<const CopyPiece> pieces, std::uint64_t most_bytes) {
  CudaSumPlan plan;
  std::uint64_t end = 0;
  for (const CopyPiece& piece : pieces) {
    if (piece.rows != 1 || !piece.tensor->contiguous() || piece.end > piece.tensor->bytes) return std::nullopt;
    if (piece.begin >= piece.end) continue;
    if (plan.tables.empty() || plan.tables.back().pieces == kernels::kMaxSummed) {
      if (plan.tables.size() == kMaxTables) return std::nullopt;
      plan.tables.push_back({.begin = static_cast<kernels::U32>(end)});
    }
    kernels::SumTable& table = plan.tables.back();
    end += piece.bytes();
    if (end > most_bytes) return std::nullopt;
    table.tensors[table.pieces] = reinterpret_cast<std::uintptr_t>(piece.tensor->base + piece.begin);
    table.ends[table.pieces] = static_cast<kernels::U32>(end);
    ++table.pieces;
  }
  if (plan.tables.empty()) return std::nullopt;
  for (kernels::SumTable& table : plan.tables) table.total = static_cast<kernels::U32>(end);
  return plan;
}

std::size_t MaxSlices(std::uint64_t bytes) {
  // A slice between two tables has a number of each.
  return DivideUp(bytes, kernels::kSumSlice) + kMaxTables - 1;
}

void PlaceSlices(CudaSumPlan& plan, std::uint32_t* slices) {
  for (kernels::SumTable& table : plan.tables) {
    table.slices = reinterpret_cast<std::uintptr_t>(slices);
    slices += SlicesOf(table);
  }
}

void CombineSlices(const CudaSumPlan& plan, const std::uint32_t* slices, std::uint32_t* sums) {
  // All ones, as the inverse of each sum is what the slices' numbers make.
  std::fill_n(sums, DivideUp(plan.tables.front().total, kernels::kSumBlock), ~std::uint32_t{0});
  for (const kernels::SumTable& table : plan.tables) {
    const std::uint32_t first = table.begin / kernels::kSumSlice;
    for (std::uint32_t i = 0; i < SlicesOf(table); ++i) {
      sums[(first + i) / (kernels::kSumBlock / kernels::kSumSlice)] ^= *slices++;
    }
  }
}

}  // namespace cairn
