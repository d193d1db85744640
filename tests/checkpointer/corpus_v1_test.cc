// Checkpoints written by the first version of the format (tests/format/corpus-v1), read by the current code.

#include "checkpointer/corpus_v1.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "store/writer.h"
#include "support/all_ranks.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using Ranks = std::vector<std::unique_ptr<Checkpointer>>;
using std::filesystem::path;

const path kCorpus = CAIRN_CORPUS_V1;

std::unique_ptr<Checkpointer> Open(const path& root, bool read_only = true,
                                   const std::shared_ptr<Group>& group = nullptr) {
  auto opened = Checkpointer::Open({.root = root,
                                    .read_only = read_only,
                                    .group = group,
                                    .host_memory_bytes = 4_MiB,
                                    .chunk_bytes = 1_MiB,
                                    .queue_depth = 2,
                                    .worker_threads = 2});
  if (!opened.ok()) throw std::runtime_error(opened.status().ToString());
  return *std::move(opened);
}

Ranks OpenRanks(int world) {
  Ranks ranks;
  for (const auto& group : MakeLocalGroup(world)) ranks.push_back(Open(kCorpus / "ranks", true, group));
  return ranks;
}

/// Every file and folder of the corpus with its size and modification time.
std::map<std::string, std::pair<std::uintmax_t, std::filesystem::file_time_type>> Listing() {
  std::map<std::string, std::pair<std::uintmax_t, std::filesystem::file_time_type>> listing;
  listing[""] = {0, std::filesystem::last_write_time(kCorpus)};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kCorpus)) {
    listing[entry.path()] = {entry.is_regular_file() ? entry.file_size() : 0, entry.last_write_time()};
  }
  return listing;
}

/// The corpus is opened read-only and may not change; writers use a copy.
class CorpusV1 : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(Listing(), before_); }

  static path Copy(const TempDir& dir, const std::string& root) {
    const path copy = dir / root;
    std::filesystem::copy(kCorpus / root, copy, std::filesystem::copy_options::recursive);
    return copy;
  }

 private:
  const decltype(Listing()) before_ = Listing();
};

TEST_F(CorpusV1, VerifiesEveryCheckpoint) {
  const std::map<std::string, std::vector<std::uint64_t>> steps{{"single", {1000, 2000, 1500}},
                                                                {"ranks", {7}},
                                                                {"large", {1}},
                                                                {"unchecked", {3}},
                                                                {"kept", {1, 2}},
                                                                {"tree", {4}},
                                                                {"replicas", {5}},
                                                                {"dcp", {6}},
                                                                {"long_values", {8}}};

  for (const auto& [root, wanted] : steps) {
    const auto checkpointer = Open(kCorpus / root);
    const auto list = checkpointer->List();

    ASSERT_TRUE(list.ok()) << list.status();
    std::vector<std::uint64_t> found;
    for (const CheckpointInfo& info : *list) {
      found.push_back(info.step);
      EXPECT_EQ(info.status, Status::Ok());
      EXPECT_EQ(checkpointer->Verify(Step(info.step)), Status::Ok()) << info.path;
    }
    EXPECT_EQ(found, wanted) << root;
  }
}

TEST_F(CorpusV1, ListsTwoLinesWithPinAndParent) {
  const auto checkpointer = Open(kCorpus / "single");

  const auto list = checkpointer->List();

  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(*list, Each(Field(&CheckpointInfo::world, 1U)));
  EXPECT_THAT(*list, Each(Field(&CheckpointInfo::attempt, SizeIs(36))));
  EXPECT_THAT(*list, ElementsAre(Field(&CheckpointInfo::step, 1000U), Field(&CheckpointInfo::step, 2000U),
                                 Field(&CheckpointInfo::step, 1500U)));
  EXPECT_THAT(*list, ElementsAre(Field(&CheckpointInfo::line, 0U), Field(&CheckpointInfo::line, 0U),
                                 Field(&CheckpointInfo::line, 1U)));
  EXPECT_THAT(*list, ElementsAre(Field(&CheckpointInfo::parent, std::nullopt),
                                 Field(&CheckpointInfo::parent, std::nullopt), Field(&CheckpointInfo::parent, 1000U)));
  EXPECT_THAT(*list, ElementsAre(Field(&CheckpointInfo::pinned, true), Field(&CheckpointInfo::pinned, false),
                                 Field(&CheckpointInfo::pinned, false)));
}

