#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "advice/profile_file.h"
#include "base/human.h"
#include "base/memory_limit.h"
#include "base/status_macros.h"
#include "store/space.h"
#include "tools/commands.h"
#include "tools/interruption.h"
#include "tools/machine.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tune/measure.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

struct TuneRequest {
  TuneInput input;
  MeasureOptions measure;
  // Bytes per second; 0: none.
  double copy_limit = 0;
  double write_limit = 0;
  // If a profile was given.
  std::optional<ProfileAdvice> advice;
};

// Less is no pool.
constexpr std::uint64_t kLeastPool = 1U << 20;

/// What the job does not need is the saves' budget, unless flags say otherwise.
Status ApplyProfile(const TuneOptions& options, TuneRequest& request) {
  if (options.profile.empty()) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(const ProfileFile file, ReadProfile(options.profile));
  request.advice = Advise(file.profile);
  if (!options.training_cores) request.input.training_cores = request.advice->training_cores;
  if (const auto memory = request.advice->host_memory_bytes; options.memory.empty() && memory) {
    if (*memory < kLeastPool) {
      return Error(StatusCode::kFailedPrecondition,
                   "{}: the job needs {} of {} of memory, which leaves {} for saves: --memory says what they may have",
                   options.profile, HumanBytes(FindKnee(file.profile).memory_bytes),
                   HumanBytes(file.profile.full.memory_bytes), HumanBytes(*memory));
    }
    request.input.memory_bytes = std::min(*memory, FindMemory().available);
  }
  request.measure.worker_threads = request.advice->worker_threads;
  return Status::Ok();
}

Result<TuneRequest> Parse(const TuneOptions& options) {
  TuneRequest request;
  TuneInput& input = request.input;
  CAIRN_ASSIGN_OR_RETURN(input.state_bytes, ParseSize("--state-bytes", options.state_bytes));
  CAIRN_ASSIGN_OR_RETURN(input.goal.iteration_seconds, ParseSeconds("--iteration-time", options.iteration_time));
  CAIRN_ASSIGN_OR_RETURN(input.goal.slowdown, ParseShare("--slowdown", options.slowdown));
  CAIRN_ASSIGN_OR_RETURN(input.goal.mtbf_seconds, ParseSeconds("--mtbf", options.mtbf));
  CAIRN_ASSIGN_OR_RETURN(input.goal.restart_seconds, ParseSeconds("--restart-time", options.restart_time));
  CAIRN_ASSIGN_OR_RETURN(input.update_seconds, ParseSeconds("--update-time", options.update_time));
  if (options.memory.empty()) {
    input.memory_bytes = FindMemory().available / 4;
  } else {
    CAIRN_ASSIGN_OR_RETURN(input.memory_bytes, ParseSize("--memory", options.memory));
  }
  const bool cuda = options.device == "cuda";
  input.training_cores =
      options.training_cores.value_or(cuda ? 0.0 : static_cast<double>(std::thread::hardware_concurrency()));
  const auto limit = [](const std::string& flag, const std::string& text, double& to) -> Status {
    if (text.empty()) return Status::Ok();
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseSize(flag, text));
    if (bytes == 0)
      return Error(StatusCode::kInvalidArgument, "{}: expected at least 1 byte per second, found 0", flag);
    to = static_cast<double>(bytes);
    return Status::Ok();
  };
  CAIRN_RETURN_IF_ERROR(limit("--copy-rate", options.copy_rate, request.copy_limit));
  CAIRN_RETURN_IF_ERROR(limit("--write-rate", options.write_rate, request.write_limit));
  CAIRN_ASSIGN_OR_RETURN(const std::chrono::nanoseconds time, ParseProbeTime(options.probe_time));
  request.measure = {.root = options.root,
                     .device = {cuda ? DeviceKind::kCuda : DeviceKind::kCpu, 0},
                     .disk = {.time = time, .stopped = CatchInterruptions()}};
  CAIRN_RETURN_IF_ERROR(ApplyProfile(options, request));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> free, FindFreeSpace(options.root));
  input.free_bytes = free.value_or(0);
  return request;
}

