#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/unique_fd.h"
#include "base/uuid.h"
#include "io/io_queue.h"
#include "store/root.h"
#include "store/writer.h"
#include "tools/tools_fixture.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(ToolsTest, LsListsCheckpointsOldestFirst) {
  const Ran text = Run({"ls", root_});
  const Ran as_json = Run({"ls", root_, "--json"});

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_LT(text.out.find("1000"), text.out.find("2000"));
  EXPECT_EQ(as_json.code, 0);
  const json list = as_json.parsed();
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list[1]["step"], 2000);
  EXPECT_EQ(list[1]["world"], 2);
  EXPECT_EQ(list[1]["ok"], true);
}

TEST_F(ToolsTest, LsReturnsOneIfAManifestIsDamaged) {
  WriteWholeFile(StepFolder(1000) + "/manifest.json", "{}");

  const Ran ran = Run({"ls", root_, "--json"});

  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.parsed().back()["ok"], false);
}

TEST_F(ToolsTest, LsDoesNotCheckShardsButVerifyDoes) {
  std::filesystem::remove(StepFolder(2000) + "/shard-00001.safetensors");

  const Ran list = Run({"ls", root_, "--json"});
  const Ran verified = Run({"verify", root_, "--json"});
  const Ran shown = Run({"show", root_});

  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_EQ(list.parsed()[1]["ok"], true);
  for (const Ran& ran : {verified, shown}) {
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, AllOf(HasSubstr(StepFolder(2000) + "/shard-00001.safetensors"), HasSubstr("found none")));
  }
  EXPECT_EQ(verified.parsed()[0]["ok"], true);
}