TEST_F(CorpusV1, RestoresEveryDTypeShapeAndValueOfEachStep) {
  const auto checkpointer = Open(kCorpus / "single");
  for (const std::uint64_t step : {1000ULL, 2000ULL, 1500ULL}) {
    CorpusState state = CorpusSingle();

    const auto restored = checkpointer->Restore(Step(step), state.state());

    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_THAT(state.Wrong(step), IsEmpty());
    EXPECT_THAT(state.Wrong(step + 500), SizeIs(Gt(25U))) << "of 35 non-empty ones: the steps differ";
    EXPECT_EQ(restored->values, CorpusSingleValues(step));
    EXPECT_TRUE(std::signbit(std::get<double>(restored->values.at("minus zero"))));
    EXPECT_EQ(restored->line, step == 1500 ? 1U : 0U);
  }
}

TEST_F(CorpusV1, RestoresTheNewestLineAsTheLatest) {
  const auto checkpointer = Open(kCorpus / "single");
  CorpusState state = CorpusSingle();

  const auto restored = checkpointer->Restore(Latest(), state.state());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 1500U);
  EXPECT_EQ(restored->attempt, checkpointer->List()->back().attempt);
  EXPECT_THAT(state.Wrong(1500), IsEmpty());
}

TEST_F(CorpusV1, ListsTiedTensorsWithTheirHolders) {
  const auto details = Open(kCorpus / "single")->Inspect(Latest());

  ASSERT_TRUE(details.ok()) << details.status();
  std::map<std::string, std::string> tied;
  for (const TensorInfo& tensor : details->tensors) {
    if (!tensor.alias_of.empty()) tied[tensor.name] = tensor.alias_of;
  }
  EXPECT_EQ(tied, (std::map<std::string, std::string>{{"head.weight", "BF16.matrix"},
                                                      {"tied \xf0\x9f\x90\xa7", "F32.matrix"}}));
}

TEST_F(CorpusV1, RestoresTensorsAcrossChecksumBlocks) {
  const auto checkpointer = Open(kCorpus / "large");
  CorpusState state = CorpusLarge();

  const auto restored = checkpointer->Restore(Latest(), state.state());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GT(restored->bytes, 1_MiB);
  EXPECT_THAT(state.Wrong(1), IsEmpty());
}

TEST_F(CorpusV1, RestoresWithoutChecksums) {
  const auto checkpointer = Open(kCorpus / "unchecked");
  CorpusState state = CorpusUnchecked();

  const auto restored = checkpointer->Restore(Latest(), state.state());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->tensors, 2U);
  EXPECT_THAT(state.Wrong(3), IsEmpty());
}

TEST_F(CorpusV1, RestoresWhatStepOneKept) {
  const auto checkpointer = Open(kCorpus / "kept");
  for (const std::uint64_t step : {1U, 2U}) {
    CorpusState state = CorpusUnchecked();
    CorpusState frozen = CorpusFrozen();
    frozen.FreezeIn(state.state());

    const auto restored = checkpointer->Restore(Step(step), state.state());

    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->tensors, 3U);
    EXPECT_THAT(state.Wrong(step), IsEmpty());
    EXPECT_THAT(frozen.Wrong(1), IsEmpty());
  }
  EXPECT_THAT(*checkpointer->List(), ElementsAre(Field(&CheckpointInfo::frozen, Frozen::kWritten),
                                                 Field(&CheckpointInfo::frozen, Frozen::kLinked)));
}

