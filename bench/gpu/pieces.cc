#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "bench/emulation/outstanding.h"
#include "bench/gpu/commands.h"
#include "bench/gpu/launcher.h"
#include "device/buffer_pool.h"
#include "device/cuda_device.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLanes = 2;
// Between neighbours on the GPU, so that no two pieces are one copy.
constexpr std::uint64_t kGap = 256;
constexpr std::size_t kPiecesInABatch = 128;
constexpr std::size_t kBatchesAtOnce = 4;

/// Pieces of one size, each its own tensor on the GPU, back to back in host memory.
class Pieces {
 public:
  Pieces(std::size_t count, std::uint64_t size, MutableBytes on_gpu, std::byte* host)
      : size_(size), host_(host), layouts_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      layouts_[i] = {.base = on_gpu.data() + i * (size + kGap), .row_bytes = size, .outer = {}, .bytes = size};
    }
  }

  /// Seconds until all are copied, by one call of the driver for each.
  Result<double> CopyOneByOne(Launcher& launcher, CopyDirection direction) {
    const auto began = Clock::now();
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      std::byte* const on_gpu = layouts_[i].base;
      std::byte* const on_host = host_ + i * size_;
      const bool to_host = direction == CopyDirection::kToHost;
      CAIRN_RETURN_IF_ERROR(launcher.Copy(to_host ? on_gpu : on_host, to_host ? on_host : on_gpu, size_));
    }
    CAIRN_RETURN_IF_ERROR(launcher.Synchronize());
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

  /// The same by the device's batches. A lane's queue never holds more than a few batches, as with the engine.
  Result<double> Copy(Device& device, CopyDirection direction) {
    const auto began = Clock::now();
    std::deque<std::unique_ptr<Outstanding>> under_way;
    for (std::size_t first = 0; first < layouts_.size(); first += kPiecesInABatch) {
      if (under_way.size() == kBatchesAtOnce) {
        CAIRN_RETURN_IF_ERROR(under_way.front()->Await());
        under_way.pop_front();
      }
      const auto lane = static_cast<int>(first / kPiecesInABatch % kLanes);
      under_way.push_back(std::make_unique<Outstanding>(device));
      CAIRN_RETURN_IF_ERROR(under_way.back()->Copy(Batch(first, lane, direction)));
    }
    for (const auto& copies : under_way) CAIRN_RETURN_IF_ERROR(copies->Await());
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

 private:
  [[nodiscard]] CopyBatch Batch(std::size_t first, int lane, CopyDirection direction) {
    CopyBatch batch{.direction = direction, .lane = lane, .pieces = {}};
    for (std::size_t i = first; i < std::min(first + kPiecesInABatch, layouts_.size()); ++i) {
      batch.pieces.push_back({.tensor = &layouts_[i], .begin = 0, .end = size_, .memory = host_ + i * size_});
    }
    return batch;
  }

  const std::uint64_t size_;
  std::byte* const host_;
  std::vector<StridedLayout> layouts_;
};

}  // namespace

Status MeasurePieces(const PiecesOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice({.index = 0, .lanes = kLanes}));
  const std::uint64_t on_gpu_bytes = options.bytes + options.bytes / 2;  // The gaps are at most half of the pieces.
  CAIRN_ASSIGN_OR_RETURN(std::byte* const on_gpu, device->AllocateStaging(on_gpu_bytes));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<BufferPool> pool, BufferPool::Make(options.bytes, options.bytes, 1));
  pool->Touch();
  CAIRN_RETURN_IF_ERROR(pool->PinWith(*device));
  const BufferPool::Chunk host = pool->TryAcquire(BufferPool::Priority::kSave);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Open());
  for (const std::size_t count : {100, 1'000, 10'000, 50'000}) {
    for (const std::uint64_t size : {512U, 4U << 10, 16U << 10, 64U << 10, 256U << 10, 1U << 20}) {
      if (count * size > options.bytes) continue;
      Pieces pieces(count, size, {on_gpu, on_gpu_bytes}, host.data());
      for (int repetition = 0; repetition < options.repetitions; ++repetition) {
        nlohmann::json line{{"what", "pieces"}, {"count", count}, {"size", size}};
        for (const auto& [way, direction] :
             {std::pair{"to_host", CopyDirection::kToHost}, std::pair{"to_device", CopyDirection::kToDevice}}) {
          CAIRN_ASSIGN_OR_RETURN(line[way]["one_by_one"], pieces.CopyOneByOne(*launcher, direction));
          CAIRN_ASSIGN_OR_RETURN(line[way]["cairn"], pieces.Copy(*device, direction));
        }
        PrintLine(line);
      }
    }
  }
  return Status::Ok();
}

}  // namespace cairn::bench
