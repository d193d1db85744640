// Whether a GPU does what saves and restores need of it: each check compares bytes that went there and back.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strided.h"
#include "tune/copies_under_way.h"
#include "tune/gpu_copies.h"

namespace cairn {
namespace {

constexpr std::uint64_t kWord = 0x9e3779b97f4a7c15;
// Of the copy that another one must wait for: it takes a while, so that nothing waits by chance.
constexpr std::uint64_t kSlices = 16;
// On a busy machine copies may finish in order without waiting, so they must do so again and again.
constexpr std::uint64_t kOrderRounds = 12;
// Where tensors with strides are tried.
constexpr std::uint64_t kStridedBytes = 1U << 20;

StridedLayout LayoutOf(std::byte* base, std::uint64_t bytes) {
  return {.base = base, .row_bytes = bytes, .outer = {}, .bytes = bytes};
}

void Fill(std::byte* at, std::uint64_t bytes, std::uint64_t first) {
  for (std::uint64_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
    const std::uint64_t value = (i + first) * kWord;
    std::memcpy(at + i * sizeof(value), &value, sizeof(value));
  }
}

Status CopyAll(Device& device, CopyDirection direction, const std::vector<StridedLayout>& tensors, std::byte* memory) {
  std::vector<CopyPiece> pieces;
  for (const StridedLayout& tensor : tensors) {
    pieces.push_back({.tensor = &tensor, .begin = 0, .end = tensor.bytes, .memory = memory});
    memory += tensor.bytes;
  }
  CopiesUnderWay copies(device);
  for (std::vector<CopyPiece>& batch : InBatches(device, std::move(pieces))) {
    copies.Add({.direction = direction, .pieces = std::move(batch)});
  }
  return copies.Wait();
}

using Place = std::function<std::vector<StridedLayout>(std::byte* base)>;

// Whether the tensors, which `place` puts into memory of kStridedBytes, are gathered and scattered there as the host
// does. `host` has room for that twice.
Result<bool> KeepsTensors(Device& device, std::byte* on_gpu, std::byte* host, const Place& place) {
  std::byte* const chunk = host + kStridedBytes;
  std::vector<std::byte> gathered;
  Fill(host, kStridedBytes, 1);
  CAIRN_RETURN_IF_ERROR(CopyAll(device, CopyDirection::kToDevice, {LayoutOf(on_gpu, kStridedBytes)}, host));
  for (const StridedLayout& tensor : place(host)) {
    const std::size_t at = gathered.size();
    gathered.resize(at + tensor.bytes);
    GatherBytes(tensor, 0, tensor.bytes, gathered.data() + at);
  }
  std::memset(chunk, 0, gathered.size());
  CAIRN_RETURN_IF_ERROR(CopyAll(device, CopyDirection::kToHost, place(on_gpu), chunk));
  if (!std::equal(gathered.begin(), gathered.end(), chunk)) return false;

  std::memset(host, 0, kStridedBytes);
  CAIRN_RETURN_IF_ERROR(CopyAll(device, CopyDirection::kToDevice, {LayoutOf(on_gpu, kStridedBytes)}, host));
  CAIRN_RETURN_IF_ERROR(CopyAll(device, CopyDirection::kToDevice, place(on_gpu), chunk));
  CAIRN_RETURN_IF_ERROR(CopyAll(device, CopyDirection::kToHost, {LayoutOf(on_gpu, kStridedBytes)}, host));
  std::vector<std::byte> scattered(kStridedBytes);
  std::size_t at = 0;
  for (const StridedLayout& tensor : place(scattered.data())) {
    ScatterBytes(tensor, 0, tensor.bytes, gathered.data() + at);
    at += tensor.bytes;
  }
  return std::equal(scattered.begin(), scattered.end(), host);
}

}  // namespace

Result<bool> GpuLink::Intact() {
  const BufferPool::Chunk chunk = pool_->TryAcquire(BufferPool::Priority::kSave);
  const std::vector<StridedLayout> all = {LayoutOf(memory_.data(), memory_.size())};
  std::vector<std::byte> sent(memory_.size());
  Fill(sent.data(), sent.size(), 1);
  std::ranges::copy(sent, chunk.data());
  CAIRN_RETURN_IF_ERROR(CopyAll(*device_, CopyDirection::kToDevice, all, chunk.data()));
  std::memset(chunk.data(), 0, memory_.size());
  CAIRN_RETURN_IF_ERROR(CopyAll(*device_, CopyDirection::kToHost, all, chunk.data()));
  return std::equal(sent.begin(), sent.end(), chunk.data());
}

Result<bool> GpuLink::Ordered(Stream stream) {
  for (std::uint64_t round = 0; round < kOrderRounds; ++round) {
    CAIRN_ASSIGN_OR_RETURN(const bool ordered, OrderedOnce(stream));
    if (!ordered) return false;
  }
  return true;
}

Result<bool> GpuLink::OrderedOnce(Stream stream) {
  const BufferPool::Chunk chunk = pool_->TryAcquire(BufferPool::Priority::kSave);
  const std::uint64_t half = memory_.size() / 2;
  std::byte* const sent = chunk.data();
  std::byte* const found = chunk.data() + half;
  const StridedLayout on_gpu = LayoutOf(memory_.data(), half);
  std::memset(chunk.data(), 0, memory_.size());
  CAIRN_RETURN_IF_ERROR(CopyAll(*device_, CopyDirection::kToDevice, {on_gpu}, sent));
  Fill(sent, half, 7);

  CAIRN_ASSIGN_OR_RETURN(const EventId event, device_->AcquireEvent());
  CopiesUnderWay copies(*device_);
  for (std::uint64_t i = 0; i < kSlices; ++i) {
    const std::uint64_t begin = half / kSlices * i;
    const std::uint64_t end = i + 1 == kSlices ? half : half / kSlices * (i + 1);
    copies.Add({.direction = CopyDirection::kToDevice,
                .lane = 0,
                .pieces = {{.tensor = &on_gpu, .begin = begin, .end = end, .memory = sent + begin}}});
  }
  Status ordered = device_->RecordOnLane(0, event);
  if (ordered.ok()) ordered = device_->StreamWait(stream, event);
  if (ordered.ok()) ordered = device_->RecordOnStream(stream, event);
  if (ordered.ok()) ordered = device_->LaneWait(1, event);
  copies.Add({.lane = 1, .pieces = {{.tensor = &on_gpu, .begin = 0, .end = half, .memory = found}}});
  const Status copied = copies.Wait();
  device_->ReleaseEvent(event);
  CAIRN_RETURN_IF_ERROR(ordered);
  CAIRN_RETURN_IF_ERROR(copied);
  return std::equal(found, found + half, sent);
}

Result<bool> GpuLink::KeepsStrides() {
  const auto permuted = [](std::byte* base) {
    return std::vector{MakeStridedLayout(base, 4, std::vector<std::int64_t>{64, 96, 40},
                                         std::vector<std::int64_t>{1, std::int64_t{64} * 40, 64})};
  };
  // More than a kernel takes at once, of odd sizes, at odd places.
  const auto small = [](std::byte* base) {
    std::vector<StridedLayout> pieces;
    for (std::uint64_t i = 0; i < 500; ++i) pieces.push_back(LayoutOf(base + 3 + 1031 * i, 1 + i * 2 % 1023));
    return pieces;
  };
  CAIRN_RETURN_IF_ERROR(device_->CheckLayout(permuted(memory_.data()).front()));
  const BufferPool::Chunk chunk = pool_->TryAcquire(BufferPool::Priority::kSave);
  for (const Place& place : {Place(permuted), Place(small)}) {
    CAIRN_ASSIGN_OR_RETURN(const bool kept, KeepsTensors(*device_, memory_.data(), chunk.data(), place));
    if (!kept) return false;
  }
  return true;
}

}  // namespace cairn
