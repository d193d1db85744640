// A restore takes the header that an inspection decoded, only if the file and its header are still the same.
#include <filesystem>
#include <functional>

#include "restore_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class KeptHeaderTest : public RestoreTest {
 protected:
  KeptHeaderTest() { targets_.Add(saved_); }

  [[nodiscard]] RestoreParts KeepingParts() {
    RestoreParts parts = Parts();
    parts.kept = &kept_;
    return parts;
  }
  std::string Write(const std::string& attempt) {
    return WriteCheckpoint(root(), {.attempt = attempt, .shards = {{.tensors = {saved_}, .values = values_}}});
  }
  void Inspect(const std::string& folder) {
    const auto details = InspectCheckpoint(KeepingParts(), Read(folder), {.rank = 0, .names = {}});
    ASSERT_TRUE(details.ok()) << details.status();
    EXPECT_EQ(details->values.at(0), values_);
  }
  /// Inspects, changes what was kept, and restores. The header in the file has the right sums.
  [[nodiscard]] Result<Restored> RestoreMarked(const std::string& folder,
                                               const std::function<void(ShardFile&)>& change) {
    Inspect(folder);
    std::unique_ptr<ShardFile> kept = kept_.Take();
    EXPECT_NE(kept, nullptr);
    if (kept == nullptr) return Status(StatusCode::kInternal, "nothing was kept");
    kept->header.sums.at(0) ^= 1;
    change(*kept);
    kept_.Put(std::move(kept));
    return RestoreAgain(folder);
  }
  [[nodiscard]] Result<Restored> RestoreAgain(const std::string& folder) {
    RestoreParts parts = KeepingParts();
    parts.values = wants_values_;
    return RestoreCheckpoint(parts, Read(folder), 0, targets_.state, {});
  }

  const SavedTensor saved_ = MakeTensor("weight", DType::kF32, {1000}, 1);
  const Values values_{{"epoch", std::int64_t{7}}};
  bool wants_values_ = false;
  KeptHeader kept_;
  Targets targets_;
};

TEST_F(KeptHeaderTest, IsTakenOnce) {
  const std::string folder = Write("first");
  const auto restored = RestoreMarked(folder, [](ShardFile& /*kept*/) {});
  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(kept_.Take(), nullptr);

  const auto again = RestoreAgain(folder);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(targets_["weight"], saved_.bytes);
}

TEST_F(KeptHeaderTest, IsNotTakenWhereValuesAreWantedWhichItLacks) {
  wants_values_ = true;
  const auto restored = RestoreMarked(Write("first"), [](ShardFile& /*kept*/) {});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->values, values_);
}

TEST_F(KeptHeaderTest, IsNotTakenForAnotherFileOrHeader) {
  const std::string folder = Write("first");
  const std::map<std::string, std::function<void(ShardFile&)>> changes{
      {"name", [](ShardFile& kept) { kept.name += "x"; }}, {"device", [](ShardFile& kept) { ++kept.device; }},
      {"inode", [](ShardFile& kept) { ++kept.inode; }},    {"length", [](ShardFile& kept) { ++kept.length; }},
      {"digest", [](ShardFile& kept) { ++kept.digest; }},
  };
  for (const auto& [what, change] : changes) {
    const auto restored = RestoreMarked(folder, change);
    ASSERT_TRUE(restored.ok()) << what << ": " << restored.status();
    EXPECT_EQ(kept_.Take(), nullptr) << what;
  }
}

TEST_F(KeptHeaderTest, AHeaderDamagedAfterTheInspectionIsRefused) {
  const std::string folder = Write("first");
  Inspect(folder);
  const std::string path = folder + "/" + ReadManifest(folder).shards.at(0).file;
  std::string bytes = ReadWholeFile(path);
  const std::size_t at = bytes.find("weight");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'W';
  WriteWholeFile(path, bytes);

  const auto restored = RestoreAgain(folder);

  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.status().message(), HasSubstr("header digest"));
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(KeptHeaderTest, ADamagedBlockOrACutFileIsRefused) {
  const std::string folder = Write("first");
  const std::string path = folder + "/" + ReadManifest(folder).shards.at(0).file;
  const std::string good = ReadWholeFile(path);
  std::string damaged = good;
  damaged.back() = static_cast<char>(damaged.back() + 1);
  for (const std::string& bytes : {damaged, good.substr(0, good.size() - 1)}) {
    WriteWholeFile(path, good);
    Inspect(folder);
    WriteWholeFile(path, bytes);
    EXPECT_EQ(RestoreAgain(folder).status().code(), StatusCode::kCorrupt) << bytes.size();
  }
}

TEST_F(KeptHeaderTest, ACheckpointInTheSamePlaceIsReadAnew) {
  const std::string folder = Write("first");
  Inspect(folder);
  std::filesystem::remove_all(folder);
  ASSERT_EQ(Write("second"), folder);

  const auto restored = RestoreAgain(folder);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->attempt, "second");
  EXPECT_EQ(targets_["weight"], saved_.bytes);
}

}  // namespace
}  // namespace cairn
