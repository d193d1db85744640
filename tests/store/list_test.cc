#include "store/list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "format/manifest.h"
#include "store/names.h"
#include "store/pins.h"
#include "store_case.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ListTest : public ::testing::Test {
 protected:
  void Save(const TestSave& save) { ASSERT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok()); }
  [[nodiscard]] std::string StepFolder(std::uint64_t step) const { return root_ / StepName(step); }
  [[nodiscard]] std::string ManifestPath(std::uint64_t step) const {
    return StepFolder(step) + "/" + std::string(kManifestName);
  }
  [[nodiscard]] std::string Shard(std::uint64_t step) const { return StepFolder(step) + "/" + ShardName(0); }
  /// The candidates' steps, or the error.
  [[nodiscard]] Result<std::vector<std::uint64_t>> Choose(const Selector& selector) const {
    const auto chosen = ChooseCheckpoints(root_.path(), selector);
    if (!chosen.ok()) return chosen.status();
    std::vector<std::uint64_t> steps;
    for (const StoredCheckpoint& checkpoint : *chosen) steps.push_back(checkpoint.info.step);
    return steps;
  }
  [[nodiscard]] std::vector<std::uint64_t> Chosen(const Selector& selector) const {
    const auto steps = Choose(selector);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return steps.ok() ? *steps : std::vector<std::uint64_t>();
  }
  void Damage(std::uint64_t step) { fs::remove(ManifestPath(step)); }

  TempDir root_;
  std::unique_ptr<IoQueue> queue_ = MakeQueue();
};

TEST_F(ListTest, SortsByLineAndStepWithDamagedLast) {
  Save({.step = 100});
  Save({.step = 20});
  Save({.step = 60, .line = 1});
  Save({.step = 5});
  Save({.step = 30});
  Damage(30);
  Damage(5);

  const auto list = ListCheckpoints(root_.path());

  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::uint64_t> steps;
  for (const StoredCheckpoint& checkpoint : *list) steps.push_back(checkpoint.info.step);
  EXPECT_THAT(steps, ElementsAre(20, 100, 60, 5, 30));
  EXPECT_TRUE((*list)[2].info.status.ok());
  EXPECT_EQ((*list)[3].info.status.code(), StatusCode::kCorrupt);
  EXPECT_EQ((*list)[3].info.path, StepFolder(5));
  EXPECT_TRUE((*list)[3].manifest.shards.empty());
}

TEST_F(ListTest, InfoDescribesManifestAndFolder) {
  Save({.step = 7, .shards = 2, .line = 3});
  ASSERT_EQ(SetPin(*queue_, root_.path(), 7, PinOwner::kUser, 0644), Status::Ok());

  const auto list = ListCheckpoints(root_.path());

  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 1U);
  const CheckpointInfo& info = list->front().info;
  EXPECT_EQ(info.step, 7U);
  EXPECT_EQ(info.line, 3U);
  EXPECT_EQ(info.world, 2U);
  EXPECT_TRUE(info.pinned);
  EXPECT_EQ(info.path, StepFolder(7));
  EXPECT_EQ(info.bytes, fs::file_size(ManifestPath(7)) + 2 * fs::file_size(Shard(7)) +
                            fs::file_size(fs::path(StepFolder(7)) / kIndexName));
  EXPECT_EQ(info.attempt, list->front().manifest.attempt);
}

TEST_F(ListTest, IgnoresOtherNames) {
  Save({.step = 1});
  fs::create_directory(root_ / ".attempt-x");
  fs::create_directory(root_ / "step-2");
  WriteAll(root_ / "notes.txt", "mine");

  EXPECT_THAT(GoodSteps(root_.path()), ElementsAre(1));
}

