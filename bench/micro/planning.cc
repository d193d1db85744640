// What a restore does between the headers and the first read, for 100,000 tensors in one shard: finds each wanted
// tensor among the saved ones, and cuts what is to be read into reads.
//
//   build/release/bin/bench_micro --benchmark_filter=planning
//
// Peer: a hash table of the saved names, in which each wanted one is looked up: the least that bringing two lists of
// names together takes. Comparing shapes, finding tensors that share memory and cutting the reads come on top.
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "restore/plan.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kReadBytes = 4U << 20;

// A shard, and a table that wants all of it in a model's order: layer by layer, the weights and then each moment.
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
  Expect(!reads.empty() && reads.back().end == wanted->header.data_bytes(), "planning: not all is read");
  return {.cairn = Timed([wanted] { benchmark::DoNotOptimize(wanted->Plan()); }),
          .peer = Timed([wanted] { Hash(*wanted); })};
}

}  // namespace

void AddPlanning(const Settings& settings) {
  const std::size_t tensors = settings.Sized(100'000, 100);
  AddPair(settings, "planning/restore_of_hash", "a hash table of the names, each looked up", 4, 10,
          [tensors] { return PlanBesideHash(tensors); });
}

}  // namespace cairn::bench
