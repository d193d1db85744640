// What the engine repeats for each save: finds the previous save's share of replicated tensors, and chooses what
// retention removes.
//
//   build/release/bin/bench_micro --benchmark_filter=engine
//
// Peers: for the share of 100,000 replicated tensors, a comparison of their names with a copy; for a retirement with
// 300 checkpoints kept, a sort of their lines and steps.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "cairn/cairn.h"
#include "engine/ledger.h"
#include "engine/replicas.h"

namespace cairn::bench {
namespace {

struct Shared {
  explicit Shared(std::size_t tensors) : memory(tensors), copy(tensors) {
    for (std::size_t i = 0; i < tensors; ++i) {
      Check(state.Add(TensorName(i), {.data = &memory[i], .shape = {1}}));
      replicated.tensors.push_back(TensorName(i));
      copy[i] = TensorName(i);
    }
  }

  std::vector<float> memory;
  State state;
  Replicated replicated;
  ReplicaAssigner sharing{/*rank=*/0, /*world=*/8};
  std::vector<std::string> copy;
};

Pair ShareAgainBesideCompare(std::size_t tensors) {
  const auto shared = std::make_shared<Shared>(tensors);
  const auto again = [shared] { return shared->sharing.Of(shared->state.table(), shared->replicated); };
  const Result<ReplicaAssignment> first = again();
  Check(first.status());
  Expect(again()->table == first->table, "engine: the share was not reused");
  return {.cairn = Timed([again] { benchmark::DoNotOptimize(again()); }),
          .peer = Timed([shared] { benchmark::DoNotOptimize(shared->copy == shared->replicated.tensors); })};
}

Pair RetireBesideSort(std::uint64_t kept, int times) {
  std::vector<CheckpointInfo> committed;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;
  for (std::uint64_t step = 0; step <= kept; ++step) {
    CheckpointInfo& info = committed.emplace_back();
    info.step = step;
    info.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
    info.path = "/mnt/nvme/run7/step-" + std::to_string(step);
    steps.emplace_back(info.line, step);
  }
  const auto ledger = std::make_shared<Ledger>(std::move(committed), kept, /*keep_every=*/0);
  const auto retire = [ledger] {
    std::vector<std::uint64_t> retired = ledger->Retire();
    for (const std::uint64_t step : retired) ledger->CancelRetirement(step);
    return retired;
  };
  Expect(retire() == std::vector<std::uint64_t>{0}, "engine: retires the wrong checkpoint");
  const auto sort = [steps] {
    auto sorted = steps;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  };
  return {.cairn = Timed([retire] { benchmark::DoNotOptimize(retire()); }, times),
          .peer = Timed([sort] { benchmark::DoNotOptimize(sort()); }, times)};
}

}  // namespace

void AddEngine(const Settings& settings) {
  const std::size_t tensors = settings.Sized(100'000, 100);
  AddPair(settings, "engine/share_again_of_compare", "a comparison of the names with a copy", 1.5, 20,
          [tensors] { return ShareAgainBesideCompare(tensors); });
  const std::size_t kept = settings.Sized(300, 3);
  AddPair(settings, "engine/retire_of_sort", "a sort of lines and steps", 4, 100,
          [kept] { return RetireBesideSort(kept, 20); });
}

}  // namespace cairn::bench
