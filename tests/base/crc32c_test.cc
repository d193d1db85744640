#include "base/crc32c.h"

#include <gtest/gtest.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/sanitizer.h"

namespace cairn {
namespace {

std::uint32_t Crc(std::string_view text, std::uint32_t crc = 0) { return Crc32c(std::as_bytes(std::span(text)), crc); }

// Bit by bit, from the polynomial's definition.
std::uint32_t Naive(std::string_view text) {
  std::uint32_t crc = ~0U;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

#ifdef __x86_64__
// Of this thread's registers, those that are not as a process begins with them: a bit for each kind.
[[gnu::target("xsave")]] std::uint64_t RegistersInUse() { return _xgetbv(1); }

// Code for the lower halves alone, as most of a caller's is, takes half as long again while the upper ones are in use.
TEST(Crc32c, LeavesNoUpperHalfOfAVectorRegisterInUse) {
  constexpr std::uint64_t kUpperHalves = 1U << 2 | 1U << 6;
  unsigned features = 0;
  unsigned other = 0;
  if (__get_cpuid_count(0xd, 1, &features, &other, &other, &other) == 0 || (features & 1U << 2) == 0) {
    GTEST_SKIP() << "this processor does not say which registers are in use";
  }
  const std::string text(4096, 'a');

  const std::uint32_t crc = Crc(text);

  const std::uint64_t in_use = RegistersInUse();
  EXPECT_EQ(in_use & kUpperHalves, 0U) << crc;
}
#endif

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(Crc(""), 0x00000000U);
  EXPECT_EQ(Crc("a"), 0xc1d04330U);
  EXPECT_EQ(Crc("123456789"), 0xe3069283U);
  // RFC 3720, B.4.
  EXPECT_EQ(Crc(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(Crc(std::string(32, '\xff')), 0x62a8ab43U);
  std::string up;
  for (int i = 0; i < 32; ++i) up += static_cast<char>(i);
  EXPECT_EQ(Crc(up), 0x46dd794eU);
  EXPECT_EQ(Crc(std::string(up.rbegin(), up.rend())), 0x113fdb5cU);
}

TEST(Crc32c, ContinuesFromAPreviousCrc) {
  std::mt19937 random(1);
  std::string text(5000, '\0');
  for (char& c : text) c = static_cast<char>(random());

  for (std::size_t cut = 0; cut <= text.size(); cut += 1 + cut / 7) {
    const std::string_view whole(text);
    ASSERT_EQ(Crc(whole.substr(cut), Crc(whole.substr(0, cut))), Crc(whole)) << cut;
  }
}

TEST(Crc32c, CombinedCrcIsThatOfTheConcatenation) {
  std::mt19937 random(3);
  std::string text(70'000, '\0');
  for (char& c : text) c = static_cast<char>(random());
  const std::string_view whole(text);

  for (std::size_t cut = 0; cut <= text.size(); cut += 1 + cut / 7) {
    const std::string_view behind = whole.substr(cut);
    ASSERT_EQ(Crc32cCombine(Crc(whole.substr(0, cut)), Crc(behind), behind.size()), Crc(whole)) << cut;
  }
  EXPECT_EQ(Crc32cCombine(Crc(text), 0, 0), Crc(text));
}

TEST(Crc32c, CombiningIsAssociative) {
  const std::uint64_t bytes_of_b = (1ULL << 40) + 12'345;
  const std::uint64_t bytes_of_c = (1ULL << 33) + 7;

  const std::uint32_t a_and_b = Crc32cCombine(1, 2, bytes_of_b);
  const std::uint32_t b_and_c = Crc32cCombine(2, 3, bytes_of_c);

  EXPECT_EQ(Crc32cCombine(a_and_b, 3, bytes_of_c), Crc32cCombine(1, b_and_c, bytes_of_b + bytes_of_c));
}

TEST(Crc32c, AgreesWithTheDefinitionAtAnyLengthAndAlignment) {
  std::mt19937 random(2);
  std::string text(3000, '\0');
  for (char& c : text) c = static_cast<char>(random());

  for (std::size_t begin = 0; begin < 16; ++begin) {
    for (std::size_t n = 0; n < 2900; n += 1 + n / 5) {
      const auto piece = std::string_view(text).substr(begin, n);
      ASSERT_EQ(Crc(piece), Naive(piece)) << begin << " " << n;
    }
  }
}

TEST(Crc32c, CopiesAndSumsAtAnyLengthAndAlignment) {
  std::mt19937 random(4);
  std::vector<std::byte> from(600'000);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  constexpr std::byte kFree{0xAA};

  for (int round = 0; round < 400; ++round) {
    const std::size_t begin = random() % 70;
    const std::size_t to_begin = random() % 70;
    // Around the lengths of one to four times the streams' 128 KiB, and anything less.
    const std::size_t n =
        round % 2 == 0 ? (1 + random() % 4) * (128U << 10) + random() % 200 - 100 : random() % 140'000;
    const Bytes piece = Bytes(from).subspan(begin, n);
    std::vector<std::byte> to(to_begin + n + 70, kFree);

    const std::uint32_t crc = CopyWithCrc32c(piece, to.data() + to_begin, 0x1234567);

    ASSERT_EQ(crc, Crc32c(piece, 0x1234567)) << begin << " " << to_begin << " " << n;
    std::vector<std::byte> expected(to.size(), kFree);
    std::copy(piece.begin(), piece.end(), expected.begin() + static_cast<std::ptrdiff_t>(to_begin));
    ASSERT_TRUE(to == expected) << begin << " " << to_begin << " " << n;
  }
}

TEST(Crc32c, ACopyOfBytesThatChangeIsSummedAsItWasStored) {
  if (kSanitized) GTEST_SKIP() << "a race on purpose";
  for (const std::size_t bytes : {20'001, 300'001}) {  // In slices, and in streams.
    std::vector<std::byte> from(bytes);
    std::vector<std::byte> to(bytes);
    std::atomic<bool> stop = false;
    std::thread changes([&] {
      for (int value = 1; !stop; ++value) std::memset(from.data(), value, from.size());
    });

    bool differ = false;
    int changed = 0;
    for (int round = 0; round < 100'000 && changed < 300 && !differ; ++round) {
      const std::byte before = to.front();
      const std::uint32_t crc = CopyWithCrc32c(from, to.data());
      differ = crc != Crc32c(to);
      changed += to.front() == before ? 0 : 1;
    }

    stop = true;
    changes.join();
    EXPECT_FALSE(differ) << bytes;
  }
}

TEST(Crc32c, LengthsBeyondIntAreSummedCompletely) {
  // ISA-L takes an int, so longer input is split. Untouched zeros cost no memory.
  const std::size_t n = (std::size_t{1} << 31) + 17;
  const std::size_t half = n / 2;
  std::unique_ptr<std::byte, void (*)(void*)> zeros(static_cast<std::byte*>(std::calloc(n, 1)), std::free);
  ASSERT_NE(zeros, nullptr);
  const Bytes all(zeros.get(), n);

  EXPECT_EQ(Crc32c(all), Crc32c(all.subspan(half), Crc32c(all.first(half))));
}

}  // namespace
}  // namespace cairn
