// The forecast beside the restore itself: from real files it reads exactly the bytes that were forecast.

#include "advice/forecast.h"
#include "advice/numbered_tensors.h"
#include "format/index.h"
#include "restore/restore_fixture.h"
#include "store/names.h"
#include "support/faulty_queue.h"
#include "support/points.h"

namespace cairn {
namespace {

struct Change {
  Layout from;
  Layout to;
};

class ForecastRestoreTest : public RestoreTest, public ::testing::WithParamInterface<Change> {
 protected:
  void WriteShards(const ForecastSave& save) {
    std::vector<SavedShardContent> shards;
    std::vector<std::string> runs;
    for (const ShardHeader& header : save.headers()) {
      SavedShardContent& shard = shards.emplace_back();
      for (const ShardTensor& tensor : header.tensors) {
        shard.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, numbers_.BytesOf(tensor), tensor.part});
      }
      runs.push_back(EncodeIndexRun(header));
    }
    folder_ = WriteCheckpoint(root(), {.step = 1, .attempt = save.headers()[0].attempt, .shards = std::move(shards)});
    const std::optional<BuiltIndex> index = BuildIndex(runs);
    ASSERT_TRUE(index.has_value());
    WriteWholeFile(folder_ + "/" + std::string(kIndexName), index->bytes);
    Manifest manifest = ReadManifest(folder_);
    manifest.index = ManifestIndex{.file = std::string(kIndexName),
                                   .length = index->bytes.size(),
                                   .head = index->head_bytes,
                                   .digest = index->head_digest};
    WriteManifest(folder_, manifest);
  }
  /// What has been read of each shard.
  [[nodiscard]] std::map<std::string, std::uint64_t> BytesRead() const {
    std::map<std::string, std::uint64_t> bytes;
    for (const SeenOperation& one : plan_->Seen()) {
      const std::string name = one.path.substr(one.path.rfind('/') + 1);
      if (one.op != IoOp::kRead || !name.starts_with("shard-")) continue;
      bytes[name] += static_cast<std::uint64_t>(one.result.value_or(0));
    }
    return bytes;
  }

  NumberedTensors numbers_;
  static Model MakeModel() {
    Model model = NumberedTensors::Gpt(
        {.layers = 4, .hidden = 192, .heads = 8, .feed_forward = 768, .positions = 64, .vocabulary = 999});
    // It is on each stage, and its parts are on each rank.
    model.tensors.push_back({.name = "empty", .shape = {0, 8}, .stages = ModelTensor::Stages::kAll, .cut = 1});
    return model;
  }

  const Model model_ = MakeModel();
  std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::string folder_;
};

TEST_P(ForecastRestoreTest, RestoreReadsExactlyTheForecastBytes) {
  const auto [from, to] = GetParam();
  const auto save = ForecastSave::Make(model_, from);
  ASSERT_TRUE(save.ok()) << save.status();
  WriteShards(*save);

  Sample tried(3);
  for (int rank = 0; rank < to.ranks(); ++rank) {
    if (to.ranks() > 3 && !tried.Takes()) continue;
    SCOPED_TRACE(rank);
    const auto forecast = ForecastRestore(*save, model_, to, rank, pool_->chunk_bytes());
    ASSERT_TRUE(forecast.ok()) << forecast.status();
    Targets targets;
    std::map<std::string, std::string> expected;
    for (std::size_t i = 0; i < forecast->table->size(); ++i) {
      const TensorEntry& entry = (*forecast->table)[i];
      const ShardTensor tensor{
          .name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .end = entry.bytes(), .part = entry.part};
      expected[entry.name] = numbers_.BytesOf(tensor);
      targets.Add({entry.name, entry.dtype, entry.shape, expected[entry.name], entry.part});
    }
    plan_ = FaultPlan::Make();
    RestoreParts parts = Parts();
    parts.queue = plan_->Wrap(std::move(parts.queue));
    parts.on_event = [](const Event& event) { ADD_FAILURE() << event.message; };

    const auto restored = RestoreSelected(parts, root(), Latest(), rank, targets.state, {});

    ASSERT_TRUE(restored.ok()) << restored.status();
    for (const auto& [name, bytes] : expected) ASSERT_TRUE(targets[name] == bytes) << name;
    std::map<std::string, std::uint64_t> read;
    for (const ShardForecast& shard : forecast->shards) read[ShardName(shard.shard)] = shard.read + shard.header;
    EXPECT_EQ(BytesRead(), read);
  }
}

INSTANTIATE_TEST_SUITE_P(Changes, ForecastRestoreTest,
                         ::testing::Values(Change{{4, 2, 2}, {4, 2, 1}}, Change{{4, 2, 1}, {2, 2, 1}},
                                           Change{{2, 2, 1}, {4, 2, 2}}, Change{{2, 4, 1}, {2, 4, 1}},
                                           Change{{1, 1, 1}, {1, 4, 1}}, Change{{2, 4, 2}, {1, 1, 1}}),
                         [](const auto& change) {
                           std::string name = ToString(change.param.from) + "To" + ToString(change.param.to);
                           std::erase(name, ',');
                           return "From" + name;
                         });

}  // namespace
}  // namespace cairn
