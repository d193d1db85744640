#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/status.h"

namespace cairn::bench {

struct Settings {
  /// The folder for files.
  std::string dir;
  /// Runs each benchmark once at a small size, as a test only.
  bool tiny = false;

  [[nodiscard]] std::size_t Sized(std::size_t full, std::size_t small) const { return tiny ? small : full; }
};

/// Runs an operation once and returns its seconds, without the preparation.
using Side = std::function<double()>;

/// Cairn's operation and an equivalent one of a peer. Both check their result when the pair is made.
struct Pair {
  Side cairn;
  Side peer;
  /// Adds counters after all turns. May be empty.
  std::function<void(benchmark::UserCounters&)> more;
};

/// Registers a benchmark that runs both sides of the pair alternately, each first in half of the turns.
///
/// `make` is called for each repetition, untimed. The benchmark's time is Cairn's; its counters are the medians over
/// the turns of `cairn` and `peer`, in seconds, and of their `ratio` (less than 1: Cairn is faster), and `reach`, the
/// target ratio. Its label names the peer.
void AddPair(const Settings& settings, const std::string& name, const std::string& peer, double reach, int turns,
             std::function<Pair()> make);

/// Times `times` calls of `work` together.
template <typename Work>
[[nodiscard]] Side Timed(Work work, int times = 1) {
  return [work = std::move(work), times]() mutable {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
}

[[nodiscard]] double Median(std::vector<double> values);

/// Ends the process with exit code 2 if the condition is false.
void Check(const Status& status);
void Expect(bool condition, const std::string& what);

// The subjects, one file each.
void AddChecksum(const Settings& settings);
void AddHeader(const Settings& settings);
void AddManifest(const Settings& settings);
void AddIndex(const Settings& settings);
void AddLayouts(const Settings& settings);
void AddList(const Settings& settings);
void AddPool(const Settings& settings);
void AddPlanning(const Settings& settings);
void AddEngine(const Settings& settings);
void AddCommit(const Settings& settings);
void AddRanks(const Settings& settings);
void AddRestore(const Settings& settings);

}  // namespace cairn::bench
