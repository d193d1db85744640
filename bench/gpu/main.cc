// Copies, pinning and launches on GPU 0, beside what the driver gives to one large copy.
//
//   build/release/bin/bench_gpu link [--bytes N] [--milliseconds N] [--pairs N]
//   build/release/bin/bench_gpu sums [--milliseconds N] [--pairs N]
//   build/release/bin/bench_gpu pieces [--bytes N] [--repetitions N]
//   build/release/bin/bench_gpu launches --root DIR [--tensors N] [--tensor-bytes N] [--pool N] [--milliseconds N]
//     [--no-kernels]
//
// Each prints lines of JSON, which scripts/prove-gpu B judges. Exit status: 0, or 1 with the reason.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "bench/gpu/commands.h"

namespace cairn::bench {

void PrintLine(const nlohmann::json& line) {
  std::cout << line.dump() << std::endl;  // NOLINT(performance-avoid-endl): what was measured survives a crash.
}

namespace {

int Main(int argc, char** argv) {
  LinkOptions link;
  PiecesOptions pieces;
  LaunchesOptions launches;
  long milliseconds = 0;
  CLI::App app("Measures copies, pinning and launches on GPU 0. Prints lines of JSON.");
  app.require_subcommand(1);
  CLI::App* const linking = app.add_subcommand("link", "Lanes and chunks beside one large copy");
  linking->add_option("--bytes", link.bytes, "of the large copy");
  linking->add_option("--milliseconds", milliseconds, "for each rate")->check(CLI::PositiveNumber);
  linking->add_option("--pairs", link.pairs)->check(CLI::PositiveNumber);
  CLI::App* const summing = app.add_subcommand("sums", "Checksums by the GPU beside copies without");
  summing->add_option("--milliseconds", milliseconds, "for each rate")->check(CLI::PositiveNumber);
  summing->add_option("--pairs", link.pairs)->check(CLI::PositiveNumber);
  CLI::App* const cutting = app.add_subcommand("pieces", "Many small pieces");
  cutting->add_option("--bytes", pieces.bytes, "of all pieces together, at most");
  cutting->add_option("--repetitions", pieces.repetitions)->check(CLI::PositiveNumber);
  CLI::App* const launching = app.add_subcommand("launches", "Another thread's launches beside saves");
  launching->add_option("--root", launches.root, "a directory for checkpoints")->required();
  launching->add_option("--tensors", launches.tensors);
  launching->add_option("--tensor-bytes", launches.tensor_bytes);
  launching->add_option("--pool", launches.pool_bytes);
  launching->add_option("--milliseconds", milliseconds, "for each part")->check(CLI::PositiveNumber);
  launching->add_flag("--kernels,!--no-kernels", launches.kernels);
  CLI11_PARSE(app, argc, argv);

  if (milliseconds != 0) link.time = launches.time = std::chrono::milliseconds(milliseconds);
  const Status status = linking->parsed()   ? MeasureLink(link)
                        : summing->parsed() ? MeasureSums(link)
                        : cutting->parsed() ? MeasurePieces(pieces)
                                            : MeasureLaunches(launches);
  if (status.ok()) return 0;
  std::cerr << "bench_gpu: " << status << '\n';
  return 1;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
