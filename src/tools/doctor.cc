#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/bytes.h"
#include "base/human.h"
#include "base/memory_limit.h"
#include "base/status_macros.h"
#include "device/cuda_device.h"
#include "store/space.h"
#include "tools/commands.h"
#include "tools/finding.h"
#include "tools/interruption.h"
#include "tools/machine.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tune/measure.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

std::string Answer(const Status& status, const char* good = "yes") { return status.ok() ? good : status.message(); }

constexpr double kDay = 86400;

/// The former default of ulimit -l, enough for a few rings of the default depth.
constexpr std::uint64_t kLockedForRings = 64U << 10;

/// For a root in memory, which most jobs do not have.
void AddSharedMemory(std::vector<Finding>& findings) {
  constexpr std::uint64_t kOfContainers = 64U << 20;
  const std::optional<SharedMemory> shared = FindSharedMemory();
  const bool removed = IsIpcRemoved();
  findings.push_back(
      {.name = "/dev/shm",
       .state = CostsUnless(shared && shared->total > kOfContainers && !removed),
       .found = shared ? fmt::format("{}, {} free{}", HumanBytes(shared->total), HumanBytes(shared->free),
                                     removed ? "; systemd empties it when the user has no session left" : "")
                       : "none",
       .cost = "only with memory_root: it takes max_in_flight + 2 times the state; a container gets more with "
               "--shm-size, and RemoveIPC=no in logind.conf keeps it after a logout",
       .value = shared ? json(shared->free) : json(nullptr)});
}

void AddMachine(std::vector<Finding>& findings, const Measured& measured) {
  findings.push_back({.name = "kernel", .found = FindKernel(), .cost = "5.15 is the oldest supported"});
  const bool ring = measured.io_queue == "io_uring";
  findings.push_back({.name = "io_uring",
                      .state = MissingUnless(ring),
                      .found = measured.io_queue_reason,
                      .cost = "threads with pwrite are used instead, at 0.97 of the rate",
                      .value = ring});
  const std::string hugepages = FindHugepages();
  findings.push_back({.name = "huge pages",
                      .state = CostsUnless(hugepages == "always" || hugepages == "madvise"),
                      .found = hugepages,
                      .cost = "a quarter of the write rate, and 0.016 instead of 0.002 CPU s/GB; set "
                              "/sys/kernel/mm/transparent_hugepage/enabled to madvise",
                      .value = hugepages});
  const Limits limits = FindLimits();
  const auto limit = [&](const char* name, std::optional<std::uint64_t> found, std::uint64_t enough, const auto& print,
                         const char* cost) {
    findings.push_back({.name = name,
                        .state = CostsUnless(!found || *found >= enough),
                        .found = found ? print(*found) : "unlimited",
                        .cost = cost,
                        .value = found ? json(*found) : json(nullptr)});
  };
  limit("locked memory", limits.locked_memory, kLockedForRings, HumanBytes,
        "kernels before 5.12, and again 6.18, count the rings (8 KiB or more each, summed over a user's processes "
        "without CAP_IPC_LOCK): if they do not fit, threads write instead; raise ulimit -l. Buffers do not count: they "
        "are not registered with the ring");
  limit("file size limit", limits.file_size, std::numeric_limits<std::uint64_t>::max(), HumanBytes,
        "a larger shard is rejected before its first byte; raise ulimit -f");
  limit(
      "open files", limits.open_files, 256, [](std::uint64_t files) { return fmt::to_string(files); },
      "a save needs three and a ring, a restore up to 16 shards; raise ulimit -n");
  // A machine without a GPU misses nothing; one whose GPU cannot be used does.
  const Status gpu = CudaAvailable();
  const bool unusable = !gpu.ok() && HasNvidiaGpu();
  findings.push_back({.name = "GPU",
                      .state = MissingUnless(!unusable),
                      .found = gpu.ok() || unusable ? Answer(gpu, "driver and device found") : "none, for CPU tensors",
                      .cost = "tensors on it cannot be saved or restored",
                      .value = gpu.ok()});
  const Memory memory = FindMemory();
  findings.push_back({.name = "memory",
                      .found = fmt::format("{}, {} available", HumanBytes(memory.total), HumanBytes(memory.available)),
                      .cost = "a pool smaller than the state makes captures wait for the disk",
                      .value = memory.available});
  AddSharedMemory(findings);
}

