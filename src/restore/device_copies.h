#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cairn/tensor.h"
#include "device/device.h"
#include "restore/match.h"

namespace cairn {

/// The devices that one restore writes to: assigns copies to lanes and orders them with the caller's streams. For one
/// thread.
class DeviceCopies {
 public:
  using FindDevice = std::function<Result<Device*>(DeviceId)>;

  DeviceCopies() = default;
  /// Releases the events.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Finds each target's device and has it check the layout. Plain CPU memory needs no device.
  Status Prepare(std::span<const std::vector<PlannedCopy>> copies, const FindDevice& find);
  /// All lanes wait for the work queued on the caller's streams (on CUDA without one: its default stream).
  Status WaitForStreams(std::span<const Stream> streams);
  /// The device whose copy engine writes the target; null for ordinary CPU memory.
  [[nodiscard]] Device* For(DeviceId id) const;
  /// Has `wake` called when a full lane of one of the devices has room again; see Device::WakeOnRoom.
  void WakeOnRoom(const std::shared_ptr<const std::function<void()>>& wake);
  /// Whether a lane takes a batch for the device: Copy must not be called before. Batches take lanes in turn; those
  /// that share memory always use the first.
  [[nodiscard]] bool HasRoom(const Device& device, bool shares_memory) const;
  /// Enqueues a batch for one device.
  Status Copy(Device& device, std::vector<CopyPiece> pieces, bool shares_memory, CopyDone done);
  /// Makes the caller's streams wait for every copy so far.
  Status HoldStreams(std::span<const Stream> streams);

 private:
  struct Used {
    Device* device = nullptr;
    int next_lane = 0;
    std::vector<EventId> events;
  };
  static Result<EventId> NewEvent(Used& used);
  // The next lane in turn that has room, if there is one.
  [[nodiscard]] static std::optional<int> LaneWithRoom(const Used& used, bool shares_memory);

  std::map<DeviceId, Used> used_;
};

}  // namespace cairn