// Two steps that share a kept file: its bytes count once in a list, and everything reads it like a shard.
TEST_F(ToolsTest, KeptFilesAreReadAsShardsAndCountedOnce) {
  const SavedTensor base = MakeTensor("base", DType::kF32, {500'000}, 4);
  for (const std::uint64_t step : {3000U, 4000U}) {
    WriteCheckpoint(root_, {.step = step,
                            .shards = {{.tensors = {weight_}, .values = {{"lr", 0.25}}}},
                            .kept = {{.origin = {.step = 3000, .attempt = "first"}, .content = {.tensors = {base}}}}});
  }
  const std::string name = "/" + KeptName(0, "first");
  std::filesystem::remove(StepFolder(4000) + name);
  std::filesystem::create_hard_link(StepFolder(3000) + name, StepFolder(4000) + name);
  std::ofstream(StepFolder(4000) + "/suspect").close();

  const json list = Run({"ls", root_, "--json"}).parsed();
  const Ran text = Run({"ls", root_});
  const json shown = Run({"show", StepFolder(4000), "--json"}).parsed();
  const Ran described = Run({"show", StepFolder(4000)});
  const Ran same = Run({"diff", StepFolder(3000), StepFolder(4000)});
  const Ran verified = Run({"verify", root_});
  const Ran exported = Run({"export", StepFolder(4000), "--out", directory_ / "all.safetensors"});

  EXPECT_EQ(list[2]["bytes"], list[3]["bytes"]);
  EXPECT_FALSE(list[2].contains("shared_bytes"));
  EXPECT_EQ(list[3]["shared_bytes"], std::filesystem::file_size(StepFolder(3000) + name));
  EXPECT_THAT(text.out, HasSubstr("suspect, and 1.9 MiB shared with steps above"));
  EXPECT_EQ(list[2]["suspect"], false);
  EXPECT_EQ(list[3]["suspect"], true);
  EXPECT_THAT(described.out, HasSubstr("suspect: what is frozen may be that of step 3000"));
  EXPECT_EQ(shown["tensors"].size(), 2U);
  EXPECT_EQ(shown["tensors"][0]["file"], name.substr(1));
  EXPECT_EQ(shown["values"].size(), 1U);
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  EXPECT_EQ(exported.code, 0) << exported.err;
  const std::string all = ReadWholeFile(directory_ / "all.safetensors");
  EXPECT_NE(all.find(base.bytes), std::string::npos);
  EXPECT_NE(all.find(weight_.bytes), std::string::npos);
}

TEST_F(ToolsTest, LsListsWhatIsInMemoryAlone) {
  const std::string id = MakeUuid();
  const std::string memory = "/dev/shm/cairn-" + id;
  const std::shared_ptr<void> removed(nullptr, [&](void*) { std::filesystem::remove_all(memory); });
  std::filesystem::create_directory(memory);
  std::filesystem::permissions(memory, std::filesystem::perms::owner_all);
  for (const std::string& place : {root_, memory}) {
    WriteWholeFile(place + "/.writer", EncodeWriter({.root = id, .line = 1}));
  }
  const auto write = [&](const std::string& place, std::uint64_t step, const std::string& of_root) {
    WriteCheckpoint(place, {.step = step,
                            .line = 1,
                            .root = of_root,
                            .attempt = "attempt-" + std::to_string(step),
                            .shards = {{.tensors = {bias_}, .values = {}}}});
  };
  write(root_, 3000, id);
  write(memory, 3000, id);
  write(memory, 4000, id);
  write(memory, 5000, MakeUuid());

  const json list = Run({"ls", root_, "--json"}).parsed();
  const Ran text = Run({"ls", root_});

  ASSERT_EQ(list.size(), 4) << list;
  EXPECT_EQ(list[3]["copy"], false);
  EXPECT_EQ(list[2]["step"], 3000);
  EXPECT_FALSE(list[2].contains("in_memory")) << "the disk has it too";
  EXPECT_EQ(list[3]["step"], 4000);
  EXPECT_EQ(list[3]["in_memory"], true);
  EXPECT_THAT(text.out, HasSubstr("in memory alone, " + memory + "/" + StepName(4000)));
}

TEST_F(ToolsTest, LsOfAMissingRootFails) { EXPECT_EQ(Run({"ls", directory_ / "absent"}).code, 2); }

TEST_F(ToolsTest, LsOfAnEmptyFolderSaysSo) {
  std::filesystem::create_directory(directory_ / "empty");

  const Ran text = Run({"ls", directory_ / "empty"});
  const Ran as_json = Run({"ls", directory_ / "empty", "--json"});

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, "there is no checkpoint under " + directory_ / "empty" + "\n");
  EXPECT_EQ(as_json.parsed(), json::array());
}

TEST_F(ToolsTest, ShowPrintsNamesShapesAndValues) {
  const Ran ran = Run({"show", root_, "--step", "1000", "--json"});

  EXPECT_EQ(ran.code, 0) << ran.err;
  const json shown = ran.parsed();
  EXPECT_EQ(shown["step"], 1000);
  ASSERT_EQ(shown["tensors"].size(), 4);
  EXPECT_EQ(shown["tensors"][0]["name"], "head.weight");
  EXPECT_EQ(shown["tensors"][0]["alias_of"], "layer.weight");
  EXPECT_EQ(shown["tensors"][2]["shape"], (json{300, 1000}));
  EXPECT_EQ(shown["values"][0]["lr"], 0.25);
}

TEST_F(ToolsTest, ShowSummarisesALongValue) {
  std::string tree = R"({"version":1,"tree":{"model":{"layer":["list",["t"]]},"rates":["list",1,2,3],"step":7,)"
                     R"("ids":["packed","list","<i4","AA=="],"note":")";
  tree += std::string(1000, 'x') + R"("}})";
  WriteCheckpoint(root_, {.step = 3000, .shards = {{.tensors = {weight_}, .values = {{"tree", Json{tree}}}}}});

  const Ran text = Run({"show", root_});
  const Ran as_json = Run({"show", root_, "--json"});

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("rank 0: tree = note: ..., step: 7, ids: list of numbers, model: {...}, "
                                  "rates: list of 3 (1.1 KiB of JSON; --json prints it)\n"));
  EXPECT_EQ(as_json.parsed()["values"][0]["tree"]["tree"]["step"], 7);
}