/// Rejects absurd input before measuring, with rates that suit any input.
Status CheckBefore(const TuneInput& input) {
  const Rates any{.copy = 1e9, .shapes = {{.chunk_bytes = 1U << 20, .queue_depth = 1, .write_rate = 1e9}}};
  return Choose(input, any).status();
}

Rates Limited(Rates rates, const TuneRequest& request) {
  if (request.copy_limit > 0) rates.copy = std::min(rates.copy, request.copy_limit);
  if (request.write_limit <= 0) return rates;
  double slow_share = 1;  // If even the slow disk reaches the limit, the limit evens out its variation.
  for (IoShape& shape : rates.shapes) {
    const double slow = shape.write_rate * rates.slow_share;
    shape.write_rate = std::min(shape.write_rate, request.write_limit);
    slow_share = std::min(slow_share, slow / shape.write_rate);
  }
  rates.slow_share = slow_share;
  return rates;
}

json ToJson(const TuneInput& input, const TuneChoice& choice, const Measured& measured, const Rates& rates,
            bool recycles) {
  const IntervalChoice& interval = choice.interval;
  json shapes = json::array();
  for (const IoShape& shape : rates.shapes) {
    shapes.push_back({{"chunk_bytes", shape.chunk_bytes},
                      {"queue_depth", shape.queue_depth},
                      {"write_bytes_per_second", shape.write_rate}});
  }
  return {{"input",
           {{"state_bytes", input.state_bytes},
            {"iteration_seconds", input.goal.iteration_seconds},
            {"update_seconds", input.update_seconds},
            {"slowdown", input.goal.slowdown},
            {"mtbf_seconds", input.goal.mtbf_seconds},
            {"restart_seconds", input.goal.restart_seconds},
            {"memory_bytes", input.memory_bytes},
            {"training_cores", input.training_cores},
            {"free_bytes", input.free_bytes}}},
          {"choice",
           {{"interval", interval.iterations},
            {"max_in_flight", choice.max_in_flight},
            {"host_memory_bytes", choice.pool_bytes},
            {"chunk_bytes", choice.shape.chunk_bytes},
            {"queue_depth", choice.shape.queue_depth},
            {"bound", BoundName(interval.bound)},
            {"why", choice.why}}},
          {"expected",
           {{"slowdown", interval.slowdown},
            {"stall_seconds", choice.cost.stall},
            {"captured_seconds", choice.captured_seconds},
            {"every_iteration_seconds", choice.every_iteration_seconds},
            {"beyond_pool_seconds", choice.beyond_pool_seconds},
            {"bytes_per_day", choice.bytes_per_day},
            {"write_seconds", choice.cost.write},
            {"write_slow_seconds", choice.cost.write_slow},
            {"period_seconds", interval.period_seconds},
            {"lost_seconds", interval.lost_seconds},
            {"goodput", interval.goodput}}},
          {"measured",
           {{"io_queue", measured.io_queue},
            {"io_queue_reason", measured.io_queue_reason},
            {"direct", measured.disk.direct},
            {"recycled", recycles},
            {"shapes", shapes},
            {"slow_share", rates.slow_share},
            {"copy_bytes_per_second", rates.copy},
            {"checksum_bytes_per_second", rates.checksum},
            {"begin_seconds", rates.begin_seconds},
            {"commit_seconds", rates.commit_seconds},
            {"cpu_seconds_per_byte", rates.cpu_seconds_per_byte}}}};
}

/// When a save of every iteration is written in time.
std::string ExplainEveryIteration(const TuneInput& input, const TuneChoice& choice, const Rates& rates) {
  const double taken = input.goal.iteration_seconds;
  const double needed = choice.every_iteration_seconds;
  const SlowestStage slowest = FindSlowestStage(rates, choice.shape.write_rate);
  return fmt::format(
      "from {} an iteration on, a save of each is written in time ({} at {} of {}, the commit, and a reserve for when "
      "the disk is slow); yours takes {}{}",
      HumanSeconds(needed), HumanBytes(input.state_bytes), HumanRate(slowest.bytes_per_second), slowest.name,
      HumanSeconds(taken), needed <= taken ? "" : fmt::format(", {:.3g} times too short", needed / taken));
}

