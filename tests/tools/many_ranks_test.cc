// The real command on checkpoints of more ranks than it holds headers of, or files open, at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "store/names.h"
#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kRanks = 40;

/// Each rank has a part of "w", its own tensor, and its number as a value.
class ManyRanksTest : public ::testing::Test {
 protected:
  ManyRanksTest() { std::filesystem::create_directory(root_); }

  static std::vector<SavedShardContent> Shards(int ranks = kRanks) {
    std::vector<SavedShardContent> shards;
    for (int rank = 0; rank < ranks; ++rank) {
      SavedTensor part = MakeTensor("w", DType::kF32, {3, 5}, static_cast<std::uint32_t>(rank));
      part.part = TensorPart{"w", {3 * kRanks, 5}, {3 * rank, 0}};
      shards.push_back({.tensors = {part, MakeTensor("own-" + std::to_string(rank), DType::kU8, {9}, 7)}});
      shards.back().values.emplace("number", std::int64_t{rank});
    }
    return shards;
  }
  std::string Write(std::uint64_t step, std::vector<SavedShardContent> shards) {
    return WriteCheckpoint(root_, {.step = step, .shards = std::move(shards)});
  }
  /// With few file descriptors to spare.
  [[nodiscard]] static Ran Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--nofile=64:64", CAIRN_CLI});
    return RunProgram("/usr/bin/prlimit", arguments);
  }
  static std::string In(int rank) { return " (" + ShardName(static_cast<std::uint64_t>(rank)) + ")"; }

  TempDir directory_;
  const std::string root_ = directory_ / "run";
};

TEST_F(ManyRanksTest, ShowPrintsRanksInOrder) {
  Write(1, Shards());

  const Ran text = Run({"show", root_});
  const Ran as_json = Run({"show", root_, "--json"});

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("rank 39: number = 39"));
  EXPECT_EQ(as_json.code, 0) << as_json.err;
  const json shown = as_json.parsed();
  EXPECT_EQ(shown["world"], kRanks);
  ASSERT_EQ(shown["tensors"].size(), 2 * kRanks);
  ASSERT_EQ(shown["values"].size(), kRanks);
  EXPECT_EQ(shown["values"][39]["number"], 39);
  std::vector<std::string> files;
  for (const json& tensor : shown["tensors"]) {
    if (tensor["name"] == "w") files.push_back(tensor["file"]);
  }
  EXPECT_EQ(files.size(), kRanks);
  EXPECT_TRUE(std::is_sorted(files.begin(), files.end()));
}

TEST_F(ManyRanksTest, ShowPrintsValuesThatLookAlikeOnce) {
  std::vector<SavedShardContent> shards = Shards(6);
  for (SavedShardContent& shard : shards) shard.values = {{"lr", 0.25}};
  shards[4].values["lr"] = 0.5;
  Write(1, std::move(shards));

  const Ran text = Run({"show", root_});

  EXPECT_THAT(text.out, HasSubstr("\nranks 0 to 3: lr = 0.25\nrank 4: lr = 0.5\nrank 5: lr = 0.25\n"));
}

TEST_F(ManyRanksTest, ShowOfADamagedShardPrintsNoCompleteObject) {
  const std::string folder = Write(1, Shards());
  WriteWholeFile(folder + "/" + ShardName(30), "short");

  const Ran shown = Run({"show", root_, "--json"});

  EXPECT_EQ(shown.code, 1);
  EXPECT_THAT(shown.err, HasSubstr(ShardName(30)));
  EXPECT_TRUE(json::parse(shown.out, nullptr, /*allow_exceptions=*/false).is_discarded());
}

TEST_F(ManyRanksTest, DiffNamesTheFileIfSeveralHaveTheTensor) {
  const std::string a = Write(1, Shards());
  std::vector<SavedShardContent> changed = Shards();
  changed[37].tensors[0].bytes[4] = static_cast<char>(changed[37].tensors[0].bytes[4] ^ 1);
  changed[5].tensors[0].dtype = DType::kI32;
  changed[8].tensors[1].bytes[0] = static_cast<char>(changed[8].tensors[1].bytes[0] ^ 1);
  const std::string b = Write(2, std::move(changed));

  const Ran ran = Run({"diff", a, b, "--json"});

  EXPECT_EQ(ran.code, 1) << ran.err;
  const json found = ran.parsed();
  EXPECT_EQ(found["identical"], 2 * kRanks - 3);
  ASSERT_EQ(found["types_differ"].size(), 1);
  EXPECT_EQ(found["types_differ"][0]["name"], "w" + In(5));
  ASSERT_EQ(found["bytes_differ"].size(), 2);
  EXPECT_EQ(found["bytes_differ"][0]["name"], "own-8");
  EXPECT_EQ(found["bytes_differ"][1]["name"], "w" + In(37));
  EXPECT_EQ(found["bytes_differ"][1]["differing_elements"], 1);
  EXPECT_THAT(found["only_in_a"], IsEmpty());
  EXPECT_THAT(found["only_in_b"], IsEmpty());
}