TEST_F(ToolsTest, ShowOfAShardCutsItsLongMetadata) {
  const Ran ran = Run({"show", StepFolder(1000) + "/shard-00000.safetensors"});

  EXPECT_EQ(ran.code, 0) << ran.err;
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 120) << line;
}

TEST_F(ToolsTest, ExportReplacesAFileOnlyWithForce) {
  const std::string out = directory_ / "out.safetensors";
  WriteWholeFile(out, "mine");

  const Ran refused = Run({"export", root_, "--out", out});
  const std::string kept = ReadWholeFile(out);
  const Ran forced = Run({"export", root_, "--out", out, "--force"});

  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr(out + " exists; --force replaces it"));
  EXPECT_EQ(kept, "mine");
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_EQ(Run({"show", out}).code, 0);
}

TEST_F(ToolsTest, ExportReplacesNoFolderAndNoDevice) {
  const std::string folder = directory_ / "folder";
  const std::string fifo = directory_ / "fifo";
  std::filesystem::create_directory(folder);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);

  const Ran into_folder = Run({"export", root_, "--out", folder, "--force"});
  const Ran into_fifo = Run({"export", root_, "--out", fifo, "--force"});
  const Ran unforced = Run({"export", root_, "--out", fifo});

  for (const Ran& ran : {into_folder, into_fifo, unforced}) {
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr(" exists and is no file: --out expects the name of one"));
  }
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
}

TEST_F(ToolsTest, ExportRemovesWhatKilledExportsHaveLeft) {
  const std::string hidden = directory_ / ".out.safetensors.";
  const std::string left = hidden + MakeUuid();
  const std::string under_way = hidden + MakeUuid();
  const std::string other = hidden + "mine";
  for (const std::string& path : {left, under_way, other}) WriteWholeFile(path, "draft");
  const UniqueFd held(::open(under_way.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);

  ASSERT_EQ(Run({"export", root_, "--out", directory_ / "out.safetensors"}).code, 0);

  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(under_way));
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(ToolsTest, ExportKeepsALinkThatLeadsNowhere) {
  const std::filesystem::path out = directory_ / "link";
  std::filesystem::create_symlink(directory_ / "nowhere", out);

  EXPECT_EQ(Run({"export", root_, "--out", out.string()}).code, 2);
  EXPECT_TRUE(std::filesystem::is_symlink(out));
}

TEST_F(ToolsTest, ShowEscapesControlCharacters) {
  const Ran ran = Run({"show", StepFolder(2000)});

  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("rank 0: lr = 0.25"), HasSubstr("layer.bias"), Not(HasSubstr("\x1b"))));
}

TEST_F(ToolsTest, AStepsFolderMayBeNamedWithoutItsZeros) {
  const std::string step = root_ + "/step-1000";

  for (const Ran& ran : {Run({"show", step + "/"}), Run({"verify", step}), Run({"diff", root_, step}),
                         Run({"export", step, "--out", directory_ / "out.safetensors"}),
                         RunShell("cd '" + root_ + "' && '" CAIRN_CLI "' show step-1000")}) {
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
}

TEST_F(ToolsTest, AMissingStepNamesThoseThatThereAre) {
  const std::string expected = "there is no step 7 under " + root_ + "; there are 1000, 2000\n";

  for (const Ran& ran :
       {Run({"show", root_, "7"}), Run({"verify", root_, "7"}), Run({"verify", root_ + "/step-7"}),
        Run({"diff", root_, "7", "1000"}), Run({"export", StepFolder(7), "--out", directory_ / "x"})}) {
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr(expected));
  }
}

