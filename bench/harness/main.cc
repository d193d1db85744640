// One run of a paced training with one checkpointing strategy; prints a CSV row of what the checkpoints cost.
//
//   build/release/bin/bench_training --strategy none|sync|torch-save|checkfreq|gpm|gemini|pccheck|cairn|cairn-memory
//       --dir DIR [--memory DIR] [--state-bytes N] [--tensors N] [--iteration-seconds T] [--every N] [--again N]
//       [--iterations N] [--warmup N]
//       [--in-flight N] [--host-memory-bytes N] [--chunk-bytes N] [--writers N] [--queue-depth N] [--check]
//       [--model NAME] [--scale F] [--dilation F] [--pcie-bytes-per-second R]
//       [--device auto|cuda|emulated]
//       [--disk machine|pd-ssd] [--disk-bytes-per-second R] [--network namespaces|loopback]
//       [--network-bytes-per-second R] [--compute paced|products|trainer] [--size NAME=N]... [--batch N] [--sequence N]
//       [--resume] [--journal FILE] [--csv FILE]
//
// Peers: a plain write with fsync (sync), torch::save with fsync (torch-save), the pipelines of CheckFreq (FAST 2021),
// GPM (ASPLOS 2022), Gemini (SOSP 2023) and PCcheck (ASPLOS 2025), each a file in bench/strategies that says how it is
// set up, and no checkpoint at all (none). To compare them, one after the other:
//
//   for s in none sync torch-save checkfreq gpm gemini pccheck cairn; do
//     build/release/bin/bench_training --strategy $s --dir /mnt/nvme --csv runs.csv
//   done
//
// What is emulated, and what is not:
//   GPU    with --device cuda (or auto, if there is one) it is real, and so is its link; what an optimizer step writes
//          comes from the host. Otherwise its memory is the host's, and every strategy's copies to the host pass two
//          copy streams that share a link of --pcie-bytes-per-second. The row has the rate that the link really had
//          (copy_bytes_per_second): if it is below what was asked for, the CPU copies no faster. A copy costs CPU time
//          that a GPU's would not. --dilation stretches all time, so that the link keeps a real GPU's ratio to the
//          iterations and to an emulated disk and network on a machine that copies more slowly.
//   time   forward and backward wait for a deadline. The optimizer step rewrites a word in each 512 bytes of the state
//          (16 KiB on CUDA); it is given twice the time that this takes on an idle machine (update_seconds), and what
//          it took beyond that is in the row (update_late_s). With --compute products forward and backward are matrix
//          products of libtorch, as many as take that time before the run: on the GPU with --device cuda (never run on
//          one), otherwise on the CPU. With --compute trainer neither is emulated: libtorch
//          trains --model (one of cairn_train's) by AdamW on synthetic data, on the same CPU that copies, checksums and
//          writes. Its iteration_seconds is the median of five iterations just before, without checkpoints; the state,
//          tensor by tensor, is the model's and the optimizer's. At the end it is compared with a copy made at the last
//          save.
//   disk   always real files and real fsyncs. With --disk-bytes-per-second no strategy's write completes before a disk
//          of that rate would have it; the machine's own must be faster. With --disk pd-ssd the kernel limits the
//          process's writes to 480 MB/s, divided by --dilation (emulation/disk_profile.h).
//   peer   only gemini writes to no disk: its checkpoints are in the memory of another process, behind a network of
//          --network-bytes-per-second between two network namespaces (emulation/network.h). Real bytes over real TCP,
//          at most at that rate; that process takes CPU time from this machine, which is not in cpu_s. For gemini,
//          durable means: whole in the peer's memory (durable_means).
//   cores  pccheck writes in a process of its own, which polls on one core, as its authors' does; what that process
//          uses is in the row.
//   memory cairn-memory keeps each save on tmpfs, in --memory, and the disk gets what it can take. Durable means: kept
//          there, which the death of the process does not lose, and that of the machine does.
//
// Each run makes a directory of its own and removes it. --resume works in --dir (and --memory) itself: it compares the
// newest checkpoint there with the state of its step, continues from it, and leaves everything there. At the end the
// page cache of the files is dropped, the strategy is opened anew, as after a restart, and its newest checkpoint is
// restored: it must be the last one that was saved, and equal to the state of that step in every byte. Exit: 0; 1 if it
// is not, and nothing is printed; 2 for bad input, too little disk or memory, or a failure; 77, with the reason, if
// --device cuda, --disk pd-ssd, gemini's network or libtorch (which gemini and torch-save need) is unavailable.
#include <fmt/ranges.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "base/status_macros.h"
#include "bench/harness/accounting.h"
#include "bench/harness/csv_row.h"
#include "bench/harness/run.h"

