#include "bench/pipeline/pipeline_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/status_macros.h"
#include "bench/pipeline/stage.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kLeastMemory = 64U << 20;  // Enough for cairn's chunks.

Result<PipelineFlags> ResolvePipeline(PipelineFlags flags) {
  const bool given = flags.run.host_memory_bytes != 0;
  const std::string network = flags.run.network;
  if (network != "namespaces" && network != "loopback" && network != "hosts") {
    return Error(StatusCode::kInvalidArgument, "--network: expected namespaces, loopback or hosts, found \"{}\"",
                 network);
  }
  if (network == "hosts" && flags.restarts != 0) {
    return Error(StatusCode::kInvalidArgument, "--restarts {}: expected 0 with --network hosts", flags.restarts);
  }
  if (network == "hosts") flags.run.network = "loopback";  // It has no set rate either.
  flags.run.state_bytes = BytesOf(OptStage(0, 1));
  CAIRN_ASSIGN_OR_RETURN(flags.run, Resolve(std::move(flags.run)));
  flags.run.network = network;
  if (flags.micro_batches < 1 || flags.micro_batches > 1024) {
    return Error(StatusCode::kInvalidArgument, "--micro-batches: expected 1 to 1024, found {}", flags.micro_batches);
  }
  flags.run.state_bytes = std::max(BytesOf(OptStage(0, flags.run.scale)), BytesOf(OptStage(1, flags.run.scale)));
  if (!given) flags.run.host_memory_bytes = std::max(2 * flags.run.state_bytes, kLeastMemory);
  flags.activation_bytes =
      static_cast<std::uint64_t>(std::ceil(static_cast<double>(kOptActivationBytes) * flags.run.scale));
  return flags;
}

void AddNodeOptions(CLI::App& app, NodeFlags& node) {
  app.add_option("--node-stage", node.stage)->group("");  // Not for users.
  app.add_option("--node-dir", node.directory)->group("");
  app.add_option("--node-link", node.link)->group("");
  app.add_option("--node-memory", node.memory)->group("");
  app.add_flag("--node-resume", node.resume)->group("");
}

}  // namespace

Result<PipelineFlags> ParsePipelineFlags(int argc, char** argv) {
  PipelineFlags flags;
  Flags& run = flags.run;
  run.device = "emulated";
  run.iteration_seconds = OptIterationSeconds();
  CLI::App app(
      "Two nodes train OPT-2.7B at a set pace, a pipeline stage on each, with one checkpointing strategy; reports what "
      "checkpoints cost that count only once both nodes have them");
  app.add_option("--strategy", run.strategy, "none, sync, checkfreq, gpm, gemini, pccheck or cairn")->required();
  app.add_option("--dir", run.directory, "where to write: the run makes a directory in it")->required();
  app.add_option("--every", run.every, "iterations between checkpoints")->capture_default_str();
  app.add_option("--iterations", run.iterations)->capture_default_str();
  app.add_option("--warmup", run.warmup, "first iterations, which are not counted")->capture_default_str();
  app.add_option("--micro-batches", flags.micro_batches, "of an iteration")->capture_default_str();
  app.add_option("--iteration-seconds", run.iteration_seconds, "time of an iteration without checkpoints and transfers")
      ->capture_default_str();
  app.add_option("--in-flight", run.in_flight, "checkpoints in flight: pccheck, cairn")->capture_default_str();
  app.add_option("--host-memory-bytes", run.host_memory_bytes,
                 "pinned memory of pccheck and cairn on each node; 0: twice the stage's state, at least 64 MiB")
      ->capture_default_str();
  app.add_option("--writers", run.writers, "threads per checkpoint: pccheck")->capture_default_str();
  app.add_option("--queue-depth", run.queue_depth, "writes in flight to the disk: cairn")->capture_default_str();
  app.add_option("--scale", run.scale, "factor of states, transfers and iteration time; keeps the ratios of the rates")
      ->capture_default_str();
  app.add_option("--dilation", run.dilation,
                 "factor of all time: iterations take that many times as long, and links, emulated disks and network "
                 "are that many times slower")
      ->capture_default_str();
  app.add_option("--pcie-bytes-per-second", run.pcie_bytes_per_second, "emulated link to each node's host; 0: no limit")
      ->capture_default_str();
  app.add_option("--disk-bytes-per-second", run.disk_bytes_per_second,
                 "emulated disk of each node; 0: the machine's own, which both share")
      ->capture_default_str();
  app.add_option(
         "--network", run.network,
         "between the nodes: namespaces (two, with a set rate; needs root), loopback, or hosts: torchrun starts this "
         "program on two hosts, and the network is what they have")
      ->capture_default_str();
  app.add_option("--network-bytes-per-second", run.network_bytes_per_second,
                 "each way; the default is 15 Gbit/s, what PCcheck's authors measured between two a2-highgpu-1g")
      ->capture_default_str();
  app.add_option("--restarts", flags.restarts, "how often both nodes start again after one was killed")
      ->capture_default_str();
  app.add_flag("--check", run.check, "only check whether there is enough disk and memory");
  app.add_option("--journal", run.journal, "each node appends its events to a file of this name and \".STAGE\"");
  app.add_option("--csv", run.csv, "a file to which the row is appended");
  AddNodeOptions(app, flags.node);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);  // NOLINT(concurrency-mt-unsafe): no other threads yet.
  }
  return ResolvePipeline(std::move(flags));
}

}  // namespace cairn::bench