TEST_F(ToolsTest, VerifyFindsDamageAndNamesIt) {
  const Ran before = Run({"verify", root_});
  Damage(2000);
  const Ran newest = Run({"verify", root_, "--step", "2000"});
  const Ran older = Run({"verify", root_, "--step", "1000"});
  const Ran all = Run({"verify", root_, "--json"});

  EXPECT_EQ(before.code, 0) << before.err;
  EXPECT_EQ(newest.code, 1);
  EXPECT_THAT(newest.err, AllOf(HasSubstr("shard-00000.safetensors"), HasSubstr("CRC32C")));
  EXPECT_EQ(older.code, 0);
  EXPECT_EQ(all.code, 1);
  EXPECT_EQ(all.parsed()[0]["ok"], true);
  EXPECT_EQ(all.parsed()[1]["ok"], false);
}

TEST_F(ToolsTest, VerifyReadsACopiedFolder) {
  std::filesystem::copy(StepFolder(1000), directory_ / "copied");

  EXPECT_EQ(Run({"verify", directory_ / "copied"}).code, 0);
  std::filesystem::remove(directory_ / "copied/shard-00001.safetensors");
  EXPECT_EQ(Run({"verify", directory_ / "copied"}).code, 1);
}

TEST_F(ToolsTest, AStepWithoutItsManifestIsDamaged) {
  std::filesystem::remove(StepFolder(1000) + "/manifest.json");

  EXPECT_EQ(Run({"verify", StepFolder(1000)}).code, 1);
  EXPECT_EQ(Run({"show", StepFolder(1000) + "/"}).code, 1);
}

TEST_F(ToolsTest, DiffCountsElementsAndBytes) {
  weight_.bytes[0] = static_cast<char>(weight_.bytes[0] ^ 1);
  weight_.bytes[1] = static_cast<char>(weight_.bytes[1] ^ 1);
  weight_.bytes[9] = static_cast<char>(weight_.bytes[9] ^ 1);
  bias_ = MakeTensor("layer.bias", DType::kBF16, {8}, 2);
  moment_.name = "optimizer.other";
  Write(3000);

  const Ran same = Run({"diff", StepFolder(1000), StepFolder(2000)});
  const Ran one = Run({"diff", StepFolder(1000), root_});
  const Ran different = Run({"diff", StepFolder(1000), root_, "--json"});

  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("4 tensors identical"));
  EXPECT_THAT(one.out, HasSubstr("\n0 tensors identical\n"));
  EXPECT_EQ(different.code, 1) << different.err;
  const json found = different.parsed();
  EXPECT_EQ(found["only_in_a"], (json{"optimizer.moment"}));
  EXPECT_EQ(found["only_in_b"], (json{"optimizer.other"}));
  EXPECT_EQ(found["types_differ"][0]["name"], "layer.bias");
  ASSERT_EQ(found["bytes_differ"].size(), 2);
  EXPECT_EQ(found["bytes_differ"][1]["name"], "layer.weight");
  EXPECT_EQ(found["bytes_differ"][1]["differing_elements"], 2);
  EXPECT_EQ(found["bytes_differ"][1]["differing_bytes"], 3);
}

TEST_F(ToolsTest, ExportWritesOneFileThatComparesEqual) {
  const std::string out = directory_ / "out.safetensors";

  const Ran exported = Run({"export", root_, "--step", "1000", "--out", out});
  const Ran shown = Run({"show", out, "--json"});
  const Ran compared = Run({"diff", out, StepFolder(1000), "--json"});

  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(shown.parsed()["tensors"].size(), 4);
  EXPECT_EQ(compared.parsed()["identical"], 4);  // One of them is tied to another.
  EXPECT_EQ(compared.code, 0);
}

