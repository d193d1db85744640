// Checkpoints with kept files: what each rank opens, and what is found to be wrong.

#include <set>

#include "restore_fixture.h"
#include "store/names.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Three ranks with a tensor each, of which ranks 0 and 2 have kept files.
class KeptFilesTest : public RestoreTest {
 protected:
  static constexpr std::uint64_t kStep = 7;

  static CheckpointContent Content() {
    CheckpointContent content{.step = kStep};
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      content.shards.push_back({.tensors = {MakeTensor(Name("own", rank), DType::kF32, {5}, rank)}});
      content.shards.back().values.emplace("rank", std::int64_t{rank});
    }
    for (const std::uint32_t rank : {2U, 0U}) {
      content.kept.push_back(
          {.origin = {.rank = rank, .step = 3, .attempt = "before"},
           .content = {.tensors = {MakeTensor(Name("frozen", rank), DType::kBF16, {700'001}, 10 + rank)},
                       .aliases = {{Name("tied", rank), Name("frozen", rank)}}}});
    }
    return content;
  }
  static std::string Name(const char* kind, std::uint32_t rank) { return kind + std::to_string(rank); }
  static const SavedTensor& Own(std::uint32_t rank) { return content_.shards[rank].tensors.front(); }
  static const SavedTensor& Frozen(std::uint32_t rank) { return content_.kept[rank == 2 ? 0 : 1].content.tensors[0]; }
  [[nodiscard]] RestoreParts WatchedParts() {
    RestoreParts parts = Parts();
    parts.queue = plan_->Wrap(std::move(parts.queue));
    parts.on_event = [this](const Event& event) { events_.push_back(event.message); };
    return parts;
  }
  [[nodiscard]] std::set<std::string> OpenedFiles() const {
    std::set<std::string> opened;
    for (const SeenOperation& one : plan_->Seen()) {
      if (one.op == IoOp::kOpen) opened.insert(one.path.substr(one.path.rfind('/') + 1));
    }
    return opened;
  }

  inline static const CheckpointContent content_ = Content();
  const std::string folder_ = WriteCheckpoint(root(), content_);
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::vector<std::string> events_;
};

TEST_F(KeptFilesTest, ARankOpensItsShardAndItsKeptFileAlone) {
  Targets wanted;
  wanted.Add(Own(2));
  wanted.Add(Frozen(2));
  wanted.Add("tied2", Frozen(2));

  const auto restored = RestoreSelected(WatchedParts(), root(), Latest(), 2, wanted.state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(wanted["own2"], Own(2).bytes);
  EXPECT_EQ(wanted["frozen2"], Frozen(2).bytes);
  EXPECT_EQ(wanted["tied2"], Frozen(2).bytes);
  EXPECT_THAT(restored->values, ElementsAre(testing::Pair("rank", Value(std::int64_t{2}))));
  EXPECT_THAT(OpenedFiles(), UnorderedElementsAre(ShardName(2), KeptName(2, "before")));
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(KeptFilesTest, AnotherWorldFindsAll) {
  Targets wanted;
  for (const std::uint32_t rank : {0U, 1U, 2U}) wanted.Add(Own(rank));
  for (const std::uint32_t rank : {0U, 2U}) wanted.Add(Frozen(rank));

  const auto restored = RestoreSelected(WatchedParts(), root(), Latest(), 5, wanted.state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  for (const std::uint32_t rank : {0U, 1U, 2U}) EXPECT_EQ(wanted[Own(rank).name], Own(rank).bytes);
  for (const std::uint32_t rank : {0U, 2U}) EXPECT_EQ(wanted[Frozen(rank).name], Frozen(rank).bytes);
}

TEST_F(KeptFilesTest, DetailsHaveTheTensorsOfBothAndTheValuesOfTheShards) {
  const auto all = InspectSelected(root(), Latest());
  const auto part = InspectSelected(WatchedParts(), root(), Latest(), {.rank = 2});

  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->tensors.size(), 7U);
  ASSERT_EQ(all->values.size(), 3U);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(all->values[static_cast<std::size_t>(rank)].at("rank"), Value(rank));
  }
  ASSERT_TRUE(part.ok()) << part.status();
  std::vector<std::string> names;
  for (const TensorInfo& tensor : part->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("frozen2", "own2", "tied2"));
}

TEST_F(KeptFilesTest, VerifyFindsDamageInAKeptFile) {
  const std::string path = folder_ + "/" + KeptName(0, "before");
  std::string bytes = ReadWholeFile(path);
  EXPECT_EQ(VerifySelected(Parts(), root(), Latest(), {}), Status::Ok());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteWholeFile(path, bytes);

  const Status verified = VerifySelected(Parts(), root(), Latest(), {});

  EXPECT_EQ(verified.code(), StatusCode::kCorrupt);
  EXPECT_THAT(verified.message(), HasSubstr(KeptName(0, "before")));
}

TEST_F(KeptFilesTest, AKeptFileOfAnotherSaveOrRankIsCorrupt) {
  const Manifest manifest = ReadManifest(folder_);
  const auto edited = [&](const std::function<void(ManifestShard&)>& edit) {
    Manifest other = manifest;
    edit(other.shards.back());
    WriteManifest(folder_, other);
    return VerifySelected(Parts(), root(), Latest(), {});
  };

  for (const Status& status :
       {edited([](ManifestShard& kept) { kept.kept->step = 4; }),
        edited([](ManifestShard& kept) { kept.kept->attempt = "after"; }),
        edited([](ManifestShard& kept) { kept.kept->rank = 1; }), edited([&](ManifestShard& kept) {
          kept.kept = KeptOrigin{1, kStep, manifest.attempt};
        }),
        edited([](ManifestShard& kept) { kept.length += 4; })}) {
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status;
    EXPECT_THAT(status.message(), HasSubstr(KeptName(0, "before")));
  }
}

}  // namespace
}  // namespace cairn
