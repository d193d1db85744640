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
  std::string dir;    ///< Where files are written.
  bool tiny = false;  ///< One turn of each at a small size: shows that they work, measures nothing.

  [[nodiscard]] std::size_t Sized(std::size_t full, std::size_t small) const { return tiny ? small : full; }
};

/// Does a piece of work once; returns the seconds that it took, what prepares it left out.
using Side = std::function<double()>;

/// Cairn's operation and a peer's that comes to the same. Both check what they got when they are made.
struct Pair {
  Side cairn;
  Side peer;
  std::function<void(benchmark::UserCounters&)> more;  ///< Further figures, once all turns are done. May be empty.
};

/// Registers a benchmark that lets both sides of the pair work in turns, each first as often as the other.
///
/// `make` is called anew for each repetition, untimed. The benchmark's time is Cairn's; its counters are the medians
/// over the turns of `cairn` and `peer`, in seconds, and of their `ratio` (less than 1: Cairn is faster), and `reach`,
/// the ratio that is asked for. Its label says who the peer is.
void AddPair(const Settings& settings, const std::string& name, const std::string& peer, double reach, int turns,
             std::function<Pair()> make);

/// `times` calls of `work`, together.
template <typename Work>
[[nodiscard]] Side Timed(Work work, int times = 1) {
  return [work = std::move(work), times]() mutable {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
}

[[nodiscard]] double Median(std::vector<double> values);

/// A benchmark that cannot go on ends the process with exit code 2.
void Check(const Status& status);
void Expect(bool condition, const std::string& what);

// The subjects, a file each.
void AddChecksum(const Settings& settings);
void AddHeader(const Settings& settings);
void AddManifest(const Settings& settings);
void AddIndex(const Settings& settings);
void AddList(const Settings& settings);
void AddPool(const Settings& settings);
void AddPlanning(const Settings& settings);
void AddEngine(const Settings& settings);
void AddCommit(const Settings& settings);
void AddRanks(const Settings& settings);
void AddRestore(const Settings& settings);

}  // namespace cairn::bench
