// One run of a paced training with one checkpointing strategy: a row of CSV that says what the checkpoints cost.
//
//   build/release/bin/bench_training --strategy none|sync|checkfreq|gpm|pccheck|cairn --dir DIR [--state-bytes N]
//       [--tensors N] [--iteration-seconds T] [--every N] [--iterations N] [--in-flight N] [--host-memory-bytes N]
//       [--scale F] [--pcie-bytes-per-second R] [--disk-bytes-per-second R] [--csv FILE]
//
// Peers: torch.save with fsync (sync), CheckFreq (FAST 2021), GPM (ASPLOS 2022) and PCcheck (ASPLOS 2025), each a file
// beside this one that says how it is set up, and no checkpoint at all (none). To compare them, one after the other:
//
//   for s in none sync checkfreq gpm pccheck cairn; do
//     build/release/bin/bench_training --strategy $s --dir /mnt/nvme --csv runs.csv
//   done
//
// What is emulated, and what is not:
//   GPU    its memory is the host's. Every copy to the host, of whichever strategy, passes two copy streams that share
//          a link of --pcie-bytes-per-second. The row has the rate that the link then had (copy_bytes_per_second):
//          where it is below what was asked for, the CPU copies no faster. A copy costs CPU time that a GPU's would
//          not.
//   time   forward and backward wait for a deadline. The optimizer step rewrites a word in each 512 bytes of the state;
//          it is given twice the time that this takes on an idle machine (update_seconds), and what it took beyond that
//          is in the row (update_late_s).
//   disk   real files and real fsyncs, always. With --disk-bytes-per-second nothing is said to be on the disk before a
//          disk of that rate would have it, whoever writes; the machine's own must be faster.
//
// Each run makes a directory of its own and removes it. At the end the strategy is opened anew, as a restart would, the
// page cache of its files dropped, and its newest checkpoint restored: it has to be the last one that was saved, and
// equal to the state of that step in every byte. Exit: 0; 1 where it is not, and nothing is printed; 2 for bad input,
// too little disk or memory, or a failure.
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "bench/strategies/accounting.h"
#include "bench/strategies/csv_row.h"
#include "bench/strategies/flags.h"
#include "bench/strategies/host_memory.h"
#include "bench/strategies/resources.h"
#include "bench/strategies/restore_check.h"
#include "bench/strategies/strategy.h"
#include "bench/strategies/training_loop.h"

