#include "base/finite.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/crc32c.h"

namespace cairn {
namespace {

constexpr std::array kForms{DType::kF8E5M2, DType::kF8E4M3, DType::kF16, DType::kBF16,
                            DType::kF32,    DType::kC64,    DType::kF64};

// `bits` among finite values, at the element `at` of `count`.
std::vector<std::byte> Among(DType dtype, std::uint64_t bits, std::size_t at, std::size_t count) {
  const std::size_t size = dtype == DType::kC64 ? 4 : DTypeSize(dtype);
  std::vector<std::byte> bytes(count * size, std::byte{0x31});
  std::memcpy(bytes.data() + at * size, &bits, size);
  return bytes;
}

NonFinite Find(DType dtype, std::uint64_t bits) { return FindNonFinite(dtype, Among(dtype, bits, 0, 1)); }

// By the definition of floats of `exponent` and `mantissa` bits.
NonFinite Defined(std::uint64_t bits, int exponent, int mantissa) {
  const std::uint64_t all_ones = (std::uint64_t{1} << exponent) - 1;
  if ((bits >> mantissa & all_ones) != all_ones) return NonFinite::kNone;
  return (bits & ((std::uint64_t{1} << mantissa) - 1)) == 0 ? NonFinite::kInfinity : NonFinite::kNaN;
}

TEST(Finite, TellsEveryValueOf16Bits) {
  for (std::uint64_t bits = 0; bits <= 0xffff; ++bits) {
    ASSERT_EQ(Find(DType::kF16, bits), Defined(bits, 5, 10)) << bits;
    ASSERT_EQ(Find(DType::kBF16, bits), Defined(bits, 8, 7)) << bits;
  }
}

TEST(Finite, TellsEveryValueOf8Bits) {
  for (std::uint64_t bits = 0; bits <= 0xff; ++bits) {
    EXPECT_EQ(Find(DType::kF8E5M2, bits), Defined(bits, 5, 2)) << bits;
    // No infinities, and two NaNs.
    EXPECT_EQ(Find(DType::kF8E4M3, bits), (bits & 0x7f) == 0x7f ? NonFinite::kNaN : NonFinite::kNone) << bits;
    EXPECT_EQ(Find(DType::kF8E8M0, bits), NonFinite::kNone) << bits;
  }
}

TEST(Finite, TellsWideValues) {
  for (const std::uint64_t bits : {0x00000000U, 0x80000000U, 0x3f800000U, 0x7f7fffffU, 0xff7fffffU, 0x7f800000U,
                                   0xff800000U, 0x7f800001U, 0x7fc00000U, 0xffffffffU}) {
    EXPECT_EQ(Find(DType::kF32, bits), Defined(bits, 8, 23)) << bits;
    EXPECT_EQ(Find(DType::kC64, bits), Defined(bits, 8, 23)) << bits;
  }
  for (const std::uint64_t bits :
       {0x0000000000000000ULL, 0x00000000ffffffffULL, 0x7fefffffffffffffULL, 0xffefffffffffffffULL,
        0x7ff0000000000000ULL, 0xfff0000000000000ULL, 0x7ff8000000000000ULL, 0xffffffffffffffffULL}) {
    EXPECT_EQ(Find(DType::kF64, bits), Defined(bits, 11, 52)) << bits;
  }
  for (const DType dtype : {DType::kI64, DType::kU32, DType::kI16, DType::kU8, DType::kBool}) {
    EXPECT_EQ(FindNonFinite(dtype, std::vector<std::byte>(800, std::byte{0xff})), NonFinite::kNone);
  }
}

TEST(Finite, FindsOneValueAnywhere) {
  for (const DType dtype : kForms) {
    const std::uint64_t nan = ~std::uint64_t{0} >> (64 - 8 * (dtype == DType::kC64 ? 4 : DTypeSize(dtype)));
    for (const std::size_t count : {1, 7, 100, 333}) {
      for (std::size_t at = 0; at < count; ++at) {
        ASSERT_EQ(FindNonFinite(dtype, Among(dtype, nan, at, count)), NonFinite::kNaN)
            << DTypeName(dtype) << ": " << at << " of " << count;
      }
      ASSERT_EQ(FindNonFinite(dtype, Among(dtype, 0, 0, count)), NonFinite::kNone) << DTypeName(dtype);
    }
  }
}

// In the streams, in what remains after them, and before a cache line begins.
TEST(Finite, SumsAndCopiesLookOnTheirWay) {
  for (const DType dtype : kForms) {
    const std::size_t size = dtype == DType::kC64 ? 4 : DTypeSize(dtype);
    const std::size_t count = 300'008 / size;
    const std::uint64_t nan = ~std::uint64_t{0} >> (64 - 8 * size);
    std::vector<std::byte> copy(count * size + 64);
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}, 40'000 / size, 100'001 / size, 131'064 / size,
                                 131'072 / size, 262'144 / size, count - 1}) {
      const std::vector<std::byte> bytes = Among(dtype, nan, at, count);
      NonFinite in_sum = NonFinite::kNone;
      NonFinite in_copy = NonFinite::kNone;

      const std::uint32_t sum = Crc32c(bytes, 7, {.dtype = dtype, .worst = &in_sum});
      const std::uint32_t sum_of_copy = CopyWithCrc32c(bytes, copy.data() + 8, 7, {.dtype = dtype, .worst = &in_copy});

      EXPECT_EQ(in_sum, NonFinite::kNaN) << DTypeName(dtype) << " " << at;
      EXPECT_EQ(in_copy, NonFinite::kNaN) << DTypeName(dtype) << " " << at;
      EXPECT_EQ(sum, Crc32c(bytes, 7));
      EXPECT_EQ(sum_of_copy, sum);
      EXPECT_EQ(std::memcmp(copy.data() + 8, bytes.data(), bytes.size()), 0);
    }
    NonFinite worst = NonFinite::kNone;
    const std::vector<std::byte> finite = Among(dtype, 0, 0, count);
    EXPECT_EQ(Crc32c(finite, 0, {.dtype = dtype, .worst = &worst}),
              CopyWithCrc32c(finite, copy.data(), 0, {.dtype = dtype, .worst = &worst}));
    EXPECT_EQ(worst, NonFinite::kNone) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace cairn
