#include "bench/strategies/training_state.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "bench/strategies/host_memory.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kSector = 512;
constexpr std::uint64_t kSectorWords = kSector / sizeof(std::uint64_t);

// SplitMix64: no two words alike, and none that is zero for long.
std::uint64_t Mix(std::uint64_t word, std::uint64_t step) {
  std::uint64_t z = (word + step * 0x9e3779b97f4a7c15) ^ (step << 32);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// What the word is after the step: the first of each sector changes with it.
std::uint64_t WordAfter(std::uint64_t word, std::uint64_t step) {
  return Mix(word, word % kSectorWords == 0 ? step + 1 : 0);
}

}  // namespace

Result<std::unique_ptr<TrainingState>> TrainingState::Make(std::uint64_t bytes, std::uint64_t tensors) {
  if (bytes == 0 || bytes % kBlock != 0) {
    return Error(StatusCode::kInvalidArgument, "state: expected a multiple of {} bytes, found {}", kBlock, bytes);
  }
  if (tensors == 0 || bytes / tensors < kSector) {
    return Error(StatusCode::kInvalidArgument, "state: {} bytes are too few for {} tensors of {} bytes or more", bytes,
                 tensors, kSector);
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool, MakeHostMemory(bytes, bytes));
  BufferPool::Chunk memory = pool->TryAcquire(BufferPool::Priority::kSave);
  return std::unique_ptr<TrainingState>(new TrainingState(std::move(pool), std::move(memory), bytes, tensors));
}

TrainingState::TrainingState(std::unique_ptr<BufferPool> pool, BufferPool::Chunk memory, std::uint64_t bytes,
                             std::uint64_t tensors)
    : pool_(std::move(pool)), memory_(std::move(memory)) {
  const std::uint64_t each = AlignDown(bytes / tensors, kSector);
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::uint64_t begin = i * each;
    Add("model.layers." + std::to_string(i) + ".weight",
        {memory_.data() + begin, i + 1 == tensors ? bytes - begin : each});
  }
}

void TrainingState::Initialize() {
  auto* const words = reinterpret_cast<std::uint64_t*>(memory_.data());
  for (std::uint64_t i = 0; i < bytes() / sizeof(std::uint64_t); ++i) words[i] = WordAfter(i, 0);
}

void TrainingState::Update(std::uint64_t step) {
  auto* const words = reinterpret_cast<std::uint64_t*>(memory_.data());
  for (std::uint64_t i = 0; i < bytes() / sizeof(std::uint64_t); i += kSectorWords) words[i] = WordAfter(i, step);
}

bool TrainingState::Is(std::uint64_t step) const {
  const auto* const words = reinterpret_cast<const std::uint64_t*>(memory_.data());
  for (std::uint64_t i = 0; i < bytes() / sizeof(std::uint64_t); ++i) {
    if (words[i] != WordAfter(i, step)) return false;
  }
  return true;
}

}  // namespace cairn::bench