namespace cairn::bench {
namespace {

/// A directory of the run's own, removed with all it holds.
class RunDirectory {
 public:
  static Result<std::unique_ptr<RunDirectory>> Make(const std::string& parent) {
    std::string path = parent + "/bench-training-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "making a directory in " + parent);
    return std::make_unique<RunDirectory>(std::move(path));
  }
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  ~RunDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Bytes per second of one copy of the whole state, buffer by buffer.
Result<double> MeasureCopies(const TrainingState& state, EmulatedGpu& gpu) {
  const std::uint64_t bytes = std::min<std::uint64_t>(state.bytes(), 64U << 20);
  CAIRN_ASSIGN_OR_RETURN(const auto pool, MakeHostMemory(bytes, bytes));
  const BufferPool::Chunk buffer = pool->TryAcquire(BufferPool::Priority::kSave);
  const LoopClock clock = RealClock();
  for (std::uint64_t at = 0; at < state.bytes(); at += bytes) {
    const std::uint64_t n = std::min(bytes, state.bytes() - at);
    CAIRN_RETURN_IF_ERROR(gpu.CopyToHost(state.memory().subspan(at, n), {buffer.data(), n}));
  }
  return static_cast<double>(state.bytes()) / clock.now();
}

// The time that the optimizer step is given.
Result<double> MeasureUpdate(TrainingState& state, double iteration_seconds) {
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < 3; ++i) {
    const LoopClock clock = RealClock();
    state.Update(0);
    least = std::min(least, clock.now());
  }
  const double given = 2 * least;
  if (given <= iteration_seconds / 2) return given;
  return Error(StatusCode::kInvalidArgument,
               "--iteration-seconds {}: rewriting {} bytes takes {:.4f} s of it; expected at least {:.4f}",
               iteration_seconds, state.bytes(), least, 2 * given);
}

struct Run {
  Flags flags;
  StrategyKind kind;
  double copy_rate = 0;
  LoopSettings loop;
  LoopRecord record;
  Usage used;
  std::uint64_t restored = 0;
};

CsvRow MakeRow(const Run& run) {
  const Flags& flags = run.flags;
  const Accounts accounts = Account(run.record, run.loop);
  std::string each;
  for (const double seconds : accounts.to_durable) {
    each += (each.empty() ? "" : ";") + (seconds < 0 ? "overtaken" : fmt::format("{:.4f}", seconds));
  }
  CsvRow row;
  row.Add("strategy", run.kind.name);
  row.Add("state_bytes", flags.state_bytes);
  row.Add("tensors", flags.tensors);
  row.Add("iteration_seconds", flags.iteration_seconds);
  row.Add("every", flags.every);
  row.Add("iterations", flags.iterations);
  row.Add("in_flight", flags.in_flight);
  row.Add("host_memory_bytes", flags.host_memory_bytes);
  row.Add("scale", flags.scale);
  row.Add("pcie_bytes_per_second", flags.pcie_bytes_per_second);
  row.Add("disk_bytes_per_second", flags.disk_bytes_per_second);
  row.Add(
      "emulated",
      fmt::format("GPU (host memory; all copies by 2 streams on one link of {}), forward and backward (a deadline){}",
                  flags.pcie_bytes_per_second > 0 ? "pcie_bytes_per_second" : "no set rate",
                  flags.disk_bytes_per_second > 0 ? ", disk rate (real writes, held back)" : ""));
  row.Add("tuning", run.kind.tuning);
  row.Add("copy_bytes_per_second", fmt::format("{:.4g}", run.copy_rate));
  row.AddSeconds("update_seconds", run.loop.update_seconds);
  row.AddSeconds("iterations_per_second", accounts.iterations_per_second);
  row.AddSeconds("slowdown", accounts.slowdown);
  row.AddSeconds("stall_p50_s", accounts.stall_p50);
  row.AddSeconds("stall_p99_s", accounts.stall_p99);
  row.AddSeconds("stall_max_s", accounts.stall_max);
  row.AddSeconds("stall_total_s", accounts.stall_total);
  row.AddSeconds("update_late_s", run.record.update_late);
  row.Add("saves", run.record.saves.size());
  row.Add("durable", accounts.durable);
  row.AddSeconds("first_to_durable_s", accounts.first_to_durable);
  row.AddSeconds("to_durable_p50_s", accounts.to_durable_p50);
  row.AddSeconds("to_durable_max_s", accounts.to_durable_max);
  row.AddSeconds("age_max_s", accounts.age_max);
  row.AddSeconds("drain_s", accounts.drain);
  row.Add("bytes_written", run.used.bytes_written);
  row.Add("peak_rss_bytes", run.used.peak_rss);
  row.AddSeconds("cpu_s", run.used.cpu_seconds);
  row.Add("restored_step", run.record.saves.empty() ? "none" : std::to_string(run.restored));
  row.Add("to_durable_each_s", each);
  return row;
}

Status Print(const CsvRow& row, const std::string& csv) {
  std::cout << row.names() << '\n' << row.values() << '\n';
  if (csv.empty()) return {};
  std::error_code ignored;
  const bool fresh = !std::filesystem::exists(csv, ignored) || std::filesystem::file_size(csv, ignored) == 0;
  std::ofstream file(csv, std::ios::app);
  if (fresh) file << row.names() << '\n';
  file << row.values() << '\n';
  file.close();
  return file.good() ? Status::Ok() : Error(StatusCode::kIoError, "could not write {}", csv);
}

Status CheckRoom(const Flags& flags, const StrategyKind& kind) {
  CAIRN_ASSIGN_OR_RETURN(const Resources free, FreeResources(flags.directory));
  const auto copies = static_cast<std::uint64_t>(kind.checkpoints_on_disk(flags.in_flight));
  return CheckFits({.disk_bytes = copies * flags.state_bytes,
                    .memory_bytes = flags.state_bytes + kind.host_bytes(flags.state_bytes, flags.host_memory_bytes)},
                   free, flags.state_bytes, flags.scale);
}

// The loop from here on: what is not measured has been done.
Status Measure(Run& run, TrainingState& state, EmulatedGpu& gpu, Workplace& workplace) {
  LoopClock clock = RealClock();
  SaveLog log;
  workplace.durable = [&](std::uint64_t step) { log.Durable(step, clock.now()); };
  CAIRN_ASSIGN_OR_RETURN(const auto strategy, run.kind.open(workplace));
  CAIRN_ASSIGN_OR_RETURN(run.copy_rate, MeasureCopies(state, gpu));
  ResetPeak();
  const Usage before = UsageSoFar();
  clock = RealClock();
  CAIRN_ASSIGN_OR_RETURN(run.record, RunLoop(run.loop, clock, state, *strategy, log));
  run.used = UsageSoFar();
  run.used.bytes_written -= before.bytes_written;
  run.used.cpu_seconds -= before.cpu_seconds;
  return {};
}

Result<Run> Train(int argc, char** argv) {
  Run run;
  CAIRN_ASSIGN_OR_RETURN(run.flags, ParseFlags(argc, argv));
  const Flags& flags = run.flags;
  CAIRN_ASSIGN_OR_RETURN(run.kind, FindStrategy(flags.strategy));
  CAIRN_RETURN_IF_ERROR(CheckRoom(flags, run.kind));
  CAIRN_ASSIGN_OR_RETURN(const auto directory, RunDirectory::Make(flags.directory));
  CAIRN_ASSIGN_OR_RETURN(const auto state, TrainingState::Make(flags.state_bytes, flags.tensors));
  EmulatedGpu gpu(flags.pcie_bytes_per_second);
  CAIRN_ASSIGN_OR_RETURN(const double update, MeasureUpdate(*state, flags.iteration_seconds));
  run.loop = {.iteration_seconds = flags.iteration_seconds,
              .update_seconds = update,
              .every = run.kind.checkpoints_on_disk(1) == 0 ? 0 : flags.every,
              .iterations = flags.iterations};
  Workplace workplace{.directory = directory->path(),
                      .state = *state,
                      .gpu = gpu,
                      .in_flight = flags.in_flight,
                      .host_memory_bytes = flags.host_memory_bytes,
                      .disk = nullptr,
                      .durable = {}};
  if (flags.disk_bytes_per_second > 0) workplace.disk = RateLimitedDisk::Make(flags.disk_bytes_per_second);
  CAIRN_RETURN_IF_ERROR(Measure(run, *state, gpu, workplace));

  workplace.disk = nullptr;
  workplace.durable = [](std::uint64_t) {};
  if (!run.record.saves.empty()) {
    run.restored = run.record.saves.back().step;
    CAIRN_RETURN_IF_ERROR(CheckRestored(run.kind, workplace, run.restored));
  }
  return run;
}

int Main(int argc, char** argv) {
  const Result<Run> run = Train(argc, argv);
  const Status status = run.ok() ? Print(MakeRow(*run), run->flags.csv) : run.status();
  if (status.ok()) return 0;
  std::cerr << "bench_training: " << status << '\n';
  return status.code() == StatusCode::kCorrupt ? 1 : 2;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
