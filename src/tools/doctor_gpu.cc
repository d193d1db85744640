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
constexpr int kLanes = 2;                           // Options::copy_streams.
constexpr std::uint64_t kGpuChunkBytes = 8U << 20;  // Options::chunk_bytes.
/// Of a single copy's rate.
constexpr double kEnough = 0.9;

/// A check that compares bytes. An error of it is what was found.
struct Check {
  const char* name;
  Result<bool> proven;
  const char* good;
  const char* bad;
  const char* cost;
};

Status AddChecks(std::vector<Finding>& findings, const std::string& gpu, GpuLink& link) {
  const Check checks[] = {
      {"events", link.Ordered({.device = link.device().id()}), "streams and lanes wait for each other",
       "a lane did not wait for a stream, or a stream for a lane", "what is saved from it is of no one step"},
      {"round trip", link.Intact(), "bit-exact", "other bytes than those that were sent",
       "what is saved from it is wrong: check its memory and the machine's"},
      {"strides", link.KeepsStrides(), "tensors of any strides and many small ones, by kernels: bit-exact",
       "other bytes than those that were sent", "tensors in channels_last or transposed cannot be saved in place"}};
  for (const Check& check : checks) {
    const bool proven = check.proven.ok() && *check.proven;
    const std::string found = check.proven.ok() ? (proven ? check.good : check.bad) : check.proven.status().message();
    findings.push_back({.name = gpu + check.name,
                        .state = MissingUnless(proven),
                        .found = found,
                        .cost = check.cost,
                        .value = proven});
  }
  return link.device().Health();
}

Status AddGpu(std::vector<Finding>& findings, GpuLink& link, std::uint64_t bytes, std::chrono::nanoseconds time) {
  const std::string gpu = ToString(link.device().id()) + " ";
  CAIRN_RETURN_IF_ERROR(AddChecks(findings, gpu, link));
  const auto rate = [&](const char* name, double found, std::optional<double> single, const char* cost) {
    findings.push_back({.name = gpu + name,
                        // A rate that is none means that nothing was copied.
                        .state = found > 0 ? CostsUnless(!single || found >= kEnough * *single) : State::kMissing,
                        .found = HumanRate(found) + (single ? fmt::format(", {:.2f} of one", found / *single) : ""),
                        .cost = cost,
                        .value = found});
  };
  CAIRN_ASSIGN_OR_RETURN(const LinkRate single, link.Single(time));
  rate("one copy to the host", single.to_host, {}, "the upper limit of a capture");
  rate("one copy from the host", single.to_device, {}, "the upper limit of a restore");
  CAIRN_ASSIGN_OR_RETURN(const LinkRate lanes, link.Chunks(std::min(kGpuChunkBytes, bytes), time));
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
  CAIRN_ASSIGN_OR_RETURN(const int gpus, CountCudaDevices());
  for (int index = 0; index < gpus; ++index) {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<GpuLink> link, GpuLink::Open(index, kLanes, bytes));
    CAIRN_RETURN_IF_ERROR(AddGpu(findings, *link, bytes, std::min<std::chrono::nanoseconds>(kTime, probe_time)));
  }
  return Status::Ok();
}

}  // namespace cairn::tools