namespace cairn::bench {
namespace {

constexpr int kSkipped = 77;
constexpr const char* kTorchBinary = "bench_training_torch";

// The parts of the run that are emulated.
std::string Emulated(const Run& run) {
  const Flags& flags = run.flags;
  std::vector<std::string> parts;
  if (flags.device == "emulated") {
    parts.push_back(fmt::format("GPU (host memory; all copies by 2 streams on one link of {})",
                                flags.pcie_bytes_per_second > 0 ? "pcie_bytes_per_second" : "no set rate"));
  }
  if (run.timed == 0) {
    parts.emplace_back(flags.compute == "products" ? "forward and backward (matrix products)"
                                                   : "forward and backward (a deadline)");
  }
  if (flags.disk_bytes_per_second > 0) parts.emplace_back("disk rate (real writes, held back)");
  if (flags.disk == "pd-ssd") parts.emplace_back("disk rate (a cgroup's limit on this machine's)");
  if (run.kind.networked) {
    parts.emplace_back(flags.network == "namespaces" ? "network (two namespaces, a token bucket)"
                                                     : "network (loopback, no set rate)");
    parts.emplace_back("peer (a process here)");
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

CsvRow MakeRow(const Run& run) {
  const Flags& flags = run.flags;
  const Accounts accounts = Account(run.record, run.loop);
  std::string each;
  for (const double seconds : accounts.to_durable) {
    each += (each.empty() ? "" : ";") + (seconds < 0 ? "overtaken" : fmt::format("{:.4f}", seconds));
  }
  CsvRow row;
  row.Add("strategy", run.kind.name);
  row.Add("model", flags.model);
  row.Add("device", flags.device);
  row.Add("disk", flags.disk);
  row.Add("state_bytes", flags.state_bytes);
  row.Add("tensors", flags.tensors);
  row.Add("iteration_seconds", flags.iteration_seconds);
  row.Add("every", flags.every);
  row.Add("again", flags.again);
  row.Add("iterations", flags.iterations);
  row.Add("warmup", flags.warmup);
  row.Add("in_flight", flags.in_flight);
  row.Add("host_memory_bytes", flags.host_memory_bytes);
  row.Add("chunk_bytes", flags.chunk_bytes);
  row.Add("writers", flags.writers);
  row.Add("queue_depth", flags.queue_depth);
  row.Add("scale", flags.scale);
  row.Add("dilation", flags.dilation);
  row.Add("pcie_bytes_per_second", flags.device == "cuda" ? 0 : flags.pcie_bytes_per_second);
  row.Add("disk_bytes_per_second", flags.disk_bytes_per_second);
  row.Add("emulated", Emulated(run));
  row.Add("pace", run.timed > 0 ? fmt::format("trained; median of {} iterations before", run.timed) : flags.pace);
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
  row.Add("network_bytes_per_second", run.kind.networked ? flags.network_bytes_per_second : 0);
  row.Add("durable_means", run.kind.durable_means);
  row.Add("compute", flags.compute);
  return row;
}

// Two binaries are built of this file. Where the run needs libtorch, goes on in the one that has it, by exec.
// Unsupported where there is none.
Status EnterTorchBuild(const Flags& flags, char** argv) {
  const Result<StrategyKind> kind = FindStrategy(flags.strategy);
  const bool of_strategy = kind.ok() && kind->needs_torch;
  if (!of_strategy && flags.compute == "paced") return {};
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (self.filename() == kTorchBinary) return {};
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);  // It warns of names that gemini's network cannot resolve.
  ::execv((self.parent_path() / kTorchBinary).c_str(), argv);
  return Error(StatusCode::kUnsupported,
               "{} needs libtorch, which this build lacks: \"scripts/build release {}\" makes one that has it",
               of_strategy ? "--strategy " + flags.strategy : "--compute " + flags.compute, kTorchBinary);
}

Status TrainAndPrint(const Flags& flags) {
  CAIRN_ASSIGN_OR_RETURN(const Run run, Train(flags));
  return Print(MakeRow(run), flags.csv);
}

int Main(int argc, char** argv) {
  const Result<Flags> flags = ParseFlags(argc, argv);
  Status status = flags.status();
  if (status.ok()) status = EnterTorchBuild(*flags, argv);
  if (status.ok()) status = flags->check ? CheckRoom(*flags) : TrainAndPrint(*flags);
  if (status.ok()) return 0;
  const bool skipped = status.code() == StatusCode::kUnsupported;
  std::cerr << "bench_training: " << (skipped ? "skipped: " : "") << status << '\n';
  return skipped ? kSkipped : status.code() == StatusCode::kCorrupt ? 1 : 2;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
