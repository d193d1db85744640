// The kernel that sums up, run by the host thread by thread, against the host's CRC32C: its source as the host's
// compiler makes it, and the committed PTX. Every access is checked: aligned, and only to what it may touch.
#include "device/sum_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "base/crc32c.h"
#include "device/cuda_sum_plan.h"
#include "device/ptx_threads.h"
#include "support/points.h"

namespace cairn {
namespace {

constexpr std::string_view kCommitted =
#include "device/sum_kernel.ptx.inc"
    ;

enum class From : std::uint8_t { kSource, kPtx };

std::uint64_t Number(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

template <typename Access>
void RunKernel(From from, const kernels::SumTable& table, std::uint64_t threads, Access& access) {
  static const PtxKernel ptx(kCommitted, "cairn_sum_slices");
  ASSERT_EQ(ptx.parameter_bytes(), sizeof(table));
  if (from == From::kPtx) return RunPtx(ptx, &table, threads, access);
  RunGrid(threads, 3, [&](std::uint64_t thread) { SumSlicesThread(table, thread, threads, access); });
}

class SumKernel : public testing::TestWithParam<From> {
 protected:
  static void SetUpTestSuite() {
    std::mt19937 random(7);
    memory_.resize((3U << 20) + 4096);
    for (std::byte& byte : memory_) byte = static_cast<std::byte>(random());
  }

  // One tensor for each size: each begins at an address of its own, `gap` bytes behind the one before.
  void Make(std::size_t skip, const std::vector<std::size_t>& sizes, std::size_t gap) {
    layouts_.clear();
    std::size_t at = skip;
    for (const std::size_t size : sizes) {
      ASSERT_LE(at + size, memory_.size());
      layouts_.push_back({.base = memory_.data() + at, .row_bytes = size, .bytes = size});
      at += size + gap;
    }
  }
  // Runs the plan for these tensors, one after the other, and compares the sums.
  void ExpectSums(std::uint64_t threads) {
    std::vector<CopyPiece> pieces;
    std::vector<std::byte> expected;
    for (const StridedLayout& layout : layouts_) {
      pieces.push_back({.tensor = &layout, .begin = 0, .end = layout.bytes});
      expected.insert(expected.end(), layout.base, layout.base + layout.bytes);
    }
    std::optional<CudaSumPlan> plan = PlanCudaSums(pieces, std::uint64_t{1} << 30);
    ASSERT_TRUE(plan);
    std::size_t count = 0;
    for (const kernels::SumTable& table : plan->tables) count += SlicesOf(table);
    ASSERT_LE(count, MaxSlices(expected.size()));
    std::vector<std::uint32_t> slices(count, 0xdeadbeef);
    PlaceSlices(*plan, slices.data());
    std::vector<int> stores(slices.size());
    KernelMemory access([&](std::uint64_t address, std::size_t bytes, bool writes) {
      if (writes) {
        const std::uint64_t at = (address - Number(slices.data())) / 4;
        return bytes == 4 && at < slices.size() && ++stores[at] == 1;
      }
      return std::any_of(layouts_.begin(), layouts_.end(), [&](const StridedLayout& layout) {
        return address >= Number(layout.base) && address + bytes <= Number(layout.base) + layout.bytes;
      });
    });
    for (const kernels::SumTable& table : plan->tables) RunKernel(GetParam(), table, threads, access);
    std::vector<std::uint32_t> sums(DivideUp(expected.size(), kChecksumBlock), 1);
    CombineSlices(*plan, slices.data(), sums.data());

    EXPECT_EQ(access.error(), "");
    EXPECT_EQ(std::count(stores.begin(), stores.end(), 1), static_cast<std::ptrdiff_t>(stores.size()));
    for (std::size_t block = 0; block < sums.size(); ++block) {
      const std::size_t from = block * kChecksumBlock;
      const Bytes bytes(expected.data() + from, std::min<std::size_t>(kChecksumBlock, expected.size() - from));
      ASSERT_EQ(sums[block], Crc32c(bytes)) << "block " << block << " of " << expected.size() << " bytes in "
                                            << layouts_.size() << " pieces from " << Number(layouts_[0].base) % 16;
    }
  }

  static inline std::vector<std::byte> memory_;
  std::vector<StridedLayout> layouts_;
};

INSTANTIATE_TEST_SUITE_P(By, SumKernel, testing::Values(From::kSource, From::kPtx),
                         [](const auto& from) { return from.param == From::kSource ? "source" : "ptx"; });

TEST_P(SumKernel, EveryLengthAtEveryAlignment) {
  for (std::size_t skip = 0; skip < 16; ++skip) {
    for (std::size_t length = 1; length <= 70; ++length) {
      Make(skip, {length}, 0);
      ExpectSums(1 + length % 3);
    }
  }
}

TEST_P(SumKernel, EveryLengthAroundSlicesAndBlocks) {
  for (const std::size_t around : {2048U, 4096U}) {
    for (std::size_t length = around - 40; length <= around + 40; ++length) {
      Make(length % 16, {length}, 0);
      ExpectSums(5);
    }
  }
  for (const std::size_t length : {(1U << 20) - 1, 1U << 20, (1U << 20) + 1, (2U << 20) + 2047}) {
    Make(3, {length}, 0);
    ExpectSums(700);
  }
}

TEST_P(SumKernel, EverySplitInTwo) {
  for (std::size_t first = 1; first < 80; ++first) {
    Make(first % 16, {first, 80 - first}, first % 7);
    ExpectSums(2);
  }
  for (std::size_t first = 2040; first < 2056; ++first) {
    Make(first % 16, {first, 4200 - first}, 5);
    ExpectSums(4);
  }
}

TEST_P(SumKernel, RandomPiecesOfAnyNumber) {
  std::mt19937 random(SeedOfRun(23));
  for (int round = 0; round < SomeRounds(40, 4); ++round) {
    const std::size_t most = std::array<std::size_t, 3>{9, 300, 9000}.at(static_cast<std::size_t>(round) % 3);
    std::vector<std::size_t> sizes(1 + random() % (round % 5 == 0 ? 1000 : 60));
    std::size_t sum = 0;
    for (std::size_t& size : sizes) {
      size = 1 + random() % most;
      if ((sum += size + 20) > memory_.size() - 64) size = 1;
    }
    const std::size_t gap = sum > memory_.size() - 64 ? 0 : random() % 20;
    Make(random() % 16, sizes, gap);
    if (sum <= memory_.size() - 64) ExpectSums(1 + random() % 600);
  }
}

// The launches' ranges of slices overlap in the slice where one table ends and the next begins.
TEST_P(SumKernel, PiecesOfSeveralTablesWithinOneSlice) {
  Make(1, std::vector<std::size_t>(std::size_t{3} * kernels::kMaxSummed + 1, 2), 1);
  ExpectSums(3);
}

// A number that no sum of a wrong order gives.
TEST_P(SumKernel, KnowsTheOrderOfItsBytes) {
  constexpr std::string_view kDigits = "123456789";
  std::copy_n(reinterpret_cast<const std::byte*>(kDigits.data()), 9, memory_.begin() + 32);
  Make(32, {4, 5}, 0);
  ExpectSums(2);
  EXPECT_EQ(Crc32c(Bytes(memory_.data() + 32, 9)), 0xe3069283U);
}

}  // namespace
}  // namespace cairn
