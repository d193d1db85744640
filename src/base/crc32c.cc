#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <limits>

namespace cairn {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Reflected: the highest bit is x^0.

std::uint32_t MultiplyModulo(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

}  // namespace

std::uint32_t Crc32c(Bytes bytes, std::uint32_t crc) {
  crc = ~crc;
  while (!bytes.empty()) {
    const auto n = std::min<std::size_t>(bytes.size(), std::numeric_limits<int>::max());
    // ISA-L only reads, but its prototype takes a mutable pointer.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(n), crc);
    bytes = bytes.subspan(n);
  }
  return ~crc;
}

std::uint32_t Crc32cCombine(std::uint32_t crc_of_a, std::uint32_t crc_of_b, std::uint64_t bytes_of_b) {
  // Each byte of B multiplies A's CRC by x^8.
  std::uint32_t square = 1U << 23;
  std::uint32_t shifted = crc_of_a;
  for (; bytes_of_b != 0; bytes_of_b >>= 1) {
    if ((bytes_of_b & 1) != 0) shifted = MultiplyModulo(shifted, square);
    square = MultiplyModulo(square, square);
  }
  return shifted ^ crc_of_b;
}

}  // namespace cairn