void AddFilesystem(std::vector<Finding>& findings, const Filesystem& filesystem, std::uint64_t free) {
  const std::string& type = filesystem.type;
  findings.push_back({.name = "filesystem",
                      .state = CostsUnless(type != "tmpfs" && type != "ramfs"),
                      .found = type,
                      .cost = "tmpfs loses everything at a reboot; tested are ext4, XFS, btrfs and tmpfs",
                      .value = type});
  findings.push_back({.name = "free space",
                      .found = HumanBytes(free),
                      .cost = "a save that does not fit fails with NoSpace before its first byte",
                      .value = free});
  const auto feature = [&](const char* name, const Status& works, const char* cost) {
    findings.push_back(
        {.name = name, .state = MissingUnless(works.ok()), .found = Answer(works), .cost = cost, .value = works.ok()});
  };
  feature("O_DIRECT", filesystem.direct,
          "buffered writes with early write-back: one more copy, and memory for the page cache");
  if (filesystem.direct.ok()) {
    findings.push_back(
        {.name = "O_DIRECT alignment",
         .state = CostsUnless(filesystem.alignment <= kBlock),
         .found = filesystem.alignment == 0 ? "not reported" : fmt::format("{} bytes", filesystem.alignment),
         .cost = "shards are aligned to 4096 bytes; a filesystem that requires more rejects the writes",
         .value = filesystem.alignment});
  }
  feature("preallocation", filesystem.preallocation,
          "blocks are allocated at each write, so a full disk is noticed late");
  feature("leases", filesystem.leases, "shard files are not recycled: new blocks, 2.5 instead of 3.1 GB/s");
  findings.push_back({.name = "rename, no replace",
                      .found = Answer(filesystem.no_replace),
                      .cost = "nothing: a folder is never renamed onto a non-empty one anyway",
                      .value = filesystem.no_replace.ok()});
  feature("rename, exchange", filesystem.exchange,
          "a step is replaced in two renames; between them readers find neither version");
}

void AddRates(std::vector<Finding>& findings, const Measured& measured) {
  const auto rate = [&](const char* name, double bytes_per_second, const std::string& cost) {
    findings.push_back({.name = name, .found = HumanRate(bytes_per_second), .cost = cost, .value = bytes_per_second});
  };
  const DiskRates& disk = measured.disk;
  const IoShape* best = &disk.shapes.front();
  for (const IoShape& shape : disk.shapes) {
    if (shape.write_rate > best->write_rate) best = &shape;
  }
  rate("write, fresh file", disk.shapes.front().write_rate,
       fmt::format("best of {} shapes: {} x {}, {}; slow quarter {:.0f} %", disk.shapes.size(),
                   HumanBytes(best->chunk_bytes), best->queue_depth, HumanRate(best->write_rate),
                   100 * disk.slow_share));
  rate("write, over existing blocks", disk.overwrite, "the rate of recycled shard files");
  rate("read", disk.read, "the upper limit of a restore");
  rate("copy of CPU tensors", measured.copy.bytes_per_second,
       fmt::format("with checksums, {} threads, {:.3f} CPU s/GB", measured.worker_threads,
                   measured.copy.cpu_seconds_per_byte * 1e9));
  rate("checksum", measured.checksum.bytes_per_second,
       fmt::format("{} threads, {:.3f} CPU s/GB", measured.worker_threads,
                   measured.checksum.cpu_seconds_per_byte * 1e9));
  findings.push_back({.name = "commit",
                      .found = HumanSeconds(disk.commit_seconds),
                      .cost = "for each save, besides its bytes: three parallel fsyncs, a rename, the root's fsync",
                      .value = disk.commit_seconds});
}

