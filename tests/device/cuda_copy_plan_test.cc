#include "device/cuda_copy_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace cairn {
namespace {

constexpr std::uint64_t kMaxPitch = 0x7fffffff;

StridedLayout Rows(std::byte* at, std::uint64_t row_bytes, std::int64_t rows, std::int64_t stride) {
  return {.base = at,
          .row_bytes = row_bytes,
          .outer = {{rows, stride}},
          .bytes = row_bytes * static_cast<std::uint64_t>(rows)};
}

// Executes the plan on the host as the driver would.
void Execute(const CudaCopyPlan& plan, bool into_tensor) {
  for (std::size_t i = 0; i < plan.sizes.size(); ++i) {
    std::memcpy(reinterpret_cast<void*>(plan.to[i]), reinterpret_cast<const void*>(plan.from[i]), plan.sizes[i]);
  }
  for (const CudaCopyPlan::Rows& rows : plan.rows) {
    for (std::size_t row = 0; row < rows.height; ++row) {
      auto* const tensor = reinterpret_cast<std::byte*>(rows.tensor + row * rows.pitch);
      std::byte* const memory = rows.memory + row * rows.memory_pitch;
      std::memcpy(into_tensor ? tensor : memory, into_tensor ? memory : tensor, rows.width);
    }
  }
}

TEST(CudaCopyPlan, SplitsPartialRowsFromTheBlockBetweenThem) {
  std::vector<std::byte> tensor(1000);
  std::vector<std::byte> memory(1000);
  const StridedLayout layout = Rows(tensor.data(), 10, 20, 50);

  const Result<CudaCopyPlan> plan = PlanCudaCopies({.pieces = {{&layout, 15, 97, memory.data()}}}, kMaxPitch);

  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->sizes, (std::vector<std::size_t>{5, 7}));
  ASSERT_EQ(plan->rows.size(), 1U);
  EXPECT_EQ(plan->rows[0].height, 7U);
  EXPECT_EQ(plan->rows[0].pitch, 50U);
  EXPECT_EQ(plan->rows[0].memory, memory.data() + 5);
}

// 8 of every 20 logical bytes: a single block if the rows are evenly spaced in the tensor's memory.
TEST(CudaCopyPlan, EvenlySpacedRowsOfAPieceAreOneBlock) {
  std::vector<std::byte> memory(1000);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
  for (const bool even : {true, false}) {
    std::vector<std::byte> tensor(2000);
    std::vector<std::byte> expected(2000);
    const StridedLayout layout = Rows(tensor.data(), even ? 10 : 11, 40, 33);
    const StridedLayout other{
        .base = expected.data(), .row_bytes = layout.row_bytes, .outer = layout.outer, .bytes = layout.bytes};
    const CopyPiece piece{.tensor = &layout,
                          .begin = 31,
                          .end = 39,
                          .memory = memory.data(),
                          .rows = 15,
                          .tensor_pitch = 20,
                          .memory_pitch = 24};
    ScatterRows(other, {.begin = 31, .bytes = 8, .rows = 15, .pitch = 20}, memory.data(), 24);

    const auto plan = PlanCudaCopies({.direction = CopyDirection::kToDevice, .pieces = {piece}}, kMaxPitch);
    const auto runs = PlanCudaCopies({.direction = CopyDirection::kToDevice, .pieces = {piece}}, 32);

    ASSERT_TRUE(plan.ok() && runs.ok());
    EXPECT_EQ(plan->rows.size(), even ? 1U : 0U);
    EXPECT_EQ(plan->sizes.empty(), even);
    EXPECT_TRUE(runs->rows.empty());
    for (const auto* one : {&*plan, &*runs}) {
      std::fill(tensor.begin(), tensor.end(), std::byte{0});
      Execute(*one, /*into_tensor=*/true);
      EXPECT_TRUE(tensor == expected);
    }
  }
}

TEST(CudaCopyPlan, EveryRangeCopiesTheSameBytesAsGatherBytes) {
  std::mt19937 random(7);
  std::vector<std::byte> tensor(20 * 33);
  for (std::byte& byte : tensor) byte = static_cast<std::byte>(random());
  const StridedLayout layout = Rows(tensor.data(), 13, 20, 33);
  for (std::uint64_t begin = 0; begin <= layout.bytes; begin += 3) {
    for (std::uint64_t end = begin; end <= layout.bytes; ++end) {
      std::vector<std::byte> expected(end - begin);
      GatherBytes(layout, begin, end, expected.data());
      // A small pitch limit makes every row a run.
      for (const std::uint64_t max_pitch : {kMaxPitch, std::uint64_t{32}}) {
        std::vector<std::byte> memory(end - begin);
        const Result<CudaCopyPlan> plan = PlanCudaCopies({.pieces = {{&layout, begin, end, memory.data()}}}, max_pitch);
        ASSERT_TRUE(plan.ok());
        Execute(*plan, false);
        ASSERT_EQ(memory, expected) << begin << " to " << end;
        ASSERT_TRUE(max_pitch == kMaxPitch || plan->rows.empty());
      }
    }
  }
}

TEST(CudaCopyPlan, RestoresWhatItGathered) {
  std::vector<std::byte> tensor(20 * 33);
  std::vector<std::byte> expected(20 * 33);
  std::vector<std::byte> memory(150, std::byte{42});
  const StridedLayout layout = Rows(tensor.data(), 13, 20, 33);
  const StridedLayout expected_layout = Rows(expected.data(), 13, 20, 33);

  const Result<CudaCopyPlan> plan =
      PlanCudaCopies({.direction = CopyDirection::kToDevice, .pieces = {{&layout, 40, 190, memory.data()}}}, kMaxPitch);
  ASSERT_TRUE(plan.ok());
  Execute(*plan, true);

  ScatterBytes(expected_layout, 40, 190, memory.data());
  EXPECT_EQ(tensor, expected);
}

TEST(CudaCopyPlan, SkipsEmptyPieces) {
  std::vector<std::byte> tensor(100);
  const StridedLayout contiguous{.base = tensor.data(), .row_bytes = 100, .bytes = 100};
  const StridedLayout empty;

  const Result<CudaCopyPlan> plan = PlanCudaCopies(
      {.pieces = {{&contiguous, 50, 50, tensor.data()}, {&empty, 0, 0, nullptr}, {&contiguous, 1, 2, tensor.data()}}},
      kMaxPitch);

  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->sizes, std::vector<std::size_t>{1});
}

TEST(CudaCopyPlan, RefusesBytesBeyondTheTensorsEnd) {
  std::vector<std::byte> tensor(100);
  const StridedLayout layout{.base = tensor.data(), .row_bytes = 100, .bytes = 100};

  EXPECT_EQ(PlanCudaCopies({.pieces = {{&layout, 99, 101, tensor.data()}}}, kMaxPitch).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(CudaCopyPlan, RefusesTwoStridedDimensions) {
  std::vector<std::byte> tensor(100);
  StridedLayout layout = Rows(tensor.data(), 1, 2, 4);
  layout.outer.push_back({2, 2});

  EXPECT_EQ(PlanCudaCopies({.pieces = {{&layout, 0, 4, tensor.data()}}}, kMaxPitch).status().code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace cairn
