#include "bench/emulation/gpu.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/strided.h"
#include "bench/emulation/outstanding.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kBatch = 4U << 20;

}  // namespace

Status Gpu::CopyToHost(const DeviceState& from, std::uint64_t begin, MutableBytes to, HostMemory kind) {
  return Copy(CopyDirection::kToHost, from, begin, to, kind);
}

Status Gpu::CopyToDevice(Bytes from, const DeviceState& to, std::uint64_t begin, HostMemory kind) {
  // A copy to the device only reads the host's memory.
  return Copy(CopyDirection::kToDevice, to, begin, {const_cast<std::byte*>(from.data()), from.size()}, kind);
}

Status Gpu::Copy(CopyDirection direction, const DeviceState& state, std::uint64_t begin, MutableBytes memory,
                 HostMemory kind) {
  Device& device = *this->device();
  const auto lanes = static_cast<std::uint64_t>(device.lanes());
  const std::vector<DeviceState::Tensor>& tensors = state.tensors();
  auto tensor = std::upper_bound(tensors.begin(), tensors.end(), begin,
                                 [](std::uint64_t at, const DeviceState::Tensor& t) { return at < t.end(); });
  // What is smaller than a batch for each still uses all lanes.
  const std::uint64_t most = std::min(kBatch, AlignUp(DivideUp(memory.size(), lanes), kBlock));
  // CUDA takes pageable memory in single copies, not in batches.
  const bool single = kind == HostMemory::kAny && !emulated();
  Outstanding copies(device);
  Status asked;
  int lane = 0;
  for (std::uint64_t done = 0; done < memory.size() && asked.ok();) {
    CopyBatch batch{.direction = direction, .lane = lane, .pieces = {}};
    const std::uint64_t until = std::min<std::uint64_t>(done + most, memory.size());
    while (done < until && !(single && !batch.pieces.empty())) {
      const std::uint64_t at = begin + done - tensor->begin;
      const std::uint64_t n = std::min(until - done, tensor->layout.bytes - at);
      batch.pieces.push_back({.tensor = &tensor->layout, .begin = at, .end = at + n, .memory = memory.data() + done});
      done += n;
      if (at + n == tensor->layout.bytes) ++tensor;
    }
    lane = (lane + 1) % device.lanes();
    asked = copies.Copy(std::move(batch));
  }
  const Status ended = copies.Await();
  return asked.ok() ? ended : asked;
}

}  // namespace cairn::bench