TEST_F(ToolsTest, ExportFiltersNamesAndStripsAPrefix) {
  const auto exported = [this](const std::vector<std::string>& flags) {
    std::vector<std::string> words{"export", root_, "--force", "--out", directory_ / "out.safetensors"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Ran ran = Run(words);
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::vector<std::string> names;
    const json shown = Run({"show", directory_ / "out.safetensors", "--json"}).parsed();
    for (const json& tensor : shown["tensors"]) names.push_back(tensor["name"]);
    return names;
  };

  EXPECT_THAT(exported({"--names", "head.*", "layer.bias"}), ElementsAre("head.weight", "layer.bias"));
  EXPECT_THAT(exported({"--strip-prefix", "layer."}), ElementsAre("bias", "weight"));
  EXPECT_THAT(exported({"--strip-prefix", "layer", "--names", "*.weight"}), ElementsAre("weight"));
  EXPECT_THAT(Run({"export", root_, "--out", directory_ / "x", "--strip-prefix", "lay"}).err,
              HasSubstr("is below \"lay\"; names begin with head., layer., optimizer."));
  WriteCheckpoint(root_, {.step = 3000, .shards = {{.tensors = {MakeTensor("top", DType::kF32, {2}, 1)}}}});
  EXPECT_THAT(Run({"export", root_, "--out", directory_ / "x", "--strip-prefix", "lay"}).err,
              HasSubstr("is below \"lay\"; names begin with top\n"));
}

TEST_F(ToolsTest, ExportRefusesNamesThatItsFileCannotHold) {
  std::vector<SavedTensor> tensors;
  for (const char* name : {"a/w", "a.w", "b/__metadata__"}) tensors.push_back(MakeTensor(name, DType::kF32, {2}, 1));
  WriteCheckpoint(root_, {.step = 3000, .shards = {{.tensors = tensors}}});
  const std::string out = directory_ / "out.safetensors";

  const Ran equal = Run({"export", root_, "--out", out, "--strip-prefix", "a"});
  const Ran reserved = Run({"export", root_, "--out", out, "--strip-prefix", "b/"});
  const bool written = std::filesystem::exists(out);

  EXPECT_EQ(equal.code, 2);
  EXPECT_THAT(equal.err, HasSubstr("tensors \"a.w\" and \"a/w\" would both be \"w\" in the file"));
  EXPECT_EQ(reserved.code, 2);
  EXPECT_THAT(reserved.err, HasSubstr("tensor \"b/__metadata__\" would be \"__metadata__\" in the file"));
  EXPECT_FALSE(written);
  EXPECT_EQ(Run({"export", root_, "--out", out, "--strip-prefix", "a", "--names", "a/*"}).code, 0);
}

TEST_F(ToolsTest, AFailedExportLeavesNothingBehind) {
  Damage(2000);
  std::filesystem::create_directory(directory_ / "out");

  const Ran damaged = Run({"export", root_, "--out", directory_ / "out/x.safetensors"});
  const Ran unmatched = Run({"export", root_, "--out", directory_ / "out/x.safetensors", "--names", "nothing.*"});

  EXPECT_EQ(damaged.code, 1);
  EXPECT_EQ(unmatched.code, 2);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ / "out"));
}

TEST_F(ToolsTest, AFailedWriteOfAnExportNamesItsFile) {
  std::filesystem::create_directory(directory_ / "out");
  // Writing to any file fails, so stderr goes through the pipe.
  const std::string limited = "trap \"\" XFSZ; ulimit -f 0; exec \"$0\" export \"$1\" --out \"$2\" 2>&1";

  const Ran full = RunProgram("/bin/bash", {"-c", limited, CAIRN_CLI, root_, directory_ / "out/x.safetensors"});

  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.out, AllOf(HasSubstr("write of "), HasSubstr(directory_ / "out/.x.safetensors.")));
  EXPECT_TRUE(std::filesystem::is_empty(directory_ / "out"));
}

TEST_F(ToolsTest, ExportsAndFilesOfPythonsSafetensorsAreCompatible) {
#ifndef CAIRN_PYTHON
  GTEST_SKIP() << "Python is not configured";
#else
  if (RunProgram(CAIRN_PYTHON, {"-c", "import safetensors, numpy"}).code != 0)
    GTEST_SKIP() << "safetensors is not installed";
  const std::string out = directory_ / "out.safetensors";
  ASSERT_EQ(Run({"export", root_, "--out", out, "--names", "layer.weight", "optimizer.*"}).code, 0);
  const std::string script =
      "import sys; from safetensors.numpy import load_file, save_file; t = load_file(sys.argv[1]); "
      "assert sorted(t) == [\"layer.weight\", \"optimizer.moment\"], sorted(t); "
      "assert t[\"layer.weight\"].shape == (300, 1000); save_file(t, sys.argv[2], {\"by\": \"python\"})";

  const Ran python = RunProgram(CAIRN_PYTHON, {"-c", script, out, directory_ / "back.safetensors"});

  EXPECT_EQ(python.code, 0) << python.err;
  EXPECT_EQ(Run({"diff", out, directory_ / "back.safetensors"}).code, 0);
  EXPECT_EQ(Run({"show", directory_ / "back.safetensors", "--json"}).parsed()["metadata"]["by"], "python");
#endif
}

