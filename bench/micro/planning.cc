// A restore's work between the headers and the first read, for 100,000 tensors in one shard: finds each wanted tensor
// among the saved ones, and plans the reads. For one tensor in 100,000 parts that no single cut separates: checks that
// no two overlap.
//
//   build/release/bin/bench_micro --benchmark_filter=planning
//
// Peers: a hash table of the saved names with a lookup of each wanted one, the minimum for joining two lists of names;
// comparing shapes, finding tensors that share memory and planning the reads come on top. For the parts: a sort of
// their offsets in each dimension.
#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "restore/overlap.h"
#include "restore/plan.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kReadBytes = 4U << 20;

// A shard, and a table that wants all of it in the order of a model: layer by layer, the weights, then each moment.
struct Wanted {
  explicit Wanted(std::size_t tensors)
      : header(HeaderOf(tensors)),
        memory(std::make_unique_for_overwrite<float[]>(header.data_bytes() / sizeof(float))) {
    std::unordered_map<std::string_view, const ShardTensor*> saved;
    for (const ShardTensor& tensor : header.tensors) saved.emplace(tensor.name, &tensor);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      for (std::size_t i = kind; i < tensors; i += kKinds) {
        const ShardTensor& tensor = *saved.at(TensorName(i));
        float* data = memory.get() + tensor.begin / sizeof(float);
        Check(table.Add(tensor.name, {.data = data, .dtype = tensor.dtype, .shape = tensor.shape}));
        names.push_back(tensor.name);
      }
    }
  }

  [[nodiscard]] std::vector<PlannedRead> Plan() const {
    const SavedShard shard{.file = "shard-00000.safetensors", .header = &header};
    Result<MatchedTensors> matched = MatchTensors({&shard, 1}, /*rank=*/0, table, {});
    Check(matched.status());
    return PlanReads(0, header, matched->copies[0], kReadBytes);
  }

  const ShardHeader header;
  const std::unique_ptr<float[]> memory;  // Never touched.
  TensorTable table;
  std::vector<std::string_view> names;
};

void Hash(const Wanted& wanted) {
  std::unordered_map<std::string_view, const ShardTensor*> index;
  for (const ShardTensor& tensor : wanted.header.tensors) index.emplace(tensor.name, &tensor);
  for (const std::string_view name : wanted.names) benchmark::DoNotOptimize(index.find(name));
}

Pair PlanBesideHash(std::size_t tensors) {
  const auto wanted = std::make_shared<const Wanted>(tensors);
  const std::vector<PlannedRead> reads = wanted->Plan();
  Expect(!reads.empty() && reads.back().end == wanted->header.data_bytes(), "planning: some bytes are not read");
  return {.cairn = Timed([wanted] { benchmark::DoNotOptimize(wanted->Plan()); }),
          .peer = Timed([wanted] { Hash(*wanted); })};
}

// A staircase: along either dimension, parts begin before the previous ones end.
std::vector<SavedPiece> Staircase(std::int64_t parts) {
  std::vector<SavedPiece> pieces;
  for (std::int64_t i = 0; i < parts / 2; ++i) {
    pieces.push_back({.box = {{2 * i, 4 * i}, {parts, 4 * i + 2}}});
    pieces.push_back({.box = {{2 * i + 1, 4 * i + 2}, {2 * i + 2, 2 * parts}}});
  }
  return pieces;
}

Pair OverlapBesideSort(std::int64_t parts) {
  const auto pieces = std::make_shared<const std::vector<SavedPiece>>(Staircase(parts));
  Expect(!FindOverlap(*pieces), "planning: the parts overlap");
  const auto sort = [pieces] {
    for (std::size_t d = 0; d < 2; ++d) {
      std::vector<std::int64_t> begins;
      for (const SavedPiece& piece : *pieces) begins.push_back(piece.box.begin[d]);
      std::sort(begins.begin(), begins.end());
      benchmark::DoNotOptimize(begins.data());
    }
  };
  return {.cairn = Timed([pieces] { benchmark::DoNotOptimize(FindOverlap(*pieces)); }), .peer = Timed(sort)};
}

}  // namespace

void AddPlanning(const Settings& settings) {
  const std::size_t tensors = settings.Sized(100'000, 100);
  AddPair(settings, "planning/restore_of_hash", "a hash table of the names, each looked up", 4, 10,
          [tensors] { return PlanBesideHash(tensors); });
  const auto parts = static_cast<std::int64_t>(settings.Sized(100'000, 100));
  AddPair(settings, "planning/overlap_of_sort", "a sort of the parts' begins in each dimension", 150, 5,
          [parts] { return OverlapBesideSort(parts); });
}

}  // namespace cairn::bench
