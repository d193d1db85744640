#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "restore_fixture.h"
#include "support/points.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two shards of one step on disk, and a state that wants all tensors.
class DamageTest : public RestoreTest {
 protected:
  DamageTest() {
    first_ = MakeTensor("first", DType::kF32, {600000}, 1);
    second_ = MakeTensor("second", DType::kBF16, {300}, 2);
    folder_ = WriteCheckpoint(
        root(), {.step = 9, .shards = {{.tensors = {first_}, .values = {{"lr", 0.1}}}, {.tensors = {second_}}}});
    targets_.Add(first_);
    targets_.Add(second_);
  }
  [[nodiscard]] std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  [[nodiscard]] Status TryRestore() {
    return RestoreSelected(Parts(), root(), Latest(), 0, targets_.state, {}).status();
  }
  [[nodiscard]] Status TryVerify() { return VerifySelected(Parts(), root(), Latest(), {}); }
  // Changes the manifest as an attacker could.
  void Rewrite(const std::function<void(Manifest&)>& change) {
    Manifest manifest = ReadManifest(folder_);
    change(manifest);
    WriteManifest(folder_, manifest);
  }

  SavedTensor first_;
  SavedTensor second_;
  std::string folder_;
  Targets targets_;
  const std::string shard0_ = "shard-00000.safetensors";
  const std::string shard1_ = "shard-00001.safetensors";
};

TEST_F(DamageTest, FindsAndNamesOneFlippedBitAnywhere) {
  for (const std::string& name : {std::string(kManifestName), shard0_, shard1_}) {
    const std::string good = ReadWholeFile(Path(name));
    const std::size_t stride = std::max<std::size_t>(1, good.size() / 61);
    for (std::size_t at = 0; at < good.size(); at += stride) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      WriteWholeFile(Path(name), bad);

      const Status restored = TryRestore();
      const Status verified = TryVerify();

      EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << name << " at " << at << ": " << restored;
      EXPECT_THAT(restored.message(), HasSubstr(name)) << at;
      EXPECT_EQ(verified.code(), StatusCode::kCorrupt) << name << " at " << at << ": " << verified;
    }
    WriteWholeFile(Path(name), good);
  }
  EXPECT_TRUE(TryRestore().ok());
}

TEST_F(DamageTest, FindsOneFlippedBitAnywhereInAHeader) {
  const std::string good = ReadWholeFile(Path(shard0_));
  const std::size_t header = good.size() - 600000 * 4;
  ASSERT_EQ(header % 4096, 0U);
  const Points points = SomePoints(3);
  for (std::size_t at = 7 * points.first; at < header; at += 7 * points.stride) {  // The text and its padding.
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    WriteWholeFile(Path(shard0_), bad);

    EXPECT_EQ(TryRestore().code(), StatusCode::kCorrupt) << at;
    EXPECT_TRUE(targets_.untouched()) << at;
  }
}

TEST_F(DamageTest, NamesTheBlockWithExpectedAndFound) {
  std::string shard = ReadWholeFile(Path(shard0_));
  shard[shard.size() - 600000 * 4 + (1 << 20) + 17] ^= 4;
  WriteWholeFile(Path(shard0_), shard);

  const Status restored = TryRestore();

  EXPECT_THAT(restored.message(), AllOf(HasSubstr(shard0_), HasSubstr("data bytes 1048576 to 2097152"),
                                        HasSubstr("expected "), HasSubstr("found ")));
}

TEST_F(DamageTest, InAHeaderLeavesTargetsUntouched) {
  std::string shard = ReadWholeFile(Path(shard1_));
  shard[20] ^= 1;
  WriteWholeFile(Path(shard1_), shard);

  EXPECT_EQ(TryRestore().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DamageTest, NamesATruncatedOrExtendedShard) {
  const std::string good = ReadWholeFile(Path(shard0_));
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{4096}, good.size() - 1}) {
    WriteWholeFile(Path(shard0_), good.substr(0, length));

    const Status restored = TryRestore();

    EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << length;
    EXPECT_THAT(restored.message(),
                AllOf(HasSubstr(shard0_), HasSubstr(std::to_string(good.size())), HasSubstr(std::to_string(length))));
  }
  WriteWholeFile(Path(shard0_), good + "x");
  EXPECT_EQ(TryRestore().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(targets_.untouched());
}

