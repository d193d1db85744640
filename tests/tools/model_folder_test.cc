// Model folders of the real command, from checkpoints whose ranks hold parts.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "base/uuid.h"
#include "store/names.h"
#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Tensors = std::map<std::string, SavedTensor>;

/// Of a plain file, by name.
Tensors ReadPlainFile(const std::string& path) {
  const std::string bytes = ReadWholeFile(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const json header = json::parse(bytes.substr(8, length));
  EXPECT_EQ(header.at("__metadata__"), (json{{"format", "pt"}})) << path;
  Tensors tensors;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor["data_offsets"][0].get<std::size_t>();
    const auto end = tensor["data_offsets"][1].get<std::size_t>();
    tensors[name] = {.name = name,
                     .dtype = DTypeFromName(tensor["dtype"].get<std::string>()).value(),
                     .shape = tensor["shape"],
                     .bytes = bytes.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

/// A rank's part: its third of one dimension.
SavedTensor Third(const SavedTensor& whole, std::size_t along, int rank) {
  std::size_t outer = 1;
  std::size_t inner = DTypeSize(whole.dtype);
  for (std::size_t d = 0; d < whole.shape.size(); ++d) {
    if (d < along) outer *= static_cast<std::size_t>(whole.shape[d]);
    if (d > along) inner *= static_cast<std::size_t>(whole.shape[d]);
  }
  const std::int64_t extent = whole.shape[along];
  const std::int64_t begin = extent * rank / 3;
  const std::int64_t end = extent * (rank + 1) / 3;
  SavedTensor part{.name = whole.name, .dtype = whole.dtype, .shape = whole.shape};
  part.shape[along] = end - begin;
  part.part = TensorPart{whole.name, whole.shape, std::vector<std::int64_t>(whole.shape.size(), 0)};
  part.part->offset[along] = begin;
  for (std::size_t i = 0; i < outer; ++i) {
    const auto first = (i * static_cast<std::size_t>(extent) + static_cast<std::size_t>(begin)) * inner;
    part.bytes += whole.bytes.substr(first, static_cast<std::size_t>(end - begin) * inner);
  }
  return part;
}

class ModelFolderTest : public ::testing::Test {
 protected:
  ModelFolderTest() { std::filesystem::create_directory(root_); }

  std::string Write(std::uint64_t step, std::vector<SavedShardContent> shards, const std::string& config = "{}") {
    const std::string folder = WriteCheckpoint(root_, {.step = step, .shards = std::move(shards)});
    WriteWholeFile(folder + "/config.json", config);
    return folder;
  }
  [[nodiscard]] Ran Export(const std::string& path, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"export", path, "--model-folder", out_});
    return RunProgram(CAIRN_CLI, more);
  }
  [[nodiscard]] static std::vector<std::string> NamesIn(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  [[nodiscard]] std::vector<std::string> Written() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : ReadPlainFile(out_ + "/model.safetensors")) names.push_back(name);
    return names;
  }

  TempDir directory_;
  const std::string root_ = directory_ / "run";
  const std::string out_ = directory_ / "model";
};

