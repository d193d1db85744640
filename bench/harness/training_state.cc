#include "bench/harness/training_state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/emulation/host_memory.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kCudaSector = 16U << 10;
constexpr std::uint64_t kPiece = 16U << 20;

// SplitMix64: no two words alike, and none that is zero for long.
std::uint64_t Mix(std::uint64_t word, std::uint64_t step) {
  std::uint64_t z = (word + step * 0x9e3779b97f4a7c15) ^ (step << 32);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

Result<std::unique_ptr<TrainingState>> TrainingState::Make(Gpu& gpu, std::uint64_t bytes, std::uint64_t tensors) {
  if (bytes == 0 || bytes % kBlock != 0) {
    return Error(StatusCode::kInvalidArgument, "state: expected a multiple of {} bytes, found {}", kBlock, bytes);
  }
  if (tensors == 0 || bytes / tensors < kSector) {
    return Error(StatusCode::kInvalidArgument, "state: {} bytes are too few for {} tensors of {} bytes or more", bytes,
                 tensors, kSector);
  }
  const std::uint64_t each = AlignDown(bytes / tensors, kSector);
  std::vector<NamedBytes> equal;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    equal.push_back({"model.layers." + std::to_string(i) + ".weight", i + 1 == tensors ? bytes - i * each : each});
  }
  return Make(gpu, equal);
}

Result<std::unique_ptr<TrainingState>> TrainingState::Make(Gpu& gpu, const std::vector<NamedBytes>& tensors,
                                                           std::uint64_t first) {
  std::uint64_t bytes = 0;
  for (const NamedBytes& tensor : tensors) {
    bytes += tensor.bytes;
    if (tensor.bytes != 0 && tensor.bytes % kSector == 0) continue;
    return Error(StatusCode::kInvalidArgument, "{}: expected a multiple of {} bytes, found {}", tensor.name, kSector,
                 tensor.bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(const MutableBytes memory, gpu.Allocate(bytes));
  std::unique_ptr<BufferPool> words;
  if (!gpu.emulated()) {
    const std::uint64_t room = AlignUp(DivideUp(bytes, kCudaSector) * sizeof(std::uint64_t), kBlock);
    CAIRN_ASSIGN_OR_RETURN(words, MakePinnedMemory(gpu, room, room));
  }
  return std::unique_ptr<TrainingState>(new TrainingState(gpu, memory, tensors, first, std::move(words)));
}

TrainingState::TrainingState(Gpu& gpu, MutableBytes memory, const std::vector<NamedBytes>& tensors, std::uint64_t first,
                             std::unique_ptr<BufferPool> words)
    : gpu_(gpu),
      memory_(memory),
      first_word_(first / sizeof(std::uint64_t)),
      sector_words_((gpu.emulated() ? kSector : kCudaSector) / sizeof(std::uint64_t)),
      words_(std::move(words)) {
  std::uint64_t begin = 0;
  for (const NamedBytes& tensor : tensors) {
    Add(tensor.name, memory.subspan(begin, tensor.bytes));
    begin += tensor.bytes;
  }
}

// What the word is after the step: the first of each sector changes with it.
std::uint64_t TrainingState::WordAfter(std::uint64_t word, std::uint64_t step) const {
  return Mix(first_word_ + word, word % sector_words_ == 0 ? step + 1 : 0);
}

std::uint64_t TrainingState::sectors() const { return DivideUp(bytes(), sector_words_ * sizeof(std::uint64_t)); }

Status TrainingState::Visit(Access access,
                            const std::function<bool(std::uint64_t, std::span<std::uint64_t>)>& visit) const {
  if (gpu_.emulated()) {
    static_cast<void>(visit(0, {reinterpret_cast<std::uint64_t*>(memory_.data()), bytes() / sizeof(std::uint64_t)}));
    return {};
  }
  std::vector<std::uint64_t> piece(std::min(kPiece, bytes()) / sizeof(std::uint64_t));
  for (std::uint64_t at = 0; at < bytes(); at += kPiece) {
    const std::span<std::uint64_t> words =
        std::span(piece).first(std::min(kPiece, bytes() - at) / sizeof(std::uint64_t));
    if (access == Access::kRead)
      CAIRN_RETURN_IF_ERROR(gpu_.CopyToHost(*this, at, std::as_writable_bytes(words), Gpu::HostMemory::kAny));
    if (!visit(at / sizeof(std::uint64_t), words)) return {};
    if (access == Access::kWrite)
      CAIRN_RETURN_IF_ERROR(gpu_.CopyToDevice(std::as_bytes(words), *this, at, Gpu::HostMemory::kAny));
  }
  return {};
}

Status TrainingState::Initialize() {
  return Visit(Access::kWrite, [this](std::uint64_t first, std::span<std::uint64_t> words) {
    for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = WordAfter(first + i, 0);
    return true;
  });
}

Status TrainingState::Clear() const {
  return Visit(Access::kWrite, [](std::uint64_t, std::span<std::uint64_t> words) {
    std::fill(words.begin(), words.end(), 0);
    return true;
  });
}

Status TrainingState::Update(std::uint64_t step) {
  if (gpu_.emulated()) {
    auto* const words = reinterpret_cast<std::uint64_t*>(memory_.data());
    for (std::uint64_t i = 0; i < sectors(); ++i) words[i * sector_words_] = WordAfter(i * sector_words_, step);
    return {};
  }
  const BufferPool::Chunk chunk = words_->TryAcquire(BufferPool::Priority::kSave);
  const std::span<std::uint64_t> words(reinterpret_cast<std::uint64_t*>(chunk.data()), sectors());
  for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = WordAfter(i * sector_words_, step);
  const StridedLayout firsts{.base = memory_.data(),
                             .row_bytes = sizeof(std::uint64_t),
                             .outer = {{.size = static_cast<std::int64_t>(words.size()),
                                        .stride = static_cast<std::int64_t>(sector_words_ * sizeof(std::uint64_t))}},
                             .bytes = words.size_bytes()};
  return gpu_.Write(std::as_bytes(words), firsts);
}

Result<bool> TrainingState::Is(std::uint64_t step) const {
  bool same = true;
  CAIRN_RETURN_IF_ERROR(Visit(Access::kRead, [&](std::uint64_t first, std::span<std::uint64_t> words) {
    for (std::uint64_t i = 0; i < words.size() && same; ++i) same = words[i] == WordAfter(first + i, step);
    return same;
  }));
  return same;
}

}  // namespace cairn::bench
