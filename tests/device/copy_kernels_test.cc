// The kernels, run by the host thread by thread, against GatherBytes and ScatterBytes: their source as the host's
// compiler makes it, and the committed PTX, instruction by instruction. Every access is checked: aligned, within the
// tensor's elements or the piece's bytes, and in the right direction.
#include "device/copy_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/strided.h"
#include "device/cuda_kernel_plan.h"
#include "device/kernel_threads.h"
#include "device/ptx_machine.h"
#include "device/ptx_threads.h"
#include "support/points.h"

namespace cairn {
namespace {

constexpr std::size_t kGuard = 64;

constexpr std::string_view kCommitted =
#include "device/copy_kernels.ptx.inc"
    ;

enum class From : std::uint8_t { kSource, kPtx };

template <typename Access>
void RunKernel(From from, const kernels::StridedCopy& copy, std::uint64_t threads, Access& access) {
  static const PtxKernel ptx(kCommitted, "cairn_copy_strided");
  ASSERT_EQ(ptx.parameter_bytes(), sizeof(copy));
  if (from == From::kPtx) return RunPtx(ptx, &copy, threads, access);
  RunGrid(threads, 3, [&](std::uint64_t thread) { CopyStridedThread(copy, thread, threads, access); });
}

template <typename Access>
void RunKernel(From from, const kernels::PieceTable& table, std::uint64_t threads, Access& access) {
  static const PtxKernel ptx(kCommitted, "cairn_copy_pieces");
  ASSERT_EQ(ptx.parameter_bytes(), sizeof(table));
  if (from == From::kPtx) return RunPtx(ptx, &table, threads, access);
  RunGrid(threads, 3, [&](std::uint64_t thread) { CopyPiecesThread(table, thread, threads, access); });
}

std::vector<std::byte> Random(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

std::uint64_t Number(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

// 16-aligned storage with guards on both sides, and whether each byte may be read or written.
class Arena {
 public:
  Arena(std::size_t bytes, std::uint32_t seed) : bytes_(Random(bytes + 2 * kGuard + 16, seed)), may_(bytes_.size()) {
    skip_ = kGuard + (16 - (Number(bytes_.data()) + kGuard) % 16) % 16;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() { return bytes_.data() + skip_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Byte `at` of data() as it was copied into `other`.
  void Allow(const std::byte* at, std::size_t n) {
    const auto from = static_cast<std::ptrdiff_t>(at - bytes_.data());
    std::fill(may_.begin() + from, may_.begin() + from + static_cast<std::ptrdiff_t>(n), true);
  }
  bool Allows(std::uint64_t address, std::size_t n) const {
    const std::uint64_t begin = Number(bytes_.data());
    if (address < begin || address + n > begin + bytes_.size()) return false;
    const auto from = may_.begin() + static_cast<std::ptrdiff_t>(address - begin);
    return std::all_of(from, from + static_cast<std::ptrdiff_t>(n), [](bool may) { return may; });
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<bool> may_;
  std::size_t skip_ = 0;
};

// A tensor's layout relative to the start of its storage.
struct Shape {
  std::string name;
  std::size_t item = 1;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  // In bytes.
  std::size_t offset = 0;

  [[nodiscard]] std::size_t storage() const {
    std::size_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += static_cast<std::size_t>((shape[d] - 1) * strides[d]);
    return offset + (last + 1) * item;
  }
  [[nodiscard]] StridedLayout At(std::byte* storage) const {
    return MakeStridedLayout(storage + offset, item, shape, strides);
  }
};

// Allows the elements that hold the piece's logical bytes, and the piece's memory.
void AllowPiece(const CopyPiece& piece, Arena& tensor, Arena& memory) {
  const std::uint64_t width = piece.end - piece.begin;
  for (std::uint64_t row = 0; row < piece.rows; ++row) {
    memory.Allow(piece.memory + row * piece.memory_pitch, width);
    for (std::uint64_t at = 0; at < width; ++at) {
      // One logical byte at a time is always contiguous.
      std::uint64_t logical = piece.begin + row * piece.tensor_pitch + at;
      std::uint64_t outer = logical / piece.tensor->row_bytes;
      std::byte* byte = piece.tensor->base + logical % piece.tensor->row_bytes;
      for (std::size_t d = piece.tensor->outer.size(); d-- > 0;) {
        const auto size = static_cast<std::uint64_t>(piece.tensor->outer[d].size);
        byte += static_cast<std::int64_t>(outer % size) * piece.tensor->outer[d].stride;
        outer /= size;
      }
      tensor.Allow(byte, 1);
    }
  }
}

// Runs the kernel for the piece in both directions, and expects what GatherRows and ScatterRows do, byte for byte, also
// in the guards and between the rows. Returns the kernel's unit.
unsigned int ExpectCopies(From from, const Shape& shape, std::uint64_t begin, std::uint64_t end,
                          std::size_t memory_skip, std::uint64_t rows = 1, std::uint64_t tensor_pitch = 0,
                          std::uint64_t memory_pitch = 0, std::uint64_t threads = 37) {
  unsigned int unit = 0;
  for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    Arena tensor(shape.storage(), 1);
    Arena memory(memory_skip + (rows - 1) * memory_pitch + (end - begin), 2);
    Arena expected_tensor(shape.storage(), 1);
    Arena expected_memory(memory_skip + (rows - 1) * memory_pitch + (end - begin), 2);
    const StridedLayout layout = shape.At(tensor.data());
    const CopyPiece piece{&layout, begin, end, memory.data() + memory_skip, rows, tensor_pitch, memory_pitch};
    AllowPiece(piece, tensor, memory);
    const LogicalRows logical{.begin = begin, .bytes = end - begin, .rows = rows, .pitch = tensor_pitch};
    const bool into_tensor = direction == CopyDirection::kToDevice;
    if (into_tensor) {
      ScatterRows(shape.At(expected_tensor.data()), logical, expected_memory.data() + memory_skip, memory_pitch);
    } else {
      GatherRows(shape.At(expected_tensor.data()), logical, expected_memory.data() + memory_skip, memory_pitch);
    }

    const kernels::StridedCopy copy = KernelCopyOf(piece, direction);
    KernelMemory access([&](std::uint64_t address, std::size_t n, bool writes) {
      return writes == into_tensor ? tensor.Allows(address, n) : memory.Allows(address, n);
    });
    RunKernel(from, copy, threads, access);

    const auto same = [](Arena& found, Arena& expected, std::size_t bytes) {
      return std::equal(found.data() - kGuard, found.data() + bytes + kGuard - 16, expected.data() - kGuard);
    };
    EXPECT_EQ(access.error(), "") << shape.name << ": " << begin << " to " << end << ", memory " << memory_skip;
    EXPECT_TRUE(same(tensor, expected_tensor, shape.storage()))
        << shape.name << ": " << begin << " to " << end << ", memory " << memory_skip << ", into " << into_tensor;
    EXPECT_TRUE(same(memory, expected_memory, memory_skip + (rows - 1) * memory_pitch + (end - begin)))
        << shape.name << ": " << begin << " to " << end << ", memory " << memory_skip << ", into " << into_tensor;
    unit = copy.unit;
  }
  return unit;
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const std::size_t item : {1, 2, 4, 8, 16}) {
    const std::string of = " of " + std::to_string(item);
    shapes.push_back({"contiguous" + of, item, {7, 9}, {9, 1}});
    shapes.push_back({"transposed" + of, item, {5, 7}, {1, 5}});
    shapes.push_back({"columns" + of, item, {6, 3}, {5, 1}});
    shapes.push_back({"channels_last" + of, item, {2, 3, 4, 5}, {60, 1, 15, 3}});
    shapes.push_back({"channels_last_3d" + of, item, {2, 3, 2, 3, 2}, {36, 1, 18, 6, 3}});
    shapes.push_back({"slices of slices" + of, item, {2, 3, 2}, {40, 12, 3}, item});
    shapes.push_back({"permuted" + of, item, {3, 2, 4}, {4, 12, 1}});
    shapes.push_back({"sizes of one" + of, item, {1, 4, 1, 3, 1}, {999, 1, 7, 4, 5}});
    shapes.push_back({"scalar" + of, item, {}, {}});
    shapes.push_back({"every second" + of, item, {11}, {2}});
    shapes.push_back({"rows of many" + of, item, {3, 4, 8}, {64, 16, 1}});
  }
  // The address is less aligned than the items, as in a view of a byte buffer.
  shapes.push_back({"odd address", 4, {4, 5, 3}, {1, 12, 4}, 3});
  shapes.push_back({"even address", 8, {4, 5, 3}, {1, 12, 4}, 2});
  return shapes;
}

class CopyKernels : public testing::TestWithParam<From> {};

INSTANTIATE_TEST_SUITE_P(By, CopyKernels, testing::Values(From::kSource, From::kPtx),
                         [](const auto& from) { return from.param == From::kSource ? "source" : "ptx"; });

TEST_P(CopyKernels, EveryShapeAndItemSizeAsAWhole) {
  for (const Shape& shape : Shapes()) {
    std::vector<std::byte> none(shape.storage());
    const std::uint64_t bytes = shape.At(none.data()).bytes;
    for (const std::size_t skip : {0, 1, 2, 4, 8, 12, 15}) ExpectCopies(GetParam(), shape, 0, bytes, skip);
  }
}

TEST_P(CopyKernels, EveryRangeOfSmallTensors) {
  for (const Shape& shape : {Shape{"transposed", 2, {3, 7}, {1, 3}}, Shape{"channels_last", 4, {2, 2, 3}, {6, 1, 2}},
                             Shape{"bytes", 1, {3, 4, 3}, {20, 4, 1}}}) {
    std::vector<std::byte> none(shape.storage());
    const std::uint64_t bytes = shape.At(none.data()).bytes;
    const Points points = SomePoints(4);
    for (std::uint64_t begin = points.first; begin < bytes; begin += points.stride) {
      for (std::uint64_t end = begin + 1; end <= bytes; ++end) ExpectCopies(GetParam(), shape, begin, end, begin % 16);
    }
  }
}

TEST_P(CopyKernels, RandomRangesOfEveryShape) {
  std::mt19937 random(11);
  for (const Shape& shape : Shapes()) {
    std::vector<std::byte> none(shape.storage());
    const std::uint64_t bytes = shape.At(none.data()).bytes;
    for (int i = 0; i < 12; ++i) {
      const std::uint64_t begin = random() % bytes;
      const std::uint64_t end = begin + 1 + random() % (bytes - begin);
      ExpectCopies(GetParam(), shape, begin, end, random() % 32, 1, 0, 0, 1 + random() % 50);
    }
  }
}

// A restore's cut through columns: rows of a file's bytes, into parts of a tensor's rows.
TEST_P(CopyKernels, RowsOfAPieceAtAnyPitch) {
  std::mt19937 random(5);
  for (const Shape& shape : Shapes()) {
    std::vector<std::byte> none(shape.storage());
    const std::uint64_t bytes = shape.At(none.data()).bytes;
    for (int i = 0; i < 12; ++i) {
      const std::uint64_t width = 1 + random() % std::min<std::uint64_t>(bytes, 40);
      const std::uint64_t pitch = width + random() % 9;
      const std::uint64_t begin = random() % (bytes - width + 1);
      const std::uint64_t rows = 1 + (bytes - begin - width) / pitch;
      const std::uint64_t memory_pitch = i % 2 == 0 ? width + random() % 40 : (width + 15) / 16 * 16;
      ExpectCopies(GetParam(), shape, begin, begin + width, random() % 32, rows, pitch, memory_pitch);
    }
  }
}

TEST_P(CopyKernels, TakeTheLargestUnitThatFits) {
  const Shape channels_last{"", 4, {2, 8, 3, 3}, {72, 1, 24, 8}};
  EXPECT_EQ(ExpectCopies(GetParam(), channels_last, 0, 576, 0), 4U);
  EXPECT_EQ(ExpectCopies(GetParam(), channels_last, 8, 400, 2), 2U);
  EXPECT_EQ(ExpectCopies(GetParam(), channels_last, 8, 401, 0), 1U);
  const Shape wide{"", 4, {3, 4, 8}, {64, 16, 1}};
  EXPECT_EQ(ExpectCopies(GetParam(), wide, 0, 384, 16), 16U);
  EXPECT_EQ(ExpectCopies(GetParam(), wide, 0, 384, 8), 8U);
}

// A tensor of 2^62 bytes has 62 dimensions at most; here 12 of them.
TEST_P(CopyKernels, ManyDimensions) {
  Shape shape{"many dimensions", 2, {}, {}};
  for (int d = 0; d < 12; ++d) {
    shape.shape.push_back(2);
    shape.strides.push_back(d == 0 ? 1 : shape.strides.back() * 2 + d % 2);
  }
  std::vector<std::byte> none(shape.storage());
  ASSERT_GT(shape.At(none.data()).outer.size(), 8U);

  ExpectCopies(GetParam(), shape, 3, 8190, 5);
  ExpectCopies(GetParam(), shape, 0, 8192, 0);
}

// Numbers beyond 32 bits, in logical offsets and in strides: only the addresses are looked at.
TEST(CopyKernelsFind, HugeTensors) {
  const StridedLayout layout{
      .base = nullptr, .row_bytes = 6, .outer = {{1LL << 33, 1LL << 35}, {1LL << 20, 8}}, .bytes = 6ULL << 53};
  kernels::StridedCopy copy{};
  copy.row_bytes = layout.row_bytes;
  copy.dimensions = 2;
  copy.outer[0] = {1ULL << 33, 1ULL << 35};
  copy.outer[1] = {1ULL << 20, 8};

  const kernels::Place place = kernels::Find(copy, ((5'000'000'000ULL << 20) + 77) * 6 + 4);

  EXPECT_EQ(place.address, (5'000'000'000ULL << 35) + 77 * 8 + 4);
  EXPECT_EQ(place.left, 2U);
  EXPECT_EQ(place.rows_left, (1ULL << 20) - 78);
}

// Whole words of memory are written once each, whatever the tensor's unit is: PCIe moves the memory.
TEST_P(CopyKernels, WritesWholeWordsToMemory) {
  const Shape shape{"transposed", 1, {64, 64}, {1, 64}};
  Arena tensor(shape.storage(), 1);
  Arena memory(4096, 2);
  const StridedLayout layout = shape.At(tensor.data());
  const kernels::StridedCopy copy = KernelCopyOf({&layout, 0, 4096, memory.data()}, CopyDirection::kToHost);
  std::set<std::size_t> sizes;
  KernelMemory access([&](std::uint64_t /*address*/, std::size_t n, bool writes) {
    if (writes) sizes.insert(n);
    return true;
  });

  RunKernel(GetParam(), copy, 100, access);

  EXPECT_EQ(copy.unit, 1U);
  EXPECT_EQ(sizes, std::set<std::size_t>{16});
  EXPECT_EQ(access.stores(), 4096U / 16);
}

// Pieces of random lengths and places, back to back in memory.
TEST_P(CopyKernels, PiecesBackToBackInMemory) {
  std::mt19937 random(SeedOfRun(23));
  for (int round = 0; round < SomeRounds(60, 4); ++round) {
    const std::size_t count = 1 + random() % kernels::kMaxPieces;
    const std::size_t most = round % 3 == 0 ? 5 : 60;
    std::vector<std::size_t> sizes(count);
    std::vector<std::size_t> places(count);
    std::size_t storage = 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sizes[i] = 1 + random() % most;
      if (round % 2 == 0) sizes[i] = (sizes[i] + 3) / 4 * 4;
      places[i] = storage + (round % 2 == 0 ? 0 : random() % 16);
      storage = (places[i] + sizes[i] + 15) / 16 * 16;
      bytes += sizes[i];
    }
    const std::size_t skip = random() % 32;
    for (const bool into_tensor : {false, true}) {
      Arena tensors(storage, 1);
      Arena memory(skip + bytes, 2);
      Arena expected_tensors(storage, 1);
      Arena expected_memory(skip + bytes, 2);
      kernels::PieceTable table{};
      table.memory = Number(memory.data() + skip);
      table.into_tensor = into_tensor ? 1 : 0;
      table.pieces = static_cast<kernels::U32>(count);
      std::size_t end = 0;
      for (std::size_t i = 0; i < count; ++i) {
        table.tensors[i] = Number(tensors.data() + places[i]);
        std::byte* const tensor = expected_tensors.data() + places[i];
        std::byte* const in_memory = expected_memory.data() + skip + end;
        std::memcpy(into_tensor ? tensor : in_memory, into_tensor ? in_memory : tensor, sizes[i]);
        tensors.Allow(tensors.data() + places[i], sizes[i]);
        end += sizes[i];
        table.ends[i] = static_cast<kernels::U32>(end);
      }
      memory.Allow(memory.data() + skip, bytes);
      const std::uint64_t threads = 1 + random() % 300;

      KernelMemory access([&](std::uint64_t address, std::size_t n, bool writes) {
        return writes == into_tensor ? tensors.Allows(address, n) : memory.Allows(address, n);
      });
      RunKernel(GetParam(), table, threads, access);

      ASSERT_EQ(access.error(), "");
      ASSERT_TRUE(std::equal(tensors.data() - kGuard, tensors.data() + storage + kGuard - 16,
                             expected_tensors.data() - kGuard));
      ASSERT_TRUE(std::equal(memory.data() - kGuard, memory.data() + skip + bytes + kGuard - 16,
                             expected_memory.data() - kGuard));
    }
  }
}

}  // namespace
}  // namespace cairn