TEST_F(ModelFolderTest, HasEachTensorWholeHoweverTheRanksHoldIt) {
  const SavedTensor embed = MakeTensor("model.embed.weight", DType::kF32, {97, 40}, 1);
  const SavedTensor layer = MakeTensor("model.layer.weight", DType::kBF16, {32, 61}, 2);
  const SavedTensor large = MakeTensor("model.large", DType::kF32, {2, 3, 2'000'000}, 3);
  const SavedTensor norm = MakeTensor("model.norm", DType::kF32, {40}, 4);
  const SavedTensor count = MakeTensor("model.count", DType::kI64, {}, 5);
  const SavedTensor empty = MakeTensor("model.empty", DType::kF32, {0, 4}, 6);
  std::vector<SavedShardContent> shards(3);
  for (int rank = 0; rank < 3; ++rank) {
    const SavedTensor moment = Third(MakeTensor("optimizer.moment", DType::kF32, {9}, 7), 0, rank);
    shards[rank].tensors = {Third(embed, 0, rank), Third(layer, 1, rank), Third(large, 2, rank), moment};
    shards[rank].values = {{"dcp", Json{R"({"version":1,"paths":{},"values":{},"pickled":[],"tied":[]})"}}};
  }
  shards[0].tensors.insert(shards[0].tensors.end(), {empty, MakeTensor("model.extra", DType::kU8, {9}, 8)});
  shards[1].tensors.insert(shards[1].tensors.end(), {norm, count});
  shards[2].tensors.push_back(norm);
  shards[1].values = {{"dcp", Json{R"({"version":1,"paths":{"model.norm":["model","norm"]},"values":{},)"
                                   R"("pickled":["model.extra"],"tied":[["model.lm_head.weight",[0,0],)"
                                   R"("model.embed.weight"]]})"}}};
  const std::string folder = Write(1000, std::move(shards));
  for (const char* name : {"tokenizer.json", "trainer_state.json", "notes.md"})
    WriteWholeFile(folder + "/" + name, "x");

  // When it is killed while it writes, and then run to its end.
  const std::string killed = "'" CAIRN_CLI "' export '" + root_ + "' --model-folder '" + out_ +
                             "' >/dev/null 2>&1 & until [ -e '" + directory_.path() +
                             "'/.model.*/model.safetensors ] || [ -e '" + out_ +
                             "' ] || ! kill -0 $!; do :; done; kill -9 $!; wait";
  WriteWholeFile(directory_ / "kill", killed);
  (void)RunProgram("/bin/bash", {directory_ / "kill"});
  if (std::filesystem::exists(out_)) std::filesystem::remove_all(out_);  // It was faster.
  std::vector<std::string> words{CAIRN_CLI, "export", root_, "--model-folder", out_, "--max-shard-size", "20KB"};
  std::string program = words.front();
  words.erase(words.begin());
#ifdef CAIRN_PYTHON
  const std::string measure =
      "import resource, subprocess, sys; code = subprocess.run(sys.argv[2:]).returncode; "
      "open(sys.argv[1], \"w\").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)); sys.exit(code)";
  words.insert(words.begin(), {"-S", "-c", measure, directory_ / "memory", program});
  program = CAIRN_PYTHON;
#endif
  const Ran ran = RunProgram(program, words);

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(NamesIn(directory_.path()), Not(Contains(StartsWith(".model."))));
  EXPECT_THAT(NamesIn(out_),
              ElementsAre("config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json", "tokenizer.json"));
  const json index = json::parse(ReadWholeFile(out_ + "/model.safetensors.index.json"));
  Tensors found;
  for (int file = 1; file <= 3; ++file) {
    const std::string name = fmt::format("model-0000{}-of-00003.safetensors", file);
    for (auto& [tensor, content] : ReadPlainFile(out_ + "/" + name)) {
      EXPECT_EQ(index["weight_map"][tensor], name) << tensor;
      found[tensor] = std::move(content);
    }
  }
  EXPECT_EQ(index["weight_map"].size(), found.size());
  Tensors expected;
  for (const SavedTensor& tensor : {embed, layer, large, norm, count, empty}) expected[tensor.name.substr(6)] = tensor;
  expected["lm_head.weight"] = embed;  // The config does not tie it.
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(found[name].dtype, tensor.dtype) << name;
    EXPECT_EQ(found[name].shape, tensor.shape) << name;
    EXPECT_TRUE(found[name].bytes == tensor.bytes) << name;
  }
#ifdef CAIRN_PYTHON
  const std::uint64_t shard = std::filesystem::file_size(folder + "/" + ShardName(0));
  EXPECT_LE(1024 * std::stoull(ReadWholeFile(directory_ / "memory")), shard + (64U << 20));
#endif
}

TEST_F(ModelFolderTest, LeavesOutOnlyAHeadThatTheConfigTiesAndThatIsEqual) {
  const SavedTensor embed = MakeTensor("embed.weight", DType::kF32, {6, 4}, 1);
  SavedTensor equal = embed;
  equal.name = "lm_head.weight";
  const SavedTensor other = MakeTensor("lm_head.weight", DType::kF32, {6, 4}, 2);
  const std::string ties = R"({"tie_word_embeddings": true})";
  auto exported = [&, step = std::uint64_t{0}](std::vector<SavedShardContent> shards,
                                               const std::string& config) mutable {
    const std::string folder = Write(++step, std::move(shards), config);
    std::filesystem::remove_all(out_);
    const Ran ran = Export(folder);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return std::pair(Written(), ran.err.find("lm_head.weight and embed.weight are tied by the model's config, but "
                                             "differ") != std::string::npos);
  };
  const std::pair both{std::vector<std::string>{"embed.weight", "lm_head.weight"}, false};
  const std::pair one{std::vector<std::string>{"embed.weight"}, false};
  const SavedShardContent alias{.tensors = {embed}, .aliases = {{"lm_head.weight", "embed.weight"}}};

  EXPECT_EQ(exported({alias}, ties), one);
  EXPECT_EQ(exported({alias}, "{}"), both);
  EXPECT_EQ(exported({{.tensors = {embed}}, {.tensors = {equal}}}, ties), one);
  EXPECT_EQ(exported({{.tensors = {embed, other}}}, ties), std::pair(both.first, true));
  EXPECT_EQ(exported({{.tensors = {embed, other}}}, R"({"tie_word_embeddings": false})"), both);
  EXPECT_EQ(
      exported({alias}, R"({"limits": [0.5, Infinity, -Infinity, NaN], "of": "a \"NaN", "tie_word_embeddings": true})"),
      one);
  // Which of the two the config ties, the model's code knows.
  SavedTensor unrelated = other;
  unrelated.name = "a.weight";
  EXPECT_EQ(exported({{.tensors = {embed, other, unrelated}}}, ties),
            std::pair(std::vector<std::string>{"a.weight", "embed.weight", "lm_head.weight"}, true));
}