TEST_F(CorpusV1, RestoresThreeRanksOnOtherNumbersOfRanks) {
  for (const int world : {3, 2, 1, 5}) {
    const Ranks ranks = OpenRanks(world);
    OnAllRanks(world, [&](int rank) {
      CorpusState state = CorpusRank(rank, world);

      const auto restored = ranks[static_cast<std::size_t>(rank)]->Restore(Latest(), state.state());

      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_THAT(state.Wrong(7), IsEmpty()) << "rank " << rank << " of " << world;
      EXPECT_EQ(restored->values, rank < kCorpusRanks ? CorpusRankValues(rank) : Values{});
    });
  }
}

TEST_F(CorpusV1, RestoresCutTensorsAsWhole) {
  const auto checkpointer = Open(kCorpus / "ranks");
  CorpusState state;
  state.Add("cut.rows", DType::kF32, {7, 6});
  state.Add("cut.columns", DType::kBF16, {4, 9});
  state.Add("cut.boxes", DType::kI16, {4, 4, 3});

  const auto restored = checkpointer->Restore(Latest(), state.state());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_THAT(state.Wrong(7), IsEmpty());
}

TEST_F(CorpusV1, HoldsReplicatedTensorsOnce) {
  const auto details = Open(kCorpus / "ranks")->Inspect(Latest());

  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->info.world, 3U);
  EXPECT_THAT(details->values, SizeIs(3));
  std::map<std::string, std::vector<std::string>> files;
  for (const TensorInfo& tensor : details->tensors) files[tensor.name].push_back(tensor.file);
  EXPECT_THAT(files.at("replicated.bias"), SizeIs(1));
  EXPECT_THAT(files.at("replicated.counts"), SizeIs(1));
  EXPECT_THAT(files.at("replicated.step"), ElementsAre("shard-00000.safetensors"));
  EXPECT_THAT(files.at("cut.rows"), SizeIs(3));
}

TEST_F(CorpusV1, FindsTheLastBitFlippedInACopy) {
  const TempDir dir;
  const path copy = Copy(dir, "large");
  std::fstream shard(copy / "step-00000000000000000001/shard-00000.safetensors",
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekg(-1, std::ios::end);
  const int last = shard.peek();
  shard.seekp(-1, std::ios::end);
  shard.put(static_cast<char>(last ^ 1));
  shard.close();

  const Status status = Open(copy)->Verify(Latest());

  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("shard-00000.safetensors"));
}

TEST_F(CorpusV1, CurrentWriterContinuesInACopy) {
  const TempDir dir;
  const auto checkpointer = Open(Copy(dir, "single"), false);
  CorpusState state = CorpusSingle();
  ASSERT_TRUE(checkpointer->Restore(Latest(), state.state()).ok());
  state.Fill(1600);

  const auto save = checkpointer->Save(1600, state.state());

  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(save->WaitDurable(Deadline::In(std::chrono::seconds(60))), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(), Status::Ok());
  const auto list = checkpointer->List();
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->back().step, 1600U);
  EXPECT_EQ(list->back().line, 2U);
  // The root has got an id and a line counter, which the first writers of version 1 did not know.
  EXPECT_THAT(list->back().root, SizeIs(36));
  EXPECT_THAT(*list, Each(Field(&CheckpointInfo::copy, false)));
  EXPECT_EQ(list->front().root, "");
  const auto record = ReadWriter(dir / "single");
  ASSERT_TRUE(record.ok() && *record) << record.status();
  EXPECT_EQ((*record)->root, list->back().root);
  EXPECT_EQ((*record)->line, 2U);
  EXPECT_THAT(*list, IsSupersetOf({Field(&CheckpointInfo::step, 1000U), Field(&CheckpointInfo::step, 1500U)}));
  EXPECT_EQ(checkpointer->Verify(Step(1600)), Status::Ok());
}

}  // namespace
}  // namespace cairn