TEST_F(ToolsTest, GcRemovesWhatADryRunPrints) {
  Write(3000);

  const Ran dry = Run({"gc", root_, "--keep-last", "1", "--keep-every", "2000", "--dry-run", "--json"});
  const std::vector<std::uint64_t> after_dry = StepsLeft();
  const Ran real = Run({"gc", root_, "--keep-last", "1", "--keep-every", "2000", "--json"});

  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(dry.parsed()["chosen"], (json{1000}));
  EXPECT_THAT(after_dry, ElementsAre(1000, 2000, 3000));
  EXPECT_EQ(real.code, 0) << real.err;
  EXPECT_EQ(real.parsed()["removed"], (json{1000}));
  EXPECT_THAT(StepsLeft(), ElementsAre(2000, 3000));
}

TEST_F(ToolsTest, GcDoesNotCountACheckpointThatLacksAShard) {
  Write(3000);
  std::filesystem::remove(StepFolder(3000) + "/shard-00001.safetensors");

  const Ran ran = Run({"gc", root_, "--keep-last", "1", "--json"});

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("step 3000 is not counted"), HasSubstr("shard-00001.safetensors")));
  EXPECT_EQ(ran.parsed()["removed"], (json{1000}));
  EXPECT_THAT(StepsLeft(), ElementsAre(2000, 3000));
}

TEST_F(ToolsTest, GcFailsWhileAWriterHasTheRootOpen) {
  const auto choice = ChooseIoQueue(IoQueueKind::kThreads, 1);
  const auto queue = choice->factory();
  const auto writer = Root::Open(**queue, {.path = root_});
  ASSERT_TRUE(writer.ok()) << writer.status();

  const Ran refused = Run({"gc", root_, "--keep-last", "1"});
  const Ran dry = Run({"gc", root_, "--keep-last", "1", "--dry-run"});

  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(StepsLeft(), ElementsAre(1000, 2000));
  EXPECT_EQ(dry.code, 0);
}

TEST_F(ToolsTest, WrongUsageReturnsTwoAndHelpZero) {
  EXPECT_EQ(Run({}).code, 2);
  EXPECT_EQ(Run({"frobnicate"}).code, 2);
  EXPECT_EQ(Run({"gc", root_, "--keep-last", "0"}).code, 2);
  EXPECT_EQ(Run({"show", StepFolder(1000), "--step", "1"}).code, 2);
  EXPECT_EQ(Run({"show", root_, "--step", "7"}).code, 2);
  EXPECT_EQ(Run({"verify", StepFolder(1000) + "/shard-00000.safetensors"}).code, 2);
  EXPECT_EQ(Run({"gc", directory_ / "absent", "--keep-last", "1"}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "absent"));
  EXPECT_EQ(Run({"--help"}).code, 0);
  EXPECT_THAT(Run({"--version"}).out, ::testing::MatchesRegex("cairn [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(ToolsTest, FilesInAnotherFormatAreDamaged) {
  WriteWholeFile(directory_ / "short", "abc");
  WriteWholeFile(directory_ / "huge", std::string(8, '\xff') + "{}");

  EXPECT_EQ(Run({"show", directory_ / "short"}).code, 1);
  EXPECT_EQ(Run({"show", directory_ / "huge"}).code, 1);
}

}  // namespace
}  // namespace cairn
