#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "base/status_macros.h"
#include "device/cuda_device.h"
#include "tools/finding.h"
#include "tools/quantities.h"
#include "tune/gpu_copies.h"

namespace cairn::tools {
namespace {

/// For each rate, at most.
constexpr std::chrono::milliseconds kTime{400};
constexpr int kLanes = 2;                        // Options::copy_streams.
constexpr std::uint64_t kChunkBytes = 8U << 20;  // Options::chunk_bytes.
/// Of a single copy's rate.
constexpr double kEnough = 0.9;

/// A stream of the caller waits for an event of a lane, and the reverse, as a save and a fence order them.
Status TryEvents(Device& device) {
  const Stream stream{.device = device.id(), .handle = 0};
  CAIRN_ASSIGN_OR_RETURN(const EventId event, device.AcquireEvent());
  Status status = device.RecordOnStream(stream, event);
  if (status.ok()) status = device.LaneWait(0, event);
  if (status.ok()) status = device.RecordOnLane(0, event);
  if (status.ok()) status = device.StreamWait(stream, event);
  device.ReleaseEvent(event);
  return status;
}

Status AddGpu(std::vector<Finding>& findings, GpuLink& link, std::uint64_t bytes, std::chrono::nanoseconds time) {
  const std::string gpu = ToString(link.device().id()) + " ";
  const Status events = TryEvents(link.device());
  findings.push_back({.name = gpu + "events",
                      .state = MissingUnless(events.ok()),
                      .found = events.ok() ? "streams and lanes wait for each other" : events.message(),
                      .cost = "nothing can be saved from it",
                      .value = events.ok()});
  CAIRN_ASSIGN_OR_RETURN(const bool intact, link.Intact());
  findings.push_back({.name = gpu + "round trip",
                      .state = MissingUnless(intact),
                      .found = intact ? "bit-exact" : "other bytes than those that were sent",
                      .cost = "what is saved from it is wrong: check its memory and the machine's",
                      .value = intact});
  const auto rate = [&](const char* name, double found, std::optional<double> single, const char* cost) {
    findings.push_back({.name = gpu + name,
                        .state = CostsUnless(!single || found >= kEnough * *single),
                        .found = HumanRate(found) + (single ? fmt::format(", {:.2f} of one", found / *single) : ""),
                        .cost = cost,
                        .value = found});
  };
  CAIRN_ASSIGN_OR_RETURN(const LinkRate single, link.Single(time));
  rate("one copy to the host", single.to_host, {}, "the upper limit of a capture");
  rate("one copy from the host", single.to_device, {}, "the upper limit of a restore");
  CAIRN_ASSIGN_OR_RETURN(const LinkRate lanes, link.Chunks(std::min(kChunkBytes, bytes), time));
  rate("lanes to the host", lanes.to_host, single.to_host, "captures take longer: try other copy_streams and chunk");
  rate("lanes from the host", lanes.to_device, single.to_device,
       "restores take longer: try other copy_streams and chunk");
  CAIRN_ASSIGN_OR_RETURN(const double staging, link.Staging(time));
  rate("staging", staging, {}, "a fence waits for this instead of the link, where spare memory is given (staging)");
  const double pinning = link.pin_seconds_per_byte() * static_cast<double>(1ULL << 30);
  findings.push_back({.name = gpu + "pinning",
                      .found = fmt::format("{:.2f} s/GiB", pinning),
                      .cost = "once, for the pool, when the first save from a GPU is made",
                      .value = pinning});
  return Status::Ok();
}

}  // namespace

Status AddGpus(std::vector<Finding>& findings, std::uint64_t bytes, std::chrono::nanoseconds probe_time) {
  CAIRN_RETURN_IF_ERROR(CudaAvailable());
  for (int index = 0;; ++index) {
    Result<std::unique_ptr<GpuLink>> link = GpuLink::Open(index, kLanes, bytes);
    if (index > 0 && link.status().code() == StatusCode::kInvalidArgument) return Status::Ok();  // Beyond the last one.
    CAIRN_RETURN_IF_ERROR(link.status());
    CAIRN_RETURN_IF_ERROR(AddGpu(findings, **link, bytes, std::min<std::chrono::nanoseconds>(kTime, probe_time)));
  }
}

}  // namespace cairn::tools
