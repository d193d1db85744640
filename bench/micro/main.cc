// Small operations of Cairn, each measured alternately with a peer that does the same work. Run by scripts/bench micro.
//
//   build/release/bin/bench_micro [--dir DIR] [--tiny] [--benchmark_filter=REGEX] [--benchmark_...]
//
// Each file in this folder is a subject; its head comment names the peers. The output is Google Benchmark's, with the
// counters of AddPair.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "bench/micro/pair.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  cairn::bench::Settings settings{.dir = std::filesystem::temp_directory_path().string()};
  CLI::App app("Micro-benchmarks, each compared with a peer");
  app.add_option("--dir", settings.dir, "folder for the benchmarks' files")->check(CLI::ExistingDirectory);
  app.add_flag("--tiny", settings.tiny, "run each benchmark once, at a small size");
  CLI11_PARSE(app, argc, argv);

  cairn::bench::AddChecksum(settings);
  cairn::bench::AddHeader(settings);
  cairn::bench::AddManifest(settings);
  cairn::bench::AddIndex(settings);
  cairn::bench::AddList(settings);
  cairn::bench::AddLayouts(settings);
  cairn::bench::AddPool(settings);
  cairn::bench::AddPlanning(settings);
  cairn::bench::AddEngine(settings);
  cairn::bench::AddCommit(settings);
  cairn::bench::AddRanks(settings);
  cairn::bench::AddRestore(settings);
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 2;
}
