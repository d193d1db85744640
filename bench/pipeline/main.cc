// Two nodes train a pipeline of two stages with one checkpointing strategy; prints a CSV row of what the checkpoints
// cost. PCcheck's figure 8e (scripts/figures 8e).
//
//   build/release/bin/bench_pipeline --strategy none|sync|checkfreq|gpm|gemini|pccheck|cairn --dir DIR
//       [--every N] [--iterations N] [--warmup N] [--micro-batches N] [--iteration-seconds T] [--in-flight N]
//       [--host-memory-bytes N] [--writers N] [--queue-depth N] [--scale F] [--dilation F] [--pcie-bytes-per-second R]
//       [--disk-bytes-per-second R] [--network namespaces|loopback|hosts] [--network-bytes-per-second R] [--restarts N]
//       [--check] [--journal FILE] [--csv FILE]
//
// Each node is a process of this program, in a network namespace of its own, with an emulated GPU and, with
// --disk-bytes-per-second, an emulated disk of its own. Between the namespaces is a link of --network-bytes-per-second
// each way; activations, gradients, the messages that nodes agree by, and gemini's checkpoints share it. Peers, and
// what is emulated, are those of bench_training (bench/harness/main.cc), but:
//   model    OPT-2.7B as PCcheck's authors train it: fp32, AdamW, 16 of the 32 layers on each node, one micro-batch of
//            1,024 tokens, 2.458 s an iteration. --scale shrinks every tensor, the transfers and the iteration.
//   pipeline 1F1B; each forward and backward waits for as long as it takes, and the transfers come on top.
//   commit   a step counts once both nodes have it. Cairn's two ranks write one checkpoint in one directory, with one
//            commit. The others write one on each node, and agree on it (bench/strategies/nodes.h).
//   gemini   each node's checkpoints go to the memory of the other one, which is in this launcher's process: it
//            outlives the trainings. Its bytes go over plain sockets, not over gloo.
//
// With --network hosts each node is on a host of its own, and prints the row. IP is the first one's; on the second one
// --node-rank is 1:
//
//   torchrun --nnodes 2 --node-rank 0 --rdzv-endpoint IP:29400 --no-python build/release/bin/bench_pipeline
//       --network hosts --strategy cairn --dir /mnt/shared
//
// At the end both nodes restore the newest checkpoint as after a restart: it must be the last one that was saved, and
// equal to their states of that step in every byte. If a node is killed, the other one ends with an error; with
// --restarts both start again from the newest step that both have. Exit codes are bench_training's.
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGKILL
#include <sys/prctl.h>

#include <iostream>
#include <string>

#include "bench/pipeline/exit_code.h"
#include "bench/pipeline/hosts.h"
#include "bench/pipeline/launcher.h"
#include "bench/pipeline/node.h"

namespace cairn::bench {
namespace {

Status Run(const PipelineFlags& flags, int argc, char** argv) {
  if (flags.node.stage < 0) {
    if (flags.run.check) return CheckRoomForNodes(flags);
    return flags.run.network == "hosts" ? RunHost(flags) : Launch(flags, argc, argv);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A node dies with its launcher.
  return RunNode(flags);
}

int Main(int argc, char** argv) {
  const Result<PipelineFlags> flags = ParsePipelineFlags(argc, argv);
  const Status status = flags.ok() ? Run(*flags, argc, argv) : flags.status();
  if (status.ok()) return kExitOk;
  const int stage = flags.ok() ? flags->node.stage : -1;
  std::cerr << "bench_pipeline: " << (stage < 0 ? "" : "stage " + std::to_string(stage) + ": ")
            << (status.code() == StatusCode::kUnsupported ? "skipped: " : "") << status << '\n';
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
