#pragma once

#include "device/device.h"

namespace cairn::bench {

/// A GPU whose copies cost the CPU nothing, like a DMA engine's: bytes count as copied as soon as the copy is
/// requested, and chunks keep their old content. So it measures a save without the copy to the host.
class PinnedDevice : public Device {
 public:
  [[nodiscard]] DeviceId id() const override { return {DeviceKind::kCuda, 0}; }
  [[nodiscard]] int lanes() const override { return 2; }
  [[nodiscard]] bool has_streams() const override { return true; }
  [[nodiscard]] bool has_kernels() const override { return false; }
  [[nodiscard]] Status CheckSums(std::span<const CopyPiece> /*pieces*/) const override {
    return Status(StatusCode::kUnsupported, "no sums on this device");
  }
  [[nodiscard]] Status CheckLayout(const StridedLayout& /*layout*/) const override { return {}; }
  Status PinMemory(MutableBytes /*memory*/) override { return {}; }
  void UnpinMemory(MutableBytes /*memory*/) override {}
  Result<std::byte*> AllocateStaging(std::uint64_t /*bytes*/) override {
    return Status(StatusCode::kUnsupported, "no staging on this device");
  }
  Result<EventId> AcquireEvent() override { return EventId{1}; }
  void ReleaseEvent(EventId /*event*/) override {}
  Status RecordOnStream(Stream /*stream*/, EventId /*event*/) override { return {}; }
  Status StreamWait(Stream /*stream*/, EventId /*event*/) override { return {}; }
  [[nodiscard]] bool CanHoldStreamsOf(DeviceId device) const override { return device == id(); }
  Status RecordOnLane(int /*lane*/, EventId /*event*/) override { return {}; }
  Status LaneWait(int /*lane*/, EventId /*event*/) override { return {}; }
  [[nodiscard]] bool HasRoom(int /*lane*/) const override { return true; }
  void WakeOnRoom(std::weak_ptr<const std::function<void()>> /*wake*/) override {}
  Status Copy(CopyBatch /*batch*/, CopyDone done) override {
    done(Status::Ok());
    return {};
  }
  Status Health() override { return {}; }
};

}  // namespace cairn::bench
