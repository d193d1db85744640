#include "base/finite.h"

#include <array>
#include <cstring>

namespace cairn {
namespace {

#ifdef __x86_64__

bool HasWideVectors() { return __builtin_cpu_supports("avx2") != 0; }

// Leaves in `bytes` what is shorter than the vectors.
template <typename Number>
[[gnu::target("avx2")]] NonFinite FindInVectors(const FloatForm& form, Bytes& bytes) {
  constexpr std::size_t kBytes = 32;
  constexpr std::size_t kVectors = 4;  // Because each step waits for the one before.
  using Vector __attribute__((vector_size(kBytes))) = Number;
  Vector worst[kVectors] = {};  // As the argument of std::array it would be no vector.
  Bytes rest = bytes;           // In registers.
  for (; rest.size() >= sizeof(worst); rest = rest.subspan(sizeof(worst))) {
#pragma GCC unroll 4  // Else the vectors stay in memory.
    for (std::size_t i = 0; i < kVectors; ++i) {
      Vector shifted;
      std::memcpy(&shifted, rest.data() + i * kBytes, kBytes);
      shifted += shifted;
      worst[i] = shifted > worst[i] ? shifted : worst[i];
    }
  }
  bytes = rest;
  std::array<Number, kVectors * kBytes / sizeof(Number)> greatest;
  std::memcpy(&greatest, &worst, sizeof(greatest));
  return Judge<Number>(form, greatest);
}

#else

bool HasWideVectors() { return false; }
template <typename Number>
NonFinite FindInVectors(const FloatForm& /*form*/, Bytes& /*bytes*/) {
  return NonFinite::kNone;
}

#endif

template <typename Number>
NonFinite FindOneByOne(const FloatForm& form, Bytes bytes) {
  std::array<Number, 2> greatest{};
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Number)) {
    Number one = 0;
    std::memcpy(&one, bytes.data() + at, sizeof(Number));
    Number& place = greatest[at / sizeof(Number) % 2];
    place = std::max(place, static_cast<Number>(one << 1));
  }
  return Judge<Number>(form, greatest);
}

template <typename Number>
NonFinite Find(const FloatForm& form, Bytes bytes) {
  const NonFinite found = HasWideVectors() ? FindInVectors<Number>(form, bytes) : NonFinite::kNone;
  return std::max(found, FindOneByOne<Number>(form, bytes));
}

}  // namespace

std::string_view NonFiniteName(NonFinite nonfinite) {
  switch (nonfinite) {
    case NonFinite::kNone:
      return "";
    case NonFinite::kInfinity:
      return "inf";
    case NonFinite::kNaN:
      return "nan";
  }
  return "";
}

FloatForm FloatFormOf(DType dtype) {
  switch (dtype) {
    case DType::kF8E5M2:
      return {.bytes = 1, .infinity = 0xf8};
    case DType::kF8E4M3:
      return {.bytes = 1, .infinity = 0xfd};
    case DType::kF16:
      return {.bytes = 2, .infinity = 0xf800};
    case DType::kBF16:
      return {.bytes = 2, .infinity = 0xff00};
    case DType::kF32:
    case DType::kC64:
      return {.bytes = 4, .infinity = 0xff000000};
    case DType::kF64:
      // A NaN that its lower half alone tells from infinity counts as one.
      return {.bytes = 4, .infinity = 0xffe00000, .upper = true};
    default:
      return {};
  }
}

NonFinite FindNonFinite(DType dtype, Bytes bytes) {
  const FloatForm form = FloatFormOf(dtype);
  switch (form.bytes) {
    case 1:
      return Find<std::uint8_t>(form, bytes);
    case 2:
      return Find<std::uint16_t>(form, bytes);
    case 4:
      return Find<std::uint32_t>(form, bytes);
    default:
      return NonFinite::kNone;
  }
}

bool FindsNonFiniteCheaply() { return HasWideVectors(); }

}  // namespace cairn