TEST_F(ModelFolderTest, FindsTheModel) {
  auto exported = [&, step = std::uint64_t{0}](const std::vector<std::string>& names,
                                               const std::vector<std::string>& more = {}) mutable {
    SavedShardContent shard;
    for (const std::string& name : names) shard.tensors.push_back(MakeTensor(name, DType::kF32, {4}, 1));
    const std::string folder = Write(++step, {shard});
    std::filesystem::remove_all(out_);
    const Ran ran = Export(folder, more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return Written();
  };

  EXPECT_THAT(exported({"model.a", "lm_head.b", "trainer/tensors/c", "trainer_rank/tensors/d"}),
              ElementsAre("lm_head.b", "model.a"));
  EXPECT_THAT(exported({"model/a.b", "optimizer/c"}), ElementsAre("a.b"));
  EXPECT_THAT(exported({"state_dict/model.a", "b"}, {"--strip-prefix", "state_dict/model."}), ElementsAre("a"));
  EXPECT_THAT(exported({"a.b", "c", "optimizer/d"}), ElementsAre("a.b", "c"));
  EXPECT_THAT(exported({"a/b", "optimizer/c"}, {"--names", "a/*"}), ElementsAre("a/b"));
  EXPECT_THAT(exported({"model/_orig_mod.a.b", "model/_orig_mod.c._orig_mod.d"}), ElementsAre("a.b", "c.d"));
  EXPECT_THAT(exported({"model/~s0", "model/a/~s1"}), ElementsAre("0", "a/1"));
}

TEST_F(ModelFolderTest, IsRefusedWhereTheModelIsNotKnownOrNotWhole) {
  const SavedTensor nested = MakeTensor("a/b", DType::kF32, {4}, 1);
  const SavedTensor top = MakeTensor("w", DType::kF32, {4}, 1);
  const Json partial{R"({"version":1,"tree":{"w":["t"],"trainer":{"frozen":{"v":"5f"}}}})"};

  const Ran unknown = Export(Write(1, {{.tensors = {nested}}}));
  const Ran trained = Export(Write(2, {{.tensors = {top}, .values = {{"tree", partial}}}}));
  const Json tree{R"({"version":2,"tree":{"model":["state",["odict",null,"x/y",["list",1,["a","complex128"]]]]}})"};
  const SavedTensor as_bytes = MakeTensor("model/x~1y/1", DType::kU8, {3, 16}, 1);
  const Ran odd = Export(Write(3, {{.tensors = {as_bytes}, .values = {{"tree", tree}}}}));
  const Json dcp{
      R"({"version":4,"paths":{"w":["w"]},"values":{"l":["packed","list","<i4","AA=="]},"pickled":[],"tied":[]})"};
  const Ran packed = Export(Write(4, {{.tensors = {top}, .values = {{"dcp", dcp}}}}));

  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("tensor \"model/x~1y/1\" has the dtype complex128"));
  EXPECT_EQ(packed.code, 0) << packed.err;
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no tensors at the top and no key \"model\": say with --strip-prefix"));
  EXPECT_EQ(trained.code, 2);
  EXPECT_THAT(trained.err, HasSubstr("holds only what was trained"));
}

TEST_F(ModelFolderTest, IsNotThereAfterAFailure) {
  const SavedTensor weight = MakeTensor("w", DType::kF32, {9, 100}, 1);
  std::vector<SavedShardContent> shards(3);
  for (int rank = 0; rank < 3; ++rank) shards[rank].tensors = {Third(weight, 0, rank)};
  const std::string folder = Write(1, shards);
  const std::string shard = folder + "/" + ShardName(1);
  std::string damaged = ReadWholeFile(shard);
  const std::string left = directory_ / (".model." + MakeUuid());
  const std::string under_way = directory_ / (".model." + MakeUuid());
  for (const std::string& path : {left, under_way}) {
    std::filesystem::create_directory(path);
    WriteWholeFile(path + "/model.safetensors", "draft");
  }
  const UniqueFd held(::open(under_way.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);

  std::filesystem::rename(folder + "/config.json", directory_ / "config.json");
  const Ran no_config = Export(root_);
  const Ran both = Export(root_, {"--out", directory_ / "file"});
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  WriteWholeFile(shard, damaged);
  const Ran corrupt = Export(root_, {"--config-from", directory_.path()});
  const std::vector<std::string> names = NamesIn(directory_.path());
  std::filesystem::create_directory(out_);
  const Ran exists = Export(root_, {"--config-from", directory_.path()});

  EXPECT_EQ(no_config.code, 2);
  EXPECT_THAT(no_config.err,
              AllOf(HasSubstr(folder + ": expected config.json, found none"), HasSubstr("--config-from")));
  EXPECT_THAT(both.err, HasSubstr("expected one of --out FILE and --model-folder DIR"));
  EXPECT_EQ(corrupt.code, 1);
  EXPECT_THAT(corrupt.err, AllOf(HasSubstr(shard + ": CRC32C of data bytes"), HasSubstr("of tensor \"w\"")));
  EXPECT_THAT(names, ElementsAre(std::filesystem::path(under_way).filename(), "config.json", "run"));
  EXPECT_EQ(exists.code, 2);
  EXPECT_THAT(exists.err, HasSubstr(out_ + " exists"));
  EXPECT_THAT(NamesIn(out_), IsEmpty());
}

}  // namespace
}  // namespace cairn
