#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule.h"

namespace cairn::trainer {

/// The command line's flags; --help explains each.
struct Flags {
  std::string model = "vgg16";
  std::map<std::string, std::int64_t> sizes;
  /// If empty, the initial weights are random.
  std::string init_from;
  std::string data = "digits";
  std::int64_t sequence = 128;
  std::uint64_t steps = 100;
  std::uint64_t batch = 16;
  std::uint64_t accumulate = 1;
  std::string optimizer = "sgd";
  std::string precision = "fp32";
  std::optional<double> learning_rate;
  Schedule schedule;
  double clip_norm = 0;
  std::uint64_t seed = 1;
  std::string device = "cpu";
  int threads = 0;
  /// How ranks communicate: "gloo" or "nccl"; if empty, gloo on CPUs and nccl on GPUs.
  std::string backend;
  std::uint64_t peer_timeout_seconds = 60;
  bool prove_backend = false;

  /// If empty, nothing is saved.
  std::string checkpoint_dir;
  /// If empty, no save is kept in memory first.
  std::string memory_root;
  std::uint64_t disk_every = 0;
  std::uint64_t every = 10;
  bool resume = false;
  int in_flight = 2;
  std::uint64_t host_memory_bytes = std::uint64_t{1} << 30;
  std::uint64_t keep = 3;
  double grace_seconds = 30;
  /// If empty, there is no mirror.
  std::string mirror;
  std::uint64_t mirror_every = 1;
  std::uint64_t mirror_keep = 0;
  std::string restore_from;

  /// If empty, no report is written.
  std::string report;
};

/// The flags that decide what is trained and when it is saved, as text: "--seed" -> "1". All ranks of a job must have
/// the same.
std::vector<std::pair<std::string, std::string>> SharedFlags(const Flags& flags);

/// Parses the command line. Returns an exit status if the program should end (help, invalid flags); the reason has been
/// printed.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

}  // namespace cairn::trainer
