#include "restore/device_copies.h"

#include <unordered_set>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

DeviceCopies::~DeviceCopies() {
  for (auto& [id, used] : used_) {
    for (const EventId event : used.events) used.device->ReleaseEvent(event);
  }
}

Status DeviceCopies::Prepare(std::span<const std::vector<PlannedCopy>> copies, const FindDevice& find) {
  std::unordered_set<const StridedLayout*> checked;  // Many copies may have the same target.
  for (const auto& of_shard : copies) {
    for (const PlannedCopy& copy : of_shard) {
      if (!checked.insert(copy.target).second) continue;
      auto it = used_.find(copy.device);
      if (it == used_.end()) {
        Used used;
        if (find) {
          CAIRN_ASSIGN_OR_RETURN(used.device, find(copy.device));
        } else if (copy.device.kind != DeviceKind::kCpu) {
          return Error(StatusCode::kInvalidArgument, "no device {} to restore to", ToString(copy.device));
        }
        if (copy.device.kind == DeviceKind::kCpu && used.device != nullptr && !used.device->has_streams()) {
          used.device = nullptr;
        }
        it = used_.emplace(copy.device, std::move(used)).first;
      }
      if (it->second.device == nullptr) continue;
      if (const Status status = it->second.device->CheckLayout(*copy.target); !status.ok()) {
        return Error(status.code(), "tensor \"{}\": {}", copy.name, status.message());
      }
    }
  }
  std::erase_if(used_, [](const auto& item) { return item.second.device == nullptr; });
  return Status::Ok();
}

Result<EventId> DeviceCopies::NewEvent(Used& used) {
  CAIRN_ASSIGN_OR_RETURN(const EventId event, used.device->AcquireEvent());
  used.events.push_back(event);
  return event;
}

Status DeviceCopies::WaitForStreams(std::span<const Stream> streams) {
  for (auto& [id, used] : used_) {
    if (!used.device->has_streams()) continue;
    std::vector<Stream> before;
    for (const Stream& stream : streams) {
      if (stream.device == id) before.push_back(stream);
    }
    if (before.empty() && id.kind == DeviceKind::kCuda) before.push_back({.device = id});
    for (const Stream& stream : before) {
      CAIRN_ASSIGN_OR_RETURN(const EventId event, NewEvent(used));
      CAIRN_RETURN_IF_ERROR(used.device->RecordOnStream(stream, event));
      for (int lane = 0; lane < used.device->lanes(); ++lane) {
        CAIRN_RETURN_IF_ERROR(used.device->LaneWait(lane, event));
      }
    }
  }
  return Status::Ok();
}

Device* DeviceCopies::For(DeviceId id) const {
  const auto it = used_.find(id);
  return it == used_.end() ? nullptr : it->second.device;
}

void DeviceCopies::WakeOnRoom(const std::shared_ptr<const std::function<void()>>& wake) {
  for (auto& [id, used] : used_) used.device->WakeOnRoom(wake);
}

std::optional<int> DeviceCopies::LaneWithRoom(const Used& used, bool shares_memory) {
  const int lanes = used.device->lanes();
  for (int i = 0; i < (shares_memory ? 1 : lanes); ++i) {
    const int lane = shares_memory ? 0 : (used.next_lane + i) % lanes;
    if (used.device->HasRoom(lane)) return lane;
  }
  return std::nullopt;
}

bool DeviceCopies::HasRoom(const Device& device, bool shares_memory) const {
  return LaneWithRoom(used_.at(device.id()), shares_memory).has_value();
}

Status DeviceCopies::Copy(Device& device, std::vector<CopyPiece> pieces, bool shares_memory, CopyDone done) {
  Used& used = used_.at(device.id());
  const int lane = LaneWithRoom(used, shares_memory).value_or(0);
  used.next_lane = (lane + 1) % device.lanes();
  return device.Copy({.direction = CopyDirection::kToDevice, .lane = lane, .pieces = std::move(pieces)},
                     std::move(done));
}

Status DeviceCopies::HoldStreams(std::span<const Stream> streams) {
  for (auto& [id, used] : used_) {
    if (!used.device->has_streams()) continue;
    std::vector<EventId> lane_events;
    for (int lane = 0; lane < used.device->lanes(); ++lane) {
      CAIRN_ASSIGN_OR_RETURN(const EventId event, NewEvent(used));
      CAIRN_RETURN_IF_ERROR(used.device->RecordOnLane(lane, event));
      lane_events.push_back(event);
    }
    for (const Stream& stream : streams) {
      if (stream.device != id) continue;
      for (const EventId event : lane_events) CAIRN_RETURN_IF_ERROR(used.device->StreamWait(stream, event));
    }
  }
  return Status::Ok();
}

}  // namespace cairn