/// What the pool's size costs.
std::string ExplainPool(const TuneInput& input, const TuneChoice& choice) {
  if (choice.beyond_pool_seconds <= 0) return "holds the state: no fence waits for the disk";
  const double hidden = input.goal.iteration_seconds - input.update_seconds;
  const double wait = choice.beyond_pool_seconds - hidden;
  return fmt::format("holds {} of {}; the disk takes the rest in {}: {}", HumanBytes(choice.pool_bytes),
                     HumanBytes(input.state_bytes), HumanSeconds(choice.beyond_pool_seconds),
                     wait > 0 ? fmt::format("each fence waits {} for it, after {} of forward and backward",
                                            HumanSeconds(wait), HumanSeconds(hidden))
                              : fmt::format("hidden by {} of forward and backward", HumanSeconds(hidden)));
}

void Print(const TuneInput& input, const TuneChoice& choice, const Measured& measured, const Rates& rates,
           bool recycles) {
  const IntervalChoice& interval = choice.interval;
  PrintTable({
      {"interval",
       fmt::format("every {}, {}", Count(interval.iterations, "iteration"), HumanSeconds(interval.period_seconds))},
      {"max_in_flight", fmt::to_string(choice.max_in_flight)},
      {"host_memory", HumanBytes(choice.pool_bytes)},
      {"chunk", HumanBytes(choice.shape.chunk_bytes)},
      {"queue_depth", fmt::to_string(choice.shape.queue_depth)},
      {"bound by", choice.why},
      {"", ""},
      {"slowdown", fmt::format("{:.3g} %; a save takes {} of training time", interval.slowdown * 100,
                               HumanSeconds(choice.cost.stall))},
      {"write time", fmt::format("{} to durable, captured after {}", HumanSeconds(choice.cost.write),
                                 HumanSeconds(choice.captured_seconds))},
      {"lost", fmt::format("{} per failure, including {} for the restart", HumanSeconds(interval.lost_seconds),
                           HumanSeconds(input.goal.restart_seconds))},
      {"goodput", fmt::format("{:.2f} % of a run without saves or failures", interval.goodput * 100)},
      {"", ""},
      {"every save", ExplainEveryIteration(input, choice, rates)},
      {"pool", ExplainPool(input, choice)},
      {"endurance", fmt::format("{:.3g} TB a day at this interval: compare with the drive's rated writes",
                                choice.bytes_per_day / 1e12)},
      {"", ""},
      {"copy", HumanRate(rates.copy)},
      {"write", fmt::format("{}, {} when slow; {}, {}, {} files", HumanRate(choice.shape.write_rate),
                            HumanRate(choice.shape.write_rate * rates.slow_share), measured.io_queue,
                            measured.disk.direct ? "O_DIRECT" : "buffered", recycles ? "recycled" : "fresh")},
      {"commit", HumanSeconds(rates.commit_seconds)},
      {"free space", fmt::format("for {}", Count(input.free_bytes / input.state_bytes, "checkpoint"))},
  });
}

void PrintAdvice(const ProfileAdvice& advice) {
  std::vector<std::vector<std::string>> rows{{"", ""}, {"worker_threads", fmt::to_string(advice.worker_threads)}};
  for (const std::string& why : advice.why) rows.push_back({rows.size() == 2 ? "profile" : "", why});
  PrintTable(rows);
}

}  // namespace

Result<int> Tune(const TuneOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TuneRequest request, Parse(options));
  CAIRN_RETURN_IF_ERROR(CheckBefore(request.input));
  CAIRN_ASSIGN_OR_RETURN(const Filesystem filesystem, TryFilesystem(options.root));
  const bool recycles = filesystem.leases.ok();
  CAIRN_ASSIGN_OR_RETURN(const Measured measured, Measure(request.measure));
  const Rates rates = Limited(measured.rates(recycles), request);
  CAIRN_ASSIGN_OR_RETURN(const TuneChoice choice, Choose(request.input, rates));
  if (options.json) {
    json out = ToJson(request.input, choice, measured, rates, recycles);
    if (request.advice) {
      out["choice"]["worker_threads"] = request.advice->worker_threads;
      out["input"]["profile"] = options.profile;
    }
    PrintJson(out);
    return kGood;
  }
  Print(request.input, choice, measured, rates, recycles);
  if (request.advice) PrintAdvice(*request.advice);
  return kGood;
}

}  // namespace cairn::tools
