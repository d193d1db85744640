// Regenerates the committed corpus from checkpoints that the engine saves: fuzz_seeds tests/fuzz/corpus
//
// Attempt ids are random, so the files differ each time.

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>
#include <span>

#include "api/wiring.h"
#include "cairn/checkpointer.h"
#include "format/index.h"
#include "support/all_ranks.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSeparator = "%%\n";
constexpr std::size_t kDigestBytes = 25;

void Check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Saves checkpoints into a root and cuts them into seeds.
class Seeds {
 public:
  explicit Seeds(fs::path corpus) : corpus_(std::move(corpus)) {
    for (const char* target : {"manifest", "shard_header", "index", "restore"})
      fs::create_directories(corpus_ / target);
  }

  using Fill = std::function<void(State& state, int rank, SaveOptions& options)>;
  /// `plans`, by name: plans for the restore target.
  void Save(const std::string& name, int world, const Fill& fill, const std::map<std::string, std::string>& plans,
            bool checksums = true, bool second = false) {
    const TempDir root;
    std::vector<std::unique_ptr<Checkpointer>> ranks;
    for (const auto& group : MakeLocalGroup(world)) {
      Options options{.root = root.path(),
                      .group = group,
                      .host_memory_bytes = 8U << 20,
                      .chunk_bytes = 1U << 20,
                      .queue_depth = 8,
                      .worker_threads = 2};
      options.checksums = checksums;
      auto opened = Checkpointer::Open(options);
      Check(opened.status());
      ranks.push_back(*std::move(opened));
    }
    SaveStep(ranks, 1000, fill);
    if (second) {
      SaveStep(ranks, 1001, fill);
      OnAllRanks(world, [&](int rank) {
        Check(ranks[static_cast<std::size_t>(rank)]->Restore(Step(1000), State()).status());
      });
      SaveStep(ranks, 1002, fill);
    }
    for (const CheckpointInfo& info : *ranks[0]->List()) Cut(name, info, plans);
  }

  void Write(const std::string& target, const std::string& name, const std::string& bytes) const {
    std::ofstream(corpus_ / target / name, std::ios::binary) << bytes;
  }

 private:
  static void SaveStep(const std::vector<std::unique_ptr<Checkpointer>>& ranks, std::uint64_t step, const Fill& fill) {
    std::vector<SaveHandle> saves;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      State state;
      SaveOptions options;
      fill(state, static_cast<int>(rank), options);
      auto save = ranks[rank]->Save(step, state, options);
      Check(save.status());
      saves.push_back(*save);
    }
    for (const SaveHandle& save : saves) Check(save.WaitDurable());
  }

  void Cut(const std::string& name, const CheckpointInfo& info, const std::map<std::string, std::string>& plans) {
    const fs::path folder = info.path;
    const std::string manifest = ReadFile(folder / "manifest.json");
    Write("manifest", name + (info.parent ? "-child" : ""), manifest);
    if (info.parent) return;
    std::string sections = manifest.substr(0, manifest.size() - kDigestBytes);
    std::vector<std::string> runs;
    for (std::uint64_t rank = 0; rank < info.world; ++rank) {
      const std::string number = std::to_string(rank);
      const std::string shard = ReadFile(folder / ("shard-0000" + number + ".safetensors"));
      const std::string json = shard.substr(8, shard.find_last_of('}', shard.find("  ", 8)) - 7);
      Write("shard_header", name + "-" + number, json);
      sections += std::string(kSeparator) + json;
      runs.push_back(RunOf(shard));
    }
    for (const std::string& kept : KeptIn(folder)) {
      const std::string shard = ReadFile(folder / kept);
      const std::string json = shard.substr(8, shard.find_last_of('}', shard.find("  ", 8)) - 7);
      Write("shard_header", name + "-" + kept.substr(0, 10), json);
      sections += std::string(kSeparator) + json;
      runs.push_back(RunOf(shard));
    }
    WriteIndex(name, runs);
    for (const auto& [plan, bytes] : plans) {
      Write("restore", name + "-" + plan, bytes + std::string(kSeparator) + sections);
    }
  }

  static std::set<std::string> KeptIn(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("kept-")) names.insert(name);
    }
    return names;
  }

  static std::string RunOf(const std::string& shard) {
    const cairn::Bytes file = std::as_bytes(std::span(shard));
    const auto length = ShardHeaderLength(file.first(8), file.size(), "seed");
    Check(length.status());
    const auto header = DecodeShardHeader(file.first(*length), file.size(), "seed");
    Check(header.status());
    return EncodeIndexRun(*header);
  }

  // An index's parts: the ranks' runs, the blocks and the head.
  void WriteIndex(const std::string& name, const std::vector<std::string>& runs) const {
    const auto built = BuildIndex(runs);
    if (!built) throw std::runtime_error(name + ": no index");
    std::string sections;
    for (const std::string& run : runs) sections += (sections.empty() ? "" : std::string(kSeparator)) + run;
    Write("index", name + "-runs", sections);
    const std::size_t blocks = built->bytes.size() - built->head_bytes;
    Write("index", name + "-blocks", built->bytes.substr(0, blocks));
    Write("index", name + "-head", built->bytes.substr(blocks));
  }

  fs::path corpus_;
};

