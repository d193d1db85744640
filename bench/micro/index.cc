// The index of a checkpoint of 1,024 ranks with 1,000 tensors each: either every tensor is cut evenly over all ranks,
// or all names differ.
//
//   build/release/bin/bench_micro --benchmark_filter=index
//
// Peers: for building from the ranks' runs, std::sort of the same entries by name and shard, without input or output;
// for finding a tensor in the file's bytes, decoding one shard's header, where a reader without an index must decode
// all. `bytes` is the index's size.
#include "format/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"

namespace cairn::bench {
namespace {

struct Sizes {
  std::size_t ranks;
  std::size_t tensors;
};

// The rank's part of the tensor, or a tensor with a unique name.
ShardHeader RankHeader(Sizes sizes, std::size_t rank, bool even) {
  ShardHeader header = HeaderOf(sizes.tensors);
  header.shard = rank;
  for (ShardTensor& tensor : header.tensors) {
    if (even) {
      const std::int64_t rows = tensor.shape[0];
      const auto ranks = static_cast<std::int64_t>(sizes.ranks);
      tensor.part =
          TensorPart{tensor.name, {rows * ranks, tensor.shape[1]}, {rows * static_cast<std::int64_t>(rank), 0}};
    } else {
      tensor.name += fmt::format(".rank{}", rank);
    }
  }
  return header;
}

struct Ranks {
  Ranks(Sizes sizes, bool even) {
    for (std::size_t rank = 0; rank < sizes.ranks; ++rank) {
      const ShardHeader header = RankHeader(sizes, rank, even);
      runs.push_back(EncodeIndexRun(header));
      for (const ShardTensor& tensor : header.tensors) names.emplace_back(tensor.name, rank);
    }
  }
  std::vector<std::string> runs;
  std::vector<std::pair<std::string, std::size_t>> names;
};

BuiltIndex Build(const std::vector<std::string>& runs) {
  auto built = BuildIndex(runs);
  Expect(built.has_value(), "index: not built");
  return *std::move(built);
}

IndexHead HeadOf(const BuiltIndex& built, std::size_t shards) {
  const Bytes file = std::as_bytes(std::span(built.bytes));
  Result<IndexHead> head = IndexHead::Decode(
      file.last(built.head_bytes), {.length = file.size(), .head = built.head_bytes, .digest = built.head_digest},
      shards, "index.cairn");
  Check(head.status());
  return *std::move(head);
}

// The number of shards with pieces of this tensor.
std::size_t Find(const BuiltIndex& built, std::size_t shards, std::string_view wanted) {
  const IndexHead head = HeadOf(built, shards);
  std::size_t found = 0;
  const auto [first, last] = head.Find(wanted);
  for (std::size_t i = first; i < last; ++i) {
    const IndexHead::Block& block = head.blocks()[i];
    Check(ReadIndexBlock(std::as_bytes(std::span(built.bytes)).subspan(block.begin, block.length), block, shards,
                         "index.cairn", [&](std::string_view name, const IndexPieces& pieces) {
                           if (name == wanted) found += pieces.count;
                           return name <= wanted;
                         }));
  }
  return found;
}

Pair BuildBesideSort(Sizes sizes, bool even) {
  const auto ranks = std::make_shared<const Ranks>(sizes, even);
  const auto size = static_cast<double>(Build(ranks->runs).bytes.size());
  return {.cairn = Timed([ranks] { benchmark::DoNotOptimize(Build(ranks->runs)); }),
          .peer =
              [ranks] {
                std::vector<std::pair<std::string_view, std::size_t>> entries(ranks->names.begin(), ranks->names.end());
                return Timed([&entries] {
                  std::sort(entries.begin(), entries.end());
                  benchmark::DoNotOptimize(entries.data());
                })();
              },
          .more = [size](benchmark::UserCounters& counters) { counters["bytes"] = size; }};
}

Pair FindBesideHeader(Sizes sizes, bool even) {
  const Ranks ranks(sizes, even);
  const auto built = std::make_shared<const BuiltIndex>(Build(ranks.runs));
  const std::string name = ranks.names[ranks.names.size() / 2].first;
  const std::size_t shards = sizes.ranks;
  Expect(Find(*built, shards, name) == (even ? shards : 1), "index: pieces are missing");

  auto writer = ShardHeaderWriter::Make(RankHeader(sizes, 0, even));
  Check(writer.status());
  const auto header = std::make_shared<const std::string>(writer->bytes());
  const std::uint64_t file_bytes = header->size() + RankHeader(sizes, 0, even).data_bytes();
  return {.cairn = Timed([built, shards, name] { benchmark::DoNotOptimize(Find(*built, shards, name)); }),
          .peer = Timed([header, file_bytes] {
            benchmark::DoNotOptimize(
                DecodeShardHeader(std::as_bytes(std::span(*header)), file_bytes, "shard-00000.safetensors"));
          })};
}

}  // namespace

void AddIndex(const Settings& settings) {
  const Sizes sizes{.ranks = settings.Sized(1024, 4), .tensors = settings.Sized(1000, 10)};
  const std::string sort = "std::sort of the entries";
  AddPair(settings, "index/build_even_of_sort", sort, 1.5, 5, [sizes] { return BuildBesideSort(sizes, true); });
  AddPair(settings, "index/build_different_of_sort", sort, 1, 5, [sizes] { return BuildBesideSort(sizes, false); });
  const std::string header = "one shard's header decoded";
  AddPair(settings, "index/find_even_of_header", header, 1, 20, [sizes] { return FindBesideHeader(sizes, true); });
  AddPair(settings, "index/find_different_of_header", header, 1, 20,
          [sizes] { return FindBesideHeader(sizes, false); });
}

}  // namespace cairn::bench