TEST_F(ManyRanksTest, DiffFindsATensorOnAnotherRank) {
  const SavedTensor same = MakeTensor("replicated.same", DType::kF32, {100}, 1);
  const SavedTensor before = MakeTensor("replicated.other", DType::kF32, {100}, 2);
  const SavedTensor after = MakeTensor("replicated.other", DType::kF32, {100}, 3);
  std::vector<SavedShardContent> of_a = Shards();
  of_a[2].tensors.push_back(same);
  of_a[31].tensors.push_back(before);
  std::vector<SavedShardContent> of_b = Shards(20);
  of_b[19].tensors.push_back(same);
  of_b[2].tensors.push_back(after);
  const std::string a = Write(1, std::move(of_a));
  const std::string b = Write(2, std::move(of_b));

  const json found = Run({"diff", a, b, "--json"}).parsed();

  EXPECT_EQ(found["identical"], 2 * 20 + 1);
  ASSERT_EQ(found["bytes_differ"].size(), 1);
  EXPECT_EQ(found["bytes_differ"][0]["name"], "replicated.other");
  EXPECT_EQ(found["only_in_a"].size(), 2 * 20);
  EXPECT_EQ(found["only_in_a"][0], "own-20");
  EXPECT_EQ(found["only_in_a"][20], "w" + In(20));
  EXPECT_THAT(found["only_in_b"], IsEmpty());
  EXPECT_EQ(Run({"diff", b, a, "--json"}).parsed()["only_in_b"], found["only_in_a"]);
}

TEST_F(ManyRanksTest, DiffOfAFileFindsItsTensorsInAnyShard) {
  const std::string folder = Write(1, Shards());
  const std::string out = directory_ / "one.safetensors";
  ASSERT_EQ(Run({"export", folder, "--out", out, "--names", "own-33", "--names", "own-2"}).code, 0);

  const json found = Run({"diff", out, folder, "--json"}).parsed();

  EXPECT_EQ(found["identical"], 2);
  EXPECT_THAT(found["only_in_a"], IsEmpty());
  EXPECT_EQ(found["only_in_b"].size(), 2 * kRanks - 2);
}

TEST_F(ManyRanksTest, ExportRejectsANameWithDifferentTensors) {
  const std::string own = "rng";
  std::vector<SavedShardContent> shards(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    shards[rank].tensors = {MakeTensor(own, DType::kU8, {9}, rank), MakeTensor("same", DType::kF32, {50}, 1)};
  }
  const std::string folder = Write(1, std::move(shards));
  const std::string out = directory_ / "out.safetensors";

  const Ran refused = Run({"export", root_, "--out", out});
  const bool written = std::filesystem::exists(out);
  const Ran alike = Run({"export", root_, "--out", out, "--names", "same"});
  const Ran of_one = Run({"export", folder + "/" + ShardName(2), "--out", out, "--force"});

  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("\"rng\""), HasSubstr(ShardName(0)), HasSubstr(ShardName(1))));
  EXPECT_FALSE(written);
  EXPECT_EQ(alike.code, 0) << alike.err;
  EXPECT_EQ(of_one.code, 0) << of_one.err;
}

TEST_F(ManyRanksTest, ExportPutsPartsTogetherInAModelFolder) {
  const std::vector<SavedShardContent> shards = Shards();
  Write(1, shards);
  WriteWholeFile(directory_ / "config.json", "{}");

  const Ran part = Run({"export", root_, "--out", directory_ / "out"});
  const Ran whole =
      Run({"export", root_, "--model-folder", directory_ / "out", "--config-from", directory_.path(), "--names", "w"});

  EXPECT_THAT(part.err, HasSubstr("tensor \"w\" is a part"));
  EXPECT_THAT(part.err, HasSubstr("--model-folder"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  std::string bytes;
  for (const SavedShardContent& shard : shards) bytes += shard.tensors[0].bytes;
  EXPECT_TRUE(ReadWholeFile(directory_ / "out/model.safetensors").ends_with(bytes));
}

TEST_F(ManyRanksTest, ShowPrintsJsonValuesUnchangedAsJson) {
  const int depth = 200'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  const std::string large = R"({"n": 123456789012345678901234567890, "n": 2})";
  std::vector<SavedShardContent> shards(1);
  shards[0].values = {{"deep", Json{deep}}, {"large", Json{large}}, {"text", std::string("a \"b\"")}};
  Write(1, std::move(shards));

  const Ran text = Run({"show", root_});
  const Ran as_json = Run({"show", root_, "--json"});

  for (const Ran& ran : {text, as_json}) {
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, AllOf(HasSubstr(large), HasSubstr(R"("a \"b\"")")));
  }
  EXPECT_THAT(as_json.out, HasSubstr(deep));
  EXPECT_THAT(text.out, HasSubstr("deep = " + deep.substr(0, 80) + "... (390.6 KiB of JSON; --json prints it)"));
  EXPECT_TRUE(json::accept(as_json.out));
}

TEST_F(ManyRanksTest, AFullOutputIsAnError) {
  Write(1, Shards());

  for (const std::string command : {"ls", "show", "verify"}) {
    const Ran ran = RunProgram("/bin/sh", {"-c", "\"$0\" \"$@\" >/dev/full", CAIRN_CLI, command, root_});

    EXPECT_EQ(ran.code, 2) << command;
    EXPECT_THAT(ran.err, HasSubstr("No space left on device")) << command;
  }
}

TEST_F(ManyRanksTest, ErrorsEscapeWhatATerminalActsOn) {
  for (const std::string letter : {"\x1b", "\xc2\x9b", "\u202e", "\u2066", "\u200b", "\xff"}) {
    const Ran ran = Run({"show", directory_ / ("x" + letter + "[31m")});

    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, Not(HasSubstr(letter)));
  }
  EXPECT_THAT(Run({"show", directory_ / "\u00e9 \u4e2d \"\\"}).err, HasSubstr("\u00e9 \u4e2d \"\\"));
}

}  // namespace
}  // namespace cairn
