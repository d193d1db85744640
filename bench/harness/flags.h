#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/harness/shapes.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The flags of bench_training; after ParseFlags with the model's shape and `scale` applied and defaults filled in.
struct Flags {
  std::string strategy;
  std::string directory;
  std::string memory = "/dev/shm";            ///< On tmpfs, for cairn-memory.
  std::string device = "auto";                ///< Or "cuda", "emulated".
  std::string compute = "paced";              ///< Or "products", "trainer".
  std::string model = "custom";               ///< One known by name, which sets the state; or the trainer's.
  std::map<std::string, std::int64_t> sizes;  ///< The trainer's model's.
  std::uint64_t batch = 4;
  std::int64_t sequence = 64;
  std::string disk = "machine";  ///< Or "pd-ssd".
  std::uint64_t state_bytes = 1U << 30;
  std::uint64_t tensors = 597;
  std::vector<NamedBytes> state;  ///< Of a model known by name, scaled. Otherwise the tensors are equal.
  std::string pace = "as given";  ///< Where the iteration time comes from.
  double iteration_seconds = 0;   ///< 0 was given: the model's published pace, or half a second of a custom one.
  std::uint64_t every = 4;
  std::uint64_t again = 0;
  std::uint64_t iterations = 40;
  std::uint64_t warmup = 0;  ///< Of the iterations; they are not counted.
  int in_flight = 2;
  std::uint64_t host_memory_bytes = 0;  ///< 0 was given: twice the state.
  std::uint64_t chunk_bytes = 0;        ///< 0: each strategy's own.
  int writers = 1;
  int queue_depth = 8;
  double scale = 1;
  double dilation = 1;  ///< Applied to the times and rates below and above.
  double pcie_bytes_per_second = 25e9;
  std::uint64_t disk_bytes_per_second = 0;
  std::string network = "namespaces";  ///< Or "loopback".
  std::uint64_t network_bytes_per_second = 1'875'000'000;
  std::string csv;
  std::string journal;
  bool resume = false;
  bool check = false;
  double update_seconds = 0;  ///< 0: measured.
};

/// InvalidArgument, naming the flag, for values that no run can have. Ends the process for --help and unknown flags, as
/// CLI11 does.
[[nodiscard]] Result<Flags> ParseFlags(int argc, char** argv);
/// The part of it that takes values: checks, scales, fills in.
[[nodiscard]] Result<Flags> Resolve(Flags flags);

}  // namespace cairn::bench