TEST_F(ListTest, MissingRootIsNotFoundAndEmptyRootIsEmpty) {
  EXPECT_EQ(ListCheckpoints(root_ / "nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
}

TEST_F(ListTest, RootMayBeALink) {
  Save({.step = 1});
  TempDir elsewhere;
  fs::create_directory_symlink(root_.path(), elsewhere / "link");

  EXPECT_THAT(GoodSteps(elsewhere / "link"), ElementsAre(1));
}

struct Harm {
  const char* name;
  std::function<void(const std::string& folder, const std::string& file)> harm;
  const char* message;
};

TEST_F(ListTest, EveryKindOfDamageIsCorruptAndNamesTheFile) {
  const std::vector<Harm> harms = {
      {"no manifest", [](auto&, auto& manifest) { fs::remove(manifest); }, "manifest.json"},
      {"empty manifest", [](auto&, auto& manifest) { fs::resize_file(manifest, 0); }, "manifest.json"},
      {"truncated manifest", [](auto&, auto& manifest) { fs::resize_file(manifest, fs::file_size(manifest) - 1); },
       "manifest.json"},
      {"huge manifest", [](auto&, auto& manifest) { fs::resize_file(manifest, kMaxManifestBytes + 1); },
       "expected at most"},
      {"flipped bit",
       [](auto&, auto& manifest) {
         std::string text = ReadAll(manifest);
         text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
         WriteAll(manifest, text);
       },
       "manifest.json"},
      {"linked manifest",
       [](auto& folder, auto& manifest) {
         fs::rename(manifest, folder + "/other");
         fs::create_symlink("other", manifest);
       },
       "found a link"},
      {"piped manifest",
       [](auto&, auto& manifest) {
         fs::remove(manifest);
         ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
       },
       "regular file"},
      {"folder for a manifest",
       [](auto&, auto& manifest) {
         fs::remove(manifest);
         fs::create_directory(manifest);
       },
       "regular file"},
      {"file for a folder",
       [](auto& folder, auto&) {
         fs::remove_all(folder);
         WriteAll(folder, "");
       },
       "expected a directory"},
      {"linked folder",
       [](auto& folder, auto&) {
         fs::rename(folder, folder + "-moved");
         fs::create_directory_symlink(folder + "-moved", folder);
       },
       "expected a directory"},
  };
  std::uint64_t step = 100;
  for (const Harm& harm : harms) {
    Save({.step = ++step});
    harm.harm(StepFolder(step), ManifestPath(step));

    const auto list = ListCheckpoints(root_.path());

    ASSERT_TRUE(list.ok()) << list.status();
    const Status& status = list->back().info.status;
    EXPECT_EQ(list->back().info.step, step) << harm.name;
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << harm.name << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(harm.message)) << harm.name;
    EXPECT_THAT(status.message(), HasSubstr(StepName(step))) << harm.name;
  }
}

// Checking shards would make long lists of many ranks slow.
TEST_F(ListTest, ShardsAreCheckedOnlyOnRequest) {
  const std::vector<Harm> harms = {
      {"missing", [](auto&, auto& shard) { fs::remove(shard); }, "expected 16484 bytes, found no file"},
      {"short", [](auto&, auto& shard) { fs::resize_file(shard, fs::file_size(shard) - 1); }, "found 16483"},
      {"long", [](auto&, auto& shard) { fs::resize_file(shard, fs::file_size(shard) + 1); }, "found 16485"},
      {"linked",
       [](auto& folder, auto& shard) {
         fs::rename(shard, folder + "/other");
         fs::create_symlink("other", shard);
       },
       "regular file"},
  };
  std::uint64_t step = 100;
  for (const Harm& harm : harms) {
    SCOPED_TRACE(harm.name);
    Save({.step = ++step, .shards = 2});
    const std::string shard = StepFolder(step) + "/" + ShardName(1);
    harm.harm(StepFolder(step), shard);

    const auto list = ListCheckpoints(root_.path());

    ASSERT_TRUE(list.ok()) << list.status();
    EXPECT_EQ(list->back().info.step, step);
    EXPECT_EQ(list->back().info.status, Status::Ok());
    const Status looked = CheckShardFiles(list->back());
    EXPECT_EQ(looked.code(), StatusCode::kCorrupt) << looked;
    EXPECT_THAT(looked.message(), AllOf(HasSubstr(shard), HasSubstr(harm.message)));
  }
}

TEST_F(ListTest, CheckFindsCompleteShards) {
  Save({.step = 1, .shards = 2});
  const auto checkpoint = ReadCheckpointFolder(StepFolder(1));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

  EXPECT_EQ(CheckShardFiles(*checkpoint), Status::Ok());
  fs::remove_all(StepFolder(1));
  EXPECT_EQ(CheckShardFiles(*checkpoint).code(), StatusCode::kNotFound);
}

// Long enough for several threads.
TEST_F(ListTest, IsTheSameForALongList) {
  constexpr std::uint64_t kMany = 256;
  Save({.step = kMany});
  std::vector<std::uint64_t> expected;
  std::vector<std::uint64_t> damaged;
  for (std::uint64_t step = 0; step < kMany; ++step) {
    fs::create_directory(StepFolder(step));
    if (step % 10 == 7) {
      damaged.push_back(step);
      continue;
    }
    expected.push_back(step);
    WriteAll(ManifestPath(step), EncodeManifest(ManifestOf({.step = step}, "uuid")));
  }
  expected.push_back(kMany);
  expected.insert(expected.end(), damaged.begin(), damaged.end());

  const auto list = ListCheckpoints(root_.path());

  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::uint64_t> steps;
  for (const StoredCheckpoint& checkpoint : *list) {
    steps.push_back(checkpoint.info.step);
    EXPECT_EQ(checkpoint.info.status.ok(), checkpoint.info.step % 10 != 7 || checkpoint.info.step == kMany);
  }
  EXPECT_EQ(steps, expected);
}

TEST_F(ListTest, FolderNamedForAnotherStepIsCorrupt) {
  Save({.step = 1});
  fs::copy(StepFolder(1), StepFolder(2));
  fs::copy(StepFolder(1), root_ / "best");

  const auto renamed = ReadCheckpointFolder(StepFolder(2));
  const auto copied = ReadCheckpointFolder(root_ / "best/");

  EXPECT_EQ(renamed.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(renamed.status().message(), HasSubstr("expected step 2, as in the folder's name, found 1"));
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->info.step, 1U);
  EXPECT_EQ(ReadCheckpointFolder(root_ / "nowhere").status().code(), StatusCode::kNotFound);
}

TEST_F(ListTest, LatestIsTheHighestLineThenStep) {
  Save({.step = 50});
  Save({.step = 30, .line = 1});
  Save({.step = 40});

  EXPECT_THAT(Chosen(Latest()), ElementsAre(30));
  EXPECT_THAT(Chosen(Latest().FallBack()), ElementsAre(30, 50, 40));
  EXPECT_THAT(Chosen(Step(40)), ElementsAre(40));
  EXPECT_THAT(Chosen(Step(50).FallBack()), ElementsAre(50, 40));
}

TEST_F(ListTest, NotFoundMeansNoSuchCheckpoint) {
  EXPECT_EQ(Choose(Latest()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Choose(Latest().FallBack()).status().code(), StatusCode::kNotFound);
  Save({.step = 1});

  EXPECT_EQ(Choose(Step(2)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Choose(Step(2).FallBack()).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Choose(Step(2)).status().message(),
              EndsWith(fmt::format("no step 2 under {}; there is 1", root_.path())));
}

TEST_F(ListTest, DamagedOneCountsAsTheNewest) {
  Save({.step = 10});
  Save({.step = 20});
  Save({.step = 30});
  Damage(20);

  EXPECT_EQ(Choose(Latest()).status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(Choose(Latest()).status().message(), HasSubstr(StepName(20)));
  EXPECT_THAT(Chosen(Latest().FallBack()), ElementsAre(20, 30, 10));
  EXPECT_THAT(Chosen(Step(30)), ElementsAre(30));
  EXPECT_EQ(Choose(Step(20)).status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(Chosen(Step(20).FallBack()), ElementsAre(20, 10));
}

TEST_F(ListTest, FolderIsChosenAnywhere) {
  Save({.step = 10});
  TempDir elsewhere;
  fs::copy(StepFolder(10), elsewhere / "copy");

  EXPECT_THAT(Chosen(cairn::Folder(elsewhere / "copy")), ElementsAre(10));
  EXPECT_EQ(Choose(cairn::Folder(elsewhere / "nowhere")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace cairn
