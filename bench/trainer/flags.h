#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "schedule.h"

namespace cairn::trainer {

/// What the command line says; --help explains each.
struct Flags {
  std::string model = "vgg16";
  std::map<std::string, std::int64_t> sizes;
  std::string init_from;  ///< Empty: weights are drawn.
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

  std::string checkpoint_dir;  ///< Empty: nothing is saved.
  std::uint64_t every = 10;
  bool resume = false;
  int in_flight = 2;
  std::uint64_t host_memory_bytes = std::uint64_t{1} << 30;
  std::uint64_t keep = 3;
  double grace_seconds = 30;

  std::string report;  ///< Empty: none is written.
};

/// Parses the command line. Returns the exit status where there is nothing more to do (help, misuse), having said why.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

}  // namespace cairn::trainer
