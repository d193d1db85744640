#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "device/device.h"

namespace cairn {

/// Passes every call on to the device inside. A base for devices that change some of the calls.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] DeviceId id() const override { return inner_->id(); }
  [[nodiscard]] int lanes() const override { return inner_->lanes(); }
  [[nodiscard]] bool has_streams() const override { return inner_->has_streams(); }
  [[nodiscard]] bool has_kernels() const override { return inner_->has_kernels(); }
  [[nodiscard]] Status CheckSums(std::span<const CopyPiece> pieces) const override { return inner_->CheckSums(pieces); }
  [[nodiscard]] std::optional<NumaNode> numa_node() const override { return inner_->numa_node(); }
  [[nodiscard]] bool IsWrittenByStreams(const std::byte* at) const override { return inner_->IsWrittenByStreams(at); }
  [[nodiscard]] Status CheckLayout(const StridedLayout& layout) const override {
    return Forward([&] { return inner_->CheckLayout(layout); });
  }
  Status PinMemory(MutableBytes memory) override {
    return Forward([&] { return inner_->PinMemory(memory); });
  }
  void UnpinMemory(MutableBytes memory) override { inner_->UnpinMemory(memory); }
  Result<std::byte*> AllocateStaging(std::uint64_t bytes) override {
    return Forward([&] { return inner_->AllocateStaging(bytes); });
  }
  Result<EventId> AcquireEvent() override {
    return Forward([&] { return inner_->AcquireEvent(); });
  }
  void ReleaseEvent(EventId event) override { inner_->ReleaseEvent(event); }
  Status RecordOnStream(Stream stream, EventId event) override {
    return Forward([&] { return inner_->RecordOnStream(stream, event); });
  }
  Status StreamWait(Stream stream, EventId event) override {
    return Forward([&] { return inner_->StreamWait(stream, event); });
  }
  [[nodiscard]] bool CanHoldStreamsOf(DeviceId device) const override { return inner_->CanHoldStreamsOf(device); }
  Status RecordOnLane(int lane, EventId event) override {
    return Forward([&] { return inner_->RecordOnLane(lane, event); });
  }
  Status LaneWait(int lane, EventId event) override {
    return Forward([&] { return inner_->LaneWait(lane, event); });
  }
  [[nodiscard]] bool HasRoom(int lane) const override { return inner_->HasRoom(lane); }
  void WakeOnRoom(std::weak_ptr<const std::function<void()>> wake) override { inner_->WakeOnRoom(std::move(wake)); }
  Status Copy(CopyBatch batch, CopyDone done) override {
    return Forward([&] { return inner_->Copy(std::move(batch), std::move(done)); });
  }
  Status Health() override {
    return Forward([&] { return inner_->Health(); });
  }

 protected:
  /// Not Ok: what every call that can fail returns instead of being passed on.
  [[nodiscard]] virtual Status Failure() const { return {}; }

  const std::shared_ptr<Device> inner_;

 private:
  template <typename Call>
  auto Forward(Call call) const -> decltype(call()) {
    if (Status failure = Failure(); !failure.ok()) return failure;
    return call();
  }
};

}  // namespace cairn