std::vector<char> memory(4U << 20, 'x');  // NOLINT: the bytes of all tensors; their contents do not matter.

void Add(State& state, const std::string& name, DType dtype, std::vector<std::int64_t> shape, std::size_t at = 0,
         std::optional<TensorPart> part = {}) {
  Check(state.Add(name,
                  {.data = memory.data() + at, .dtype = dtype, .shape = std::move(shape), .part = std::move(part)}));
}

std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text += static_cast<char>(byte);
  return text;
}

void FillOne(State& state, int /*rank*/, SaveOptions& /*options*/) {
  Add(state, "model.embed.weight", DType::kF32, {8, 6});
  Add(state, "model.head.weight", DType::kF32, {8, 6});  // Tied.
  Add(state, "model.norm", DType::kBF16, {7}, 4096);
  Add(state, "mask", DType::kBool, {3, 1, 2}, 8192);
  Add(state, "empty", DType::kF16, {0, 5});
  Add(state, "optimizer.step", DType::kI64, {}, 12288);
  Check(state.Set("epoch", std::int64_t{-3}));
  Check(state.Set("lr", 1e-4));
  Check(state.Set("name \"\n\x01 \xc3\xa9", std::string("text")));
  Check(state.Set("none", nullptr));
  Check(state.Set("resumed", true));
  Check(state.Set("tree", Json{R"({"a":[1,2.5,null]})"}));
}

// Each rank has rows of `rows`, columns of `columns` and all of `own`; one rank writes `shared`.
void FillParts(State& state, int rank, SaveOptions& options) {
  const std::int64_t n = rank;
  const auto at = static_cast<std::size_t>(rank) * 8192;
  Add(state, "rows", DType::kF32, {4, 5}, at, TensorPart{"rows", {12, 5}, {4 * n, 0}});
  Add(state, "columns." + std::to_string(rank), DType::kI32, {6, 2}, at + 4096,
      TensorPart{"columns", {6, 6}, {0, 2 * n}});
  Add(state, "own", DType::kU8, {3 + n}, at + 512);
  Add(state, "shared", DType::kF64, {4}, 1U << 20);
  options.replicated.tensors = {"shared"};
  Check(state.Set("rank", n));
}

void FillLarge(State& state, int rank, SaveOptions& /*options*/) {
  Add(state, "large", DType::kU16, {700, 1100}, 0, TensorPart{"large", {1400, 1100}, {700 * rank, 0}});
  Add(state, "small", DType::kC64, {2, 2, 2}, 3U << 20);
}

// Each rank has a kept file beside its shard.
void FillFrozen(State& state, int rank, SaveOptions& /*options*/) {
  const std::int64_t n = rank;
  Check(state.Add("base", {.data = memory.data(),
                           .dtype = DType::kF32,
                           .shape = {300, 1000},
                           .part = TensorPart{"base", {600, 1000}, {300 * n, 0}},
                           .frozen = true}));
  Add(state, "adapter", DType::kBF16, {4, 3}, 2U << 20);
  Check(state.Set("rank", n));
}

// The text of a value is in the data.
void FillLong(State& state, int /*rank*/, SaveOptions& /*options*/) {
  Add(state, "model.norm", DType::kBF16, {7});
  Check(state.Set("epoch", std::int64_t{1}));
  Check(state.Set("log", Json{'"' + std::string(memory.begin(), memory.begin() + (1U << 20)) + '"'}));
}