// A listing only reads manifests: the newest is chosen, and found damaged when it is opened.
TEST_F(DamageTest, NamesAMissingShard) {
  std::filesystem::remove(Path(shard1_));

  const Status restored = TryRestore();
  const Status verified = TryVerify();
  const Status inspected = InspectSelected(root(), Latest()).status();
  const Status part = InspectSelected(Parts(), root(), Latest(), {.rank = 1}).status();

  for (const Status& status : {restored, verified, inspected, part}) {
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(Path(shard1_)));
  }
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DamageTest, FallBackSkipsAMissingOrShortShard) {
  for (const bool missing : {true, false}) {
    const std::string newest = WriteCheckpoint(root(), {.step = 10, .shards = {{.tensors = {first_}}, {}}});
    const std::string shard = newest + "/" + shard1_;
    missing ? void(std::filesystem::remove(shard)) : WriteWholeFile(shard, "");

    const auto fallen_back = RestoreSelected(Parts(), root(), Latest().FallBack(), 0, targets_.state, {});

    ASSERT_TRUE(fallen_back.ok()) << fallen_back.status();
    EXPECT_EQ(fallen_back->step, 9);
    EXPECT_THAT(fallen_back->passed_over, ElementsAre(HasSubstr(shard)));
    std::filesystem::remove_all(newest);
  }
}

// Damage of an older checkpoint must not affect the newest.
TEST_F(DamageTest, InAnOlderCheckpointDoesNotAffectTheNewest) {
  WriteCheckpoint(root(), {.step = 10, .shards = {{.tensors = {first_, second_}}}});
  std::filesystem::remove(Path(shard1_));

  const auto restored = RestoreSelected(Parts(), root(), Latest(), 0, targets_.state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 10);
}

TEST_F(DamageTest, RejectsSwappedShards) {
  std::filesystem::rename(Path(shard0_), Path("aside"));
  std::filesystem::rename(Path(shard1_), Path(shard0_));
  std::filesystem::rename(Path("aside"), Path(shard1_));

  EXPECT_EQ(TryRestore().code(), StatusCode::kCorrupt);

  // The headers show the swap even if the manifest agrees with it.
  Rewrite([](Manifest& manifest) { std::swap(manifest.shards[0].file, manifest.shards[1].file); });
  const Status restored = TryRestore();
  EXPECT_EQ(restored.code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.message(), HasSubstr("expected shard-0000"));
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DamageTest, RejectsAShardOfAnotherStepOrAttempt) {
  const std::string good = ReadWholeFile(Path(shard0_));
  const Manifest manifest = ReadManifest(folder_);
  const CheckpointContent same{.step = 9, .shards = {{.tensors = {first_}, .values = {{"lr", 0.1}}}, {}}};
  CheckpointContent of_another_step = same;
  of_another_step.step = 10;
  CheckpointContent of_another_attempt = same;
  of_another_attempt.attempt = "11111111-2222-4333-8444-555555555555";
  for (const auto& [content, found] : {std::pair(of_another_step, "of step 10"),
                                       std::pair(of_another_attempt, "attempt 11111111-2222-4333-8444-555555555555")}) {
    const TempDir other;
    const std::string folder = WriteCheckpoint(other / "run", content);
    std::filesystem::copy_file(folder + "/" + shard0_, Path(shard0_),
                               std::filesystem::copy_options::overwrite_existing);
    Rewrite([&](Manifest& changed) { changed.shards[0] = ReadManifest(folder).shards[0]; });

    const Status restored = TryRestore();

    EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << found;
    EXPECT_THAT(restored.message(), AllOf(HasSubstr("of step 9"), HasSubstr(found)));
    EXPECT_TRUE(targets_.untouched());
    WriteWholeFile(Path(shard0_), good);
    WriteManifest(folder_, manifest);
  }
  EXPECT_TRUE(TryRestore().ok());
}

