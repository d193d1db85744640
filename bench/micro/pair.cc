#include "bench/micro/pair.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace cairn::bench {

void AddPair(const Settings& settings, const std::string& name, const std::string& peer, double reach, int turns,
             std::function<Pair()> make) {
  const auto run = [peer, reach, make = std::move(make)](benchmark::State& state) {
    const Pair pair = make();
    std::vector<double> cairns;
    std::vector<double> peers;
    std::vector<double> ratios;
    for (auto _ : state) {
      double cairn = 0;
      double other = 0;
      if (ratios.size() % 2 == 0) {
        cairn = pair.cairn();
        other = pair.peer();
      } else {
        other = pair.peer();
        cairn = pair.cairn();
      }
      state.SetIterationTime(cairn);
      cairns.push_back(cairn);
      peers.push_back(other);
      ratios.push_back(cairn / other);
    }
    state.SetLabel(peer);
    state.counters["cairn"] = Median(cairns);
    state.counters["peer"] = Median(peers);
    state.counters["ratio"] = Median(ratios);
    state.counters["reach"] = reach;
    if (pair.more) pair.more(state.counters);
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Iterations(settings.tiny ? 1 : turns)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

double Median(std::vector<double> values) {
  Expect(!values.empty(), "no values for a median");
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

void Check(const Status& status) { Expect(status.ok(), status.ok() ? "" : status.message()); }

void Expect(bool condition, const std::string& what) {
  if (condition) return;
  std::cerr << "bench_micro: " << what << '\n';
  std::exit(2);  // NOLINT(concurrency-mt-unsafe): a benchmark has failed.
}

}  // namespace cairn::bench
