// What it gains to pause a checkpoint's copies while a pipeline sends over the same link.
//
//   build/release/bin/bench_pauses --root DIR [--rounds N] [--iterations N] [--link R] [--message-bytes N]
//       [--state-bytes N] [--stages N] [--micro-batches N] [--forward MS] [--backward MS] [--copy-streams N]
//
// A 1F1B pipeline in one process, a thread and an emulated GPU for each stage, whose activations, gradients and
// checkpoint share the stage's link to the host. Each iteration saves, and fences before its update. In each round it
// runs --iterations iterations without saves ("none"), with saves and no pauses ("as-is"), with pauses while a stage
// sends ("gaps"), and with pauses unless a stage waits for a neighbour and sends nothing ("bubbles"). The order changes
// from round to round. Prints a line of JSON for each. At the end the last checkpoint is restored and compared. As
// PyTorch's Schedule1F1B does, a stage waits for its sends, but for those of the warm-up.
//
// What is emulated: the GPU (host memory, streams), the link's rate, and computing (a deadline). Run by scripts/bench
// pipeline, which says how the sizes are chosen.
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "bench/pauses/pipeline.h"

namespace cairn::bench {
namespace {

constexpr std::array<std::pair<const char*, Saving>, 4> kWays{
    {{"none", Saving::kNone}, {"as-is", Saving::kAsIs}, {"bubbles", Saving::kBubbles}, {"gaps", Saving::kGaps}}};

Status Measure(const PipelineModel& model, const std::string& root, int rounds, int iterations) {
  // After its first pause a checkpointer has fewer copies in flight.
  Pipeline never_paused(model, root + "/never-paused");
  Pipeline paused(model, root + "/paused");
  const auto pipeline_for = [&](Saving saving) -> Pipeline& {
    return saving == Saving::kNone || saving == Saving::kAsIs ? never_paused : paused;
  };
  CAIRN_RETURN_IF_ERROR(never_paused.Open());
  CAIRN_RETURN_IF_ERROR(paused.Open());
  // The first saves write new files and touch the pool.
  for (const auto& [name, saving] : kWays) CAIRN_RETURN_IF_ERROR(pipeline_for(saving).Run(saving, 1).status());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kWays.size(); ++i) {
      // Each way follows each other one equally often, in four rounds.
      const auto& [name, saving] = kWays.at((round % 2 == 0 ? i : kWays.size() - 1 - i));
      CAIRN_ASSIGN_OR_RETURN(const Pipeline::Segment segment, pipeline_for(saving).Run(saving, iterations));
      std::printf("{\"round\":%d,\"way\":\"%s\",\"seconds\":%.6f,\"fence\":%.6f}\n", round, name, segment.seconds,
                  segment.fence);
      std::fflush(stdout);
    }
  }
  CAIRN_RETURN_IF_ERROR(never_paused.CheckRestored());
  return paused.CheckRestored();
}

int Main(int argc, char** argv) {
  PipelineModel model{.message_bytes = 2U << 20, .state_bytes = 64U << 20};
  std::string root;
  int rounds = 15;
  int iterations = 2;
  long forward = model.forward.count();
  long backward = model.backward.count();
  CLI::App app("A pipeline whose activations and checkpoints share a link. Prints lines of JSON.");
  app.add_option("--root", root, "a directory for checkpoints")->required();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  app.add_option("--iterations", iterations, "of each way in a round")->check(CLI::PositiveNumber);
  app.add_option("--link", model.link, "bytes per second, of each stage")->check(CLI::PositiveNumber);
  app.add_option("--message-bytes", model.message_bytes, "activations of a micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--state-bytes", model.state_bytes, "of each stage")->check(CLI::Range(1U << 20, 1U << 30));
  app.add_option("--stages", model.stages)->check(CLI::Range(2, 16));
  app.add_option("--micro-batches", model.micro_batches)->check(CLI::PositiveNumber);
  app.add_option("--forward", forward, "milliseconds for a micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--backward", backward, "milliseconds for a micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--copy-streams", model.copy_streams)->check(CLI::Range(1, 8));
  CLI11_PARSE(app, argc, argv);
  RequestShortSlices();  // On a busy machine a stage wakes sooner.
  model.forward = std::chrono::milliseconds(forward);
  model.backward = std::chrono::milliseconds(backward);

  const Status status = Measure(model, root, rounds, iterations);
  if (status.ok()) return 0;
  std::cerr << "bench_pauses: " << status << '\n';
  return 1;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