/// What the rates mean for a job. `cairn tune` says it in the job's own numbers.
void AddLaw(std::vector<Finding>& findings, const Rates& rates) {
  constexpr std::uint64_t kGigabyte = 1'000'000'000;
  const IoShape& shape =
      *std::max_element(rates.shapes.begin(), rates.shapes.end(),
                        [](const IoShape& a, const IoShape& b) { return a.write_rate < b.write_rate; });
  const SlowestStage slowest = FindSlowestStage(rates, shape.write_rate);
  const double first = EveryIterationSeconds(kGigabyte, rates, shape);
  const double further = EveryIterationSeconds(2 * kGigabyte, rates, shape) - first;
  findings.push_back(
      {.name = "a save of every iteration",
       .found = fmt::format("needs {} an iteration for a save of 1 GB, and {} for each GB more ({} of {}, "
                            "the commit, and a reserve for when the disk is slow); each GB that the pool "
                            "has no room for takes a fence {}",
                            HumanSeconds(first), HumanSeconds(further), HumanRate(slowest.bytes_per_second),
                            slowest.name, HumanSeconds(further)),
       .cost = "in shorter iterations not every save is written in time",
       .value = first});
  const double a_day = slowest.bytes_per_second * kDay;
  findings.push_back({.name = "endurance",
                      .found = fmt::format("{:.3g} TB a day at this rate", a_day / 1e12),
                      .cost = "compare with the drive's rated writes (DWPD or TBW)",
                      .value = a_day});
}

json ToJson(const Finding& finding) {
  return {{"name", finding.name},
          {"state", StateName(finding.state)},
          {"good", finding.state == State::kOk},
          {"found", finding.found},
          {"value", finding.value},
          {"cost", finding.cost}};
}

void Print(const std::vector<Finding>& findings, bool as_json) {
  if (as_json) {
    json out = json::array();
    for (const Finding& finding : findings) out.push_back(ToJson(finding));
    return PrintJson(out);
  }
  for (const Finding& finding : findings) {
    constexpr std::array<Colour, 3> kColours{Colour::kGreen, Colour::kYellow, Colour::kRed};
    const Colour colour = kColours.at(static_cast<std::size_t>(finding.state));
    fmt::print("{}{:<31}{}\n", Coloured(fmt::format("{:<9}", StateName(finding.state)), colour), finding.name,
               Printable(finding.found));
    if (finding.state != State::kOk) fmt::print("{:<40}{}\n", "", finding.cost);
  }
}

Status AddRoot(std::vector<Finding>& findings, const DoctorOptions& options, std::chrono::nanoseconds time) {
  const std::function<bool()> interrupted = CatchInterruptions();
  CAIRN_ASSIGN_OR_RETURN(const Filesystem filesystem, TryFilesystem(options.root));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> free, FindFreeSpace(options.root));
  CAIRN_ASSIGN_OR_RETURN(const Measured measured,
                         Measure({.root = options.root, .disk = {.time = time, .stopped = interrupted}}));
  AddMachine(findings, measured);
  AddFilesystem(findings, filesystem, free.value_or(0));
  AddRates(findings, measured);
  AddLaw(findings, measured.rates(filesystem.leases.ok()));
  return Status::Ok();
}

}  // namespace

Result<int> Doctor(const DoctorOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::chrono::nanoseconds time, ParseProbeTime(options.probe_time));
  std::vector<Finding> findings;
  Status status;
  if (!options.root.empty()) status = AddRoot(findings, options, time);
  if (status.ok() && options.gpu_bytes != 0) status = AddGpus(findings, options.gpu_bytes, time);
  // What was found before an error is worth reading too.
  if (!findings.empty()) Print(findings, options.json);
  CAIRN_RETURN_IF_ERROR(status);
  const bool wrong = options.gpu_bytes != 0 && std::ranges::any_of(findings, [](const Finding& finding) {
                       return finding.name.starts_with("cuda:") && finding.state == State::kMissing;
                     });
  return wrong ? kDamagedOrDifferent : kGood;
}

}  // namespace cairn::tools
