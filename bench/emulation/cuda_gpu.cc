#include <array>
#include <utility>

#include "base/status_macros.h"
#include "bench/emulation/gpu.h"
#include "bench/emulation/outstanding.h"
#include "device/cuda_device.h"

namespace cairn::bench {
namespace {

constexpr int kLanes = 2;  // Options::copy_streams.

/// The training's stream is the legacy one, torch's default. Its copies run in a lane of a second device, which waits
/// for the stream, and the stream for it: the Device interface has copies only in lanes.
class CudaGpu : public Gpu {
 public:
  static Result<std::unique_ptr<Gpu>> Open() {
    auto gpu = std::make_unique<CudaGpu>();
    CAIRN_ASSIGN_OR_RETURN(gpu->device_, MakeCudaDevice({.index = 0, .lanes = kLanes, .events = 1024}));
    CAIRN_ASSIGN_OR_RETURN(gpu->training_, MakeCudaDevice({.index = 0, .lanes = 1, .events = 2}));
    for (EventId& event : gpu->events_) {
      CAIRN_ASSIGN_OR_RETURN(event, gpu->training_->AcquireEvent());
    }
    return std::unique_ptr<Gpu>(std::move(gpu));
  }

  Result<MutableBytes> Allocate(std::uint64_t bytes) override {
    CAIRN_ASSIGN_OR_RETURN(std::byte* const memory, training_->AllocateStaging(bytes));
    memory_ = {memory, bytes};
    return memory_;
  }
  [[nodiscard]] bool emulated() const override { return false; }
  Status Write(Bytes from, const StridedLayout& to) override {
    // A copy to the device only reads the host's memory.
    return InStream(CopyDirection::kToDevice,
                    {.tensor = &to, .begin = 0, .end = from.size(), .memory = const_cast<std::byte*>(from.data())});
  }
  [[nodiscard]] Stream stream() const override { return {.device = training_->id(), .handle = 0}; }
  Status Synchronize() override {
    // The shortest copy that there is.
    const StridedLayout word{
        .base = memory_.data(), .row_bytes = sizeof(std::uint64_t), .outer = {}, .bytes = sizeof(std::uint64_t)};
    std::array<std::byte, sizeof(std::uint64_t)> read{};
    return InStream(CopyDirection::kToHost, {.tensor = &word, .begin = 0, .end = word.bytes, .memory = read.data()});
  }
  [[nodiscard]] const std::shared_ptr<Device>& device() const override { return device_; }

 private:
  Status InStream(CopyDirection direction, const CopyPiece& piece) {
    const auto [before, after] = events_;
    CAIRN_RETURN_IF_ERROR(training_->RecordOnStream(stream(), before));
    CAIRN_RETURN_IF_ERROR(training_->LaneWait(0, before));
    Outstanding copy(*training_);
    CAIRN_RETURN_IF_ERROR(copy.Copy({.direction = direction, .lane = 0, .pieces = {piece}}));
    CAIRN_RETURN_IF_ERROR(copy.Await());
    CAIRN_RETURN_IF_ERROR(training_->RecordOnLane(0, after));
    return training_->StreamWait(stream(), after);
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Device> training_;
  std::array<EventId, 2> events_{};
  MutableBytes memory_;
};

}  // namespace

Result<std::unique_ptr<Gpu>> OpenCudaGpu() { return CudaGpu::Open(); }

}  // namespace cairn::bench