// Errors that need more than one change to a valid header.
void WriteHostileHeaders(const Seeds& seeds) {
  const auto write = [&](const std::string& name, const std::string& json) {
    seeds.Write("shard_header", "hostile-" + name, json);
  };
  const std::string a = R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]})";
  write("overlap", "{" + a + R"(,"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})");
  write("hole", "{" + a + R"(,"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})");
  write("twice", "{" + a + R"(,"\u0061":{"dtype":"U8","shape":[3],"data_offsets":[3,6]}})");
  write("overflow", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})");
  write("metadata-twice", R"({"__metadata__":{"a":"1"},)" + a + R"(,"__metadata__":{"b":"2"}})");
  write("surrogates", R"({"\ud83d\udc27":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},"\ud83d":1})");
  std::string ones;
  for (int i = 0; i < 1500; ++i) ones += "1,";
  write("long-shape", R"({"a":{"dtype":"F32","shape":[)" + ones + R"(7],"data_offsets":[0,9]}})");
  const std::string own = R"({"__metadata__":{"cairn.format_version":"1","cairn.step":"1","cairn.attempt":"a",)"
                          R"("cairn.shard":"0","cairn.parts":"{\"a\":{\"name\":\"w\",\"shape\":[)";
  write("long-part", own + ones + R"(7],\"offset\":[)" + ones + R"(7]}}"},"a":{"dtype":"F32","shape":[)" + ones +
                         R"(7],"data_offsets":[0,28]}})");
}

// Three blocks, one name in two of them, and pieces of the maximum extent.
void WriteLargeIndexes(const Seeds& seeds) {
  seeds.Write("index", "three-blocks-head",
              Bytes({1, 4, 3, 1, 'a', 128, 32, 1, 2, 3, 4, 1, 'b', 128, 128, 4, 1, 2, 3, 4, 1, 'b', 9, 1, 2, 3, 4}));
  const std::string most = std::string(8, '\xff') + '\x3f';  // 2^62 - 1
  seeds.Write("index", "far-block",
              Bytes({0, 1, 'a', 5, 0, 172, 2, 1, 1, 1, 0, 0, 2, 0, 1, 1, 'b', 3, 1, 2, 1, 0, 0}) + most + Bytes({0}));
}

void Make(const fs::path& corpus) {
  Seeds seeds(corpus);
  WriteLargeIndexes(seeds);
  WriteHostileHeaders(seeds);
  seeds.Save("one", 1, FillOne,
             {{"as-saved", Bytes({0})},
              {"tools", Bytes({32})},
              {"flipped", Bytes({1, 3, 1})},
              {"flipped-data", Bytes({1, 8, 16})},
              {"cut", Bytes({2, 0, 16})},
              {"strided", Bytes({0, 0, 0, 0, 0, 0, 8, 3, 1, 24, 1, 2, 32, 0, 3, 40, 2})},
              {"tied", Bytes({0, 0, 0, 0, 0, 3, 0, 0, 4, 64, 0})},
              {"wrong", Bytes({16, 0, 0, 0, 0, 0, 3, 7, 1, 4, 1, 2, 5, 0})}},
             true, true);
  seeds.Save("unchecked", 1, FillOne, {{"as-saved", Bytes({0})}, {"flipped-data", Bytes({1, 8, 16})}}, false);
  seeds.Save("parts", 3, FillParts,
             {{"as-saved", Bytes({0, 0, 0, 0, 2})},
              {"tools", Bytes({32, 0, 0, 0, 1})},
              {"whole", Bytes({0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 2, 9, 3, 3, 1, 0, 5, 33, 1})},
              {"cut", Bytes({0, 0, 0, 0, 0, 0, 2, 0, 1, 2, 5, 2, 10, 9, 3, 26, 18, 1, 34, 4, 2, 2, 36})},
              {"flipped", Bytes({1, 7, 16, 0, 1})}});
  seeds.Save("large", 2, FillLarge,
             {{"as-saved", Bytes({0, 0, 0, 0, 1})},
              {"whole", Bytes({0, 0, 0, 0, 0, 0, 1, 0})},
              {"cut", Bytes({32, 0, 0, 0, 0, 0, 2, 5, 0, 2, 4, 1, 10, 1})},
              {"flipped", Bytes({1, 1, 159, 36})}});
  seeds.Save("kept", 2, FillFrozen,
             {{"as-saved", Bytes({0, 0, 0, 0, 1})},
              {"tools", Bytes({32, 0, 0, 0, 1})},
              {"whole", Bytes({0, 0, 0, 0, 0, 2, 1, 0, 0, 2, 9})},
              {"flipped", Bytes({1, 2, 159, 36})}});
  seeds.Save("long", 1, FillLong, {{"as-saved", Bytes({0})}, {"tools", Bytes({32})}});
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  cairn::Make(argv[1]);
  return 0;
}
