#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "bench/gpu/commands.h"
#include "device/buffer_pool.h"
#include "device/cuda_device.h"
#include "tune/copies_under_way.h"
#include "tune/measure.h"

namespace cairn::bench {
namespace {

constexpr int kLanes = 2;
constexpr std::uint64_t kChunk = 8U << 20;
constexpr std::uint64_t kChunks = 8;
using Clock = Deadline::Clock;

// GPU 0 with random bytes, and a pool that is pinned with it.
struct Summed {
  std::unique_ptr<Device> device;
  std::unique_ptr<BufferPool> pool;
  MutableBytes memory;
  StridedLayout layout;
};

Result<Summed> Make(bool sums) {
  Summed made;
  CAIRN_ASSIGN_OR_RETURN(made.device,
                         MakeCudaDevice({.lanes = kLanes, .sum_bytes = sums ? kChunk : 0, .sum_batches = kChunks}));
  CAIRN_ASSIGN_OR_RETURN(std::byte* const memory, made.device->AllocateStaging(kChunk * kChunks));
  made.memory = {memory, kChunk * kChunks};
  made.layout = {.base = memory, .row_bytes = made.memory.size(), .bytes = made.memory.size()};
  CAIRN_ASSIGN_OR_RETURN(made.pool, BufferPool::Make(kChunk * kChunks, kChunk, 1));
  CAIRN_RETURN_IF_ERROR(made.pool->PinWith(*made.device));
  return made;
}

Status Fill(Summed& gpu) {
  std::mt19937_64 random(1);
  CopiesUnderWay copies(*gpu.device);
  std::vector<BufferPool::Chunk> chunks;
  for (std::uint64_t at = 0; at < gpu.memory.size(); at += kChunk) {
    chunks.push_back(gpu.pool->TryAcquire(BufferPool::Priority::kSave));
    std::byte* const chunk = chunks.back().data();
    for (std::uint64_t word = 0; word < kChunk; word += sizeof(std::uint64_t)) {
      const std::uint64_t value = random();
      std::memcpy(chunk + word, &value, sizeof(value));
    }
    copies.Add({.direction = CopyDirection::kToDevice,
                .pieces = {{.tensor = &gpu.layout, .begin = at, .end = at + kChunk, .memory = chunk}}});
  }
  return copies.Wait();
}

// How many blocks were compared, or an error for one that differs. Pieces begin and end at odd places.
Result<std::uint64_t> Compare(Summed& gpu) {
  std::uint64_t compared = 0;
  for (std::uint64_t at = 0; at < gpu.memory.size(); at += kChunk) {
    const BufferPool::Chunk chunk = gpu.pool->TryAcquire(BufferPool::Priority::kSave);
    const std::uint64_t skip = at / kChunk;
    const std::uint64_t bytes = kChunk - 3 * skip;
    CopyBatch batch;
    for (std::uint64_t from = 0; from < bytes;) {
      const std::uint64_t end = std::min(bytes, from + 1'000'003);
      batch.pieces.push_back(
          {.tensor = &gpu.layout, .begin = at + skip + from, .end = at + skip + end, .memory = chunk.data() + from});
      from = end;
    }
    std::vector<std::uint32_t> sums(DivideUp(bytes, kChecksumBlock));
    batch.sums = sums.data();
    CopiesUnderWay copies(*gpu.device);
    copies.Add(std::move(batch));
    CAIRN_RETURN_IF_ERROR(copies.Wait());
    for (std::uint64_t block = 0; block < sums.size(); ++block) {
      const std::uint64_t from = block * kChecksumBlock;
      const std::uint32_t expected = Crc32c(Bytes(chunk.data() + from, std::min(kChecksumBlock, bytes - from)));
      if (sums[block] != expected) {
        return Error(StatusCode::kCorrupt, "CRC32C of block {} at byte {}: expected {:08x}, the GPU found {:08x}",
                     block, at + skip, expected, sums[block]);
      }
      ++compared;
    }
  }
  return compared;
}

Result<double> RateToHost(Summed& gpu, std::chrono::nanoseconds time) {
  CAIRN_ASSIGN_OR_RETURN(const CopyRate rate,
                         ProbeCopy(*gpu.device, *gpu.pool, gpu.memory, time, Clock::now, CopyDirection::kToHost));
  return rate.bytes_per_second;
}

}  // namespace

Status MeasureSums(const LinkOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(Summed summed, Make(true));
  CAIRN_RETURN_IF_ERROR(summed.device->CheckSums({}));
  CAIRN_RETURN_IF_ERROR(Fill(summed));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t compared, Compare(summed));
  PrintLine({{"what", "compared"}, {"blocks", compared}});
  CAIRN_ASSIGN_OR_RETURN(Summed plain, Make(false));
  for (int pair = 0; pair < options.pairs; ++pair) {
    CAIRN_ASSIGN_OR_RETURN(const double without, RateToHost(plain, options.time));
    CAIRN_ASSIGN_OR_RETURN(const double with, RateToHost(summed, options.time));
    PrintLine({{"what", "rates"}, {"pair", pair}, {"without", without}, {"with", with}});
  }
  return Status::Ok();
}

}  // namespace cairn::bench
