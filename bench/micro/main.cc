// Small operations of Cairn's, each in turns with a peer that does the same work; scripts/bench micro drives it.
//
//   build/release/bin/bench_micro [--dir DIR] [--tiny] [--benchmark_filter=REGEX] [--benchmark_...]
//
// Each file beside this one is a subject, whose head names its peers. What is reported is Google Benchmark's, with the
// counters of AddPair.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "bench/micro/pair.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  cairn::bench::Settings settings{.dir = std::filesystem::temp_directory_path().string()};
  CLI::App app("Micro-benchmarks, each beside a peer");
  app.add_option("--dir", settings.dir, "where the commits' files go")->check(CLI::ExistingDirectory);
  app.add_flag("--tiny", settings.tiny, "each once, at a small size");
  CLI11_PARSE(app, argc, argv);

  cairn::bench::AddChecksum(settings);
  cairn::bench::AddHeader(settings);
  cairn::bench::AddManifest(settings);
  cairn::bench::AddIndex(settings);
  cairn::bench::AddList(settings);
  cairn::bench::AddPool(settings);
  cairn::bench::AddPlanning(settings);
  cairn::bench::AddEngine(settings);
  cairn::bench::AddCommit(settings);
  cairn::bench::AddRanks(settings);
  cairn::bench::AddRestore(settings);
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 2;
}
