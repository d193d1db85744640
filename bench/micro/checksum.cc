// Crc32c, which is computed over every byte of a checkpoint.
//
//   build/release/bin/bench_micro --benchmark_filter=checksum
//
// Peers: for a block in the cache, as in the engine, a table-driven CRC (ISA-L's fallback) and the processor's crc32
// instruction in one chain; for memory outside the cache, the sum of its words, the cost of reading alone. For sums and
// copies that look for what is not finite: the same without the look.
#include <isa-l/crc.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "bench/micro/pair.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace cairn::bench {
namespace {

using Words = std::vector<std::uint64_t>;

std::shared_ptr<Words> MakeWords(std::size_t bytes) {
  auto words = std::make_shared<Words>(bytes / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words->size(); ++i) (*words)[i] = i * 0x9e3779b97f4a7c15U;
  return words;
}

std::uint32_t OfTable(const Words& words) {
  auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(words.data()));
  return ~crc32_iscsi_base(data, static_cast<int>(words.size() * sizeof(std::uint64_t)), ~0U);
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t OfInstruction(const Words& words) {
  std::uint64_t crc = ~0U;
  for (const std::uint64_t word : words) crc = _mm_crc32_u64(crc, word);
  return ~static_cast<std::uint32_t>(crc);
}
#endif

template <typename Peer>
Pair SumUp(std::size_t bytes, int times, Peer peer, bool same) {
  const auto words = MakeWords(bytes);
  const auto cairn = [words] { return Crc32c(std::as_bytes(std::span(*words))); };
  Expect(!same || cairn() == peer(*words), "checksum: the peer's result differs");
  return {.cairn = Timed([cairn] { benchmark::DoNotOptimize(cairn()); }, times),
          .peer = Timed([words, peer] { benchmark::DoNotOptimize(peer(*words)); }, times)};
}

// Zeros of a dtype, in blocks, so that each kind of sum takes its way.
template <typename Work>
Pair Look(std::size_t bytes, std::size_t block, Work work) {
  const auto words = std::make_shared<Words>(bytes / sizeof(std::uint64_t));
  const auto copy = std::make_shared<Words>(words->size());
  const auto each_block = [words, copy, block, work](DType dtype) {
    const Bytes from = std::as_bytes(std::span(*words));
    auto* const to = reinterpret_cast<std::byte*>(copy->data());
    NonFinite worst = NonFinite::kNone;
    for (std::size_t at = 0; at < from.size(); at += block) {
      benchmark::DoNotOptimize(work(from.subspan(at, block), to + at, FiniteLook{.dtype = dtype, .worst = &worst}));
    }
    Expect(worst == NonFinite::kNone, "checksum: zeros are finite");
  };
  return {.cairn = Timed([each_block] { each_block(DType::kBF16); }),
          .peer = Timed([each_block] { each_block(DType::kU8); })};
}

}  // namespace

void AddChecksum(const Settings& settings) {
  AddPair(settings, "checksum/warm_1MiB_of_table", "the table's CRC32C", 0.1, 10,
          [] { return SumUp(kChecksumBlock, 4, OfTable, /*same=*/true); });
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) {
    AddPair(settings, "checksum/warm_1MiB_of_instruction", "the crc32 instruction, in one chain", 1, 100,
            [] { return SumUp(kChecksumBlock, 4, OfInstruction, /*same=*/true); });
  }
#endif
  const std::size_t cold = settings.Sized(256U << 20, kChecksumBlock);
  AddPair(settings, "checksum/cold_of_reading", "the sum of the words", 1, 10, [cold] {
    return SumUp(
        cold, 1, [](const Words& words) { return std::accumulate(words.begin(), words.end(), std::uint64_t{0}); },
        /*same=*/false);
  });
  const auto sum = [](Bytes from, std::byte* /*to*/, const FiniteLook& look) { return Crc32c(from, 0, look); };
  const auto copy = [](Bytes from, std::byte* to, const FiniteLook& look) { return CopyWithCrc32c(from, to, 0, look); };
  constexpr std::size_t kShort = 32U << 10;
  AddPair(settings, "checksum/look_sum", "the same without a look", 1.03, 10,
          [=] { return Look(cold, kChecksumBlock, sum); });
  AddPair(settings, "checksum/look_copy", "the same without a look", 1.03, 10,
          [=] { return Look(cold, kChecksumBlock, copy); });
  AddPair(settings, "checksum/look_copy_of_32KiB", "the same without a look", 1.1, 10,
          [=] { return Look(cold, kShort, copy); });
}

}  // namespace cairn::bench