TEST_F(DamageTest, RejectsAShardOfARankBeyondTheWorld) {
  const TempDir other;
  const std::string wider = WriteCheckpoint(other / "run", {.step = 9, .shards = {{}, {}, {.tensors = {second_}}}});
  std::filesystem::copy_file(wider + "/shard-00002.safetensors", Path("shard-00002.safetensors"));
  Rewrite([&](Manifest& changed) { changed.shards[1] = ReadManifest(wider).shards[2]; });

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.message(), AllOf(HasSubstr("shard-00002.safetensors"), HasSubstr("world size 2, found 2")));
  EXPECT_EQ(TryVerify(), restored);
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DamageTest, RejectsPathsOutsideTheFolder) {
  const Manifest good = ReadManifest(folder_);
  for (const std::string path : {"../shard-00000.safetensors", "/etc/hostname", "..", ".", "", "a/b"}) {
    Manifest hostile = good;
    hostile.shards[0].file = path;
    WriteManifest(folder_, hostile);

    EXPECT_EQ(TryRestore().code(), StatusCode::kCorrupt) << path;
  }
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DamageTest, RejectsASymbolicLinkInPlaceOfAShard) {
  std::filesystem::rename(Path(shard0_), directory_ / "elsewhere");
  std::filesystem::create_symlink(directory_ / "elsewhere", Path(shard0_));

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.message(), HasSubstr(shard0_));
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DamageTest, RejectsAFifoWithoutBlocking) {
  std::filesystem::remove(Path(shard0_));
  ASSERT_EQ(::mkfifo(Path(shard0_).c_str(), 0644), 0);

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.message(), HasSubstr(shard0_));
}

TEST_F(DamageTest, RejectsADirectoryInPlaceOfAShard) {
  std::filesystem::remove(Path(shard0_));
  std::filesystem::create_directory(Path(shard0_));

  EXPECT_EQ(TryRestore().code(), StatusCode::kCorrupt);
}

TEST_F(DamageTest, WithoutChecksumsIsFoundByLengthAndHeader) {
  folder_ = WriteCheckpoint(root(), {.step = 10, .checksums = false, .shards = {{.tensors = {first_, second_}}}});
  std::string shard = ReadWholeFile(Path(shard0_));
  const std::string good = shard;
  shard[30] ^= 1;
  WriteWholeFile(Path(shard0_), shard);
  EXPECT_EQ(TryVerify().code(), StatusCode::kCorrupt);
  WriteWholeFile(Path(shard0_), good.substr(0, good.size() - 1));
  EXPECT_EQ(TryVerify().code(), StatusCode::kCorrupt);

  WriteWholeFile(Path(shard0_), good);

  EXPECT_TRUE(TryVerify().ok());
}

TEST_F(DamageTest, IsSkippedOnlyWithFallBack) {
  const SavedTensor newer = MakeTensor("first", DType::kF32, {600000}, 7);
  const std::string newest = WriteCheckpoint(root(), {.step = 10, .shards = {{.tensors = {newer, second_}}}});
  std::string shard = ReadWholeFile(newest + "/" + shard0_);
  shard.back() = static_cast<char>(shard.back() ^ 1);
  WriteWholeFile(newest + "/" + shard0_, shard);

  const Status strict = TryRestore();
  const auto fallen_back = RestoreSelected(Parts(), root(), Latest().FallBack(), 0, targets_.state, {});

  EXPECT_EQ(strict.code(), StatusCode::kCorrupt);
  ASSERT_TRUE(fallen_back.ok()) << fallen_back.status();
  EXPECT_EQ(fallen_back->step, 9);
  EXPECT_EQ(targets_["first"], first_.bytes);
  EXPECT_THAT(fallen_back->passed_over,
              ElementsAre(AllOf(HasSubstr("step-00000000000000000010"), HasSubstr("CRC32C"))));
}

TEST_F(DamageTest, OfAManifestCountsAsNewestAndIsSkippedWithFallBack) {
  const std::string newest = WriteCheckpoint(root(), {.step = 10, .shards = {{.tensors = {first_, second_}}}});
  WriteWholeFile(newest + "/manifest.json", "{}");

  const Status strict = TryRestore();
  const auto fallen_back = RestoreSelected(Parts(), root(), Latest().FallBack(), 0, targets_.state, {});

  EXPECT_EQ(strict.code(), StatusCode::kCorrupt);
  ASSERT_TRUE(fallen_back.ok()) << fallen_back.status();
  EXPECT_EQ(fallen_back->passed_over.size(), 1);
}

TEST_F(DamageTest, OfEveryCandidateIsCorrupt) {
  std::filesystem::remove(Path(shard1_));

  const auto fallen_back = RestoreSelected(Parts(), root(), Latest().FallBack(), 0, targets_.state, {});

  EXPECT_EQ(fallen_back.status().code(), StatusCode::kCorrupt);
}

TEST_F(DamageTest, DoesNotHideAMismatch) {
  WriteCheckpoint(root(), {.step = 10, .shards = {{.tensors = {MakeTensor("other", DType::kF32, {1}, 1)}}}});

  const auto fallen_back = RestoreSelected(Parts(), root(), Latest().FallBack(), 0, targets_.state, {});

  EXPECT_EQ(fallen_back.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
