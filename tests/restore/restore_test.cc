#include <filesystem>

#include "base/strided.h"
#include "restore_fixture.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RestoreTest, RestoresEveryByteAndValue) {
  const std::vector<SavedTensor> saved{
      MakeTensor("layer.weight", DType::kF32, {300, 1000}, 1), MakeTensor("layer.bias", DType::kBF16, {1001}, 2),
      MakeTensor("step", DType::kI64, {}, 3), MakeTensor("nothing", DType::kF32, {0, 7}, 4),
      MakeTensor("größe/重み \"x\"\n", DType::kU8, {3}, 5)};
  const Values values{{"lr", 0.1}, {"epoch", std::int64_t{7}}, {"note", std::string("a\nb")}};
  const std::string folder =
      WriteCheckpoint(root(), {.step = 42, .line = 3, .shards = {{.tensors = saved, .values = values}}});
  Targets targets;
  for (const SavedTensor& tensor : saved) targets.Add(tensor);

  const auto restored = RestoreSelected(Parts(), root(), Latest(), 0, targets.state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  for (const SavedTensor& tensor : saved) EXPECT_EQ(targets[tensor.name], tensor.bytes) << tensor.name;
  EXPECT_EQ(restored->step, 42);
  EXPECT_EQ(restored->line, 3);
  EXPECT_EQ(restored->tensors, 5);
  EXPECT_EQ(restored->bytes, targets.state.bytes());
  EXPECT_EQ(restored->values, values);
}

TEST_F(RestoreTest, RestoresAStateOfManyChunksThroughAPoolOfOne) {
  MakePool(1);
  const SavedTensor big = MakeTensor("big", DType::kU8, {9 * (1 << 20) + 12345}, 1);
  const SavedTensor small = MakeTensor("small", DType::kF64, {77}, 2);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {big, small}}}});
  Targets targets;
  targets.Add(big);
  targets.Add(small);

  const auto restored = Restore(folder, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["big"], big.bytes);
  EXPECT_EQ(targets["small"], small.bytes);
  EXPECT_EQ(pool_->peak_bytes(), kChunk);
}

TEST_F(RestoreTest, RestoresASubsetByNameAndPattern) {
  const std::vector<SavedTensor> saved{
      MakeTensor("model.0.weight", DType::kF32, {400000}, 1), MakeTensor("model.0.bias", DType::kF32, {10}, 2),
      MakeTensor("model.1.weight", DType::kF32, {10}, 3), MakeTensor("optimizer.state", DType::kF32, {400000}, 4)};
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = saved}}});
  Targets targets;
  for (const SavedTensor& tensor : saved) targets.Add(tensor);

  const auto restored = Restore(folder, targets, {.names = {"model.?.weight", "model.0.bias"}});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->tensors, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(targets[saved[i].name], saved[i].bytes);
  EXPECT_EQ(targets["optimizer.state"], std::string(1600000, Targets::kUntouched));
}

TEST_F(RestoreTest, ReadsOnlyTheBlocksOfASubset) {
  std::vector<SavedTensor> saved;
  for (int i = 0; i < 8; ++i) saved.push_back(MakeTensor("t" + std::to_string(i), DType::kU8, {1 << 20}, i));
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = saved}}});
  // Damage in a block that the subset does not need.
  std::string shard = ReadWholeFile(folder + "/shard-00000.safetensors");
  shard.back() = static_cast<char>(shard.back() ^ 1);
  WriteWholeFile(folder + "/shard-00000.safetensors", shard);
  Targets targets;
  for (const SavedTensor& tensor : saved) targets.Add(tensor);

  const auto part = Restore(folder, targets, {.names = {"t3", "t5"}});
  const auto whole = Restore(folder, targets);

  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(targets["t3"], saved[3].bytes);
  EXPECT_EQ(targets["t5"], saved[5].bytes);
  EXPECT_EQ(whole.status().code(), StatusCode::kCorrupt);
}

TEST_F(RestoreTest, FillsStridedTargets) {
  const SavedTensor saved = MakeTensor("m", DType::kF32, {700, 500}, 1);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {saved}}}});
  std::vector<float> transposed(500 * 700, -1.0F);
  State state;
  ASSERT_TRUE(state.Add("m", {.data = transposed.data(), .shape = {700, 500}, .strides = {1, 700}}).ok());

  const auto restored = RestoreSelected(Parts(), {}, Folder(folder), 0, state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  std::string logical(saved.bytes.size(), '\0');
  const std::vector<std::int64_t> shape{700, 500};
  const std::vector<std::int64_t> strides{1, 700};
  GatherBytes(MakeStridedLayout(transposed.data(), 4, shape, strides), 0, logical.size(),
              reinterpret_cast<std::byte*>(logical.data()));
  EXPECT_EQ(logical, saved.bytes);
}

TEST_F(RestoreTest, ResolvesTiedTensorsToTheHoldersBytes) {
  const SavedTensor head = MakeTensor("head", DType::kF32, {1000}, 1);
  const std::string folder =
      WriteCheckpoint(root(), {.shards = {{.tensors = {head}, .aliases = {{"embedding", "head"}}}}});
  Targets targets;
  targets.Add("embedding", head);

  const auto restored = Restore(folder, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["embedding"], head.bytes);
}

TEST_F(RestoreTest, ResolvesTiedTensorsWithinTheirShard) {
  // Both shards have a "head"; the tied name is only in the second.
  const SavedTensor mine = MakeTensor("head", DType::kF32, {1000}, 1);
  const SavedTensor theirs = MakeTensor("head", DType::kF32, {1000}, 2);
  const std::string folder = WriteCheckpoint(
      root(), {.shards = {{.tensors = {mine}}, {.tensors = {theirs}, .aliases = {{"embedding", "head"}}}}});
  Targets targets;
  targets.Add(mine);
  targets.Add("embedding", theirs);

  const auto restored = Restore(folder, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["head"], mine.bytes);
  EXPECT_EQ(targets["embedding"], theirs.bytes);
}

TEST_F(RestoreTest, ChecksTheLastByteAroundABlockBoundary) {
  for (const std::int64_t bytes : {(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 1}) {
    const SavedTensor saved = MakeTensor("t", DType::kU8, {bytes}, 1);
    const std::string folder =
        WriteCheckpoint(root(), {.step = static_cast<std::uint64_t>(bytes), .shards = {{.tensors = {saved}}}});
    Targets targets;
    targets.Add(saved);

    const auto restored = Restore(folder, targets);

    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(targets["t"], saved.bytes) << bytes;
    std::string shard = ReadWholeFile(folder + "/shard-00000.safetensors");
    shard.back() = static_cast<char>(shard.back() ^ 1);
    WriteWholeFile(folder + "/shard-00000.safetensors", shard);
    EXPECT_EQ(Restore(folder, targets).status().code(), StatusCode::kCorrupt) << bytes;
  }
}

TEST_F(RestoreTest, ReadsABlockForOneByte) {
  // The first ends one byte beyond a MiB, so its last byte is in the block of the second.
  const SavedTensor first = MakeTensor("a", DType::kU8, {(1 << 20) + 1}, 1);
  const SavedTensor second = MakeTensor("b", DType::kU8, {(1 << 20) - 1}, 2);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {first, second}}}});
  Targets targets;
  targets.Add(first);

  const auto restored = Restore(folder, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["a"], first.bytes);
}

TEST_F(RestoreTest, WritesOverlappingTargetsOneAtATime) {
  const SavedTensor flat = MakeTensor("flat", DType::kU8, {3 << 20}, 1);
  SavedTensor view = MakeTensor("view", DType::kU8, {1 << 20}, 2);
  view.bytes = flat.bytes.substr(1 << 20, 1 << 20);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {flat, view}}}});
  std::string memory(3 << 20, Targets::kUntouched);
  State state;
  ASSERT_TRUE(state.Add("flat", {.data = memory.data(), .dtype = DType::kU8, .shape = {3 << 20}}).ok());
  ASSERT_TRUE(state.Add("view", {.data = memory.data() + (1 << 20), .dtype = DType::kU8, .shape = {1 << 20}}).ok());

  const auto restored = RestoreSelected(Parts(), {}, Folder(folder), 0, state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(memory, flat.bytes);
}

TEST_F(RestoreTest, MergesShardsAndPrefersTheRanksOwn) {
  const SavedTensor shared = MakeTensor("shared", DType::kF32, {100}, 1);
  const SavedTensor mine0 = MakeTensor("rng", DType::kU8, {16}, 2);
  const SavedTensor mine1 = MakeTensor("rng", DType::kU8, {16}, 3);
  const std::string folder =
      WriteCheckpoint(root(), {.shards = {{.tensors = {shared, mine0}, .values = {{"rank", std::int64_t{0}}}},
                                          {.tensors = {mine1}, .values = {{"rank", std::int64_t{1}}}}}});
  Targets targets;
  targets.Add(shared);
  targets.Add(mine1);

  const auto restored = RestoreSelected(Parts(), {}, Folder(folder), 1, targets.state, {});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["shared"], shared.bytes);
  EXPECT_EQ(targets["rng"], mine1.bytes);
  EXPECT_EQ(restored->values, (Values{{"rank", std::int64_t{1}}}));
}

TEST_F(RestoreTest, RejectsAMismatchBeforeWriting) {
  const SavedTensor good = MakeTensor("good", DType::kF32, {100}, 1);
  const SavedTensor other = MakeTensor("other", DType::kF32, {100}, 2);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {good, other}}}});
  Targets targets;
  targets.Add(good);
  targets.Add("other", MakeTensor("other", DType::kF32, {50, 2}, 2));

  const auto restored = Restore(folder, targets);

  EXPECT_EQ(restored.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(restored.status().message(), HasSubstr("tensor \"other\": expected F32 [50, 2], found F32 [100]"));
  EXPECT_TRUE(targets.untouched());
}

TEST_F(RestoreTest, LeavesMissingTensorsUntouchedIfAllowed) {
  const SavedTensor good = MakeTensor("good", DType::kF32, {100}, 1);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {good}}}});
  Targets targets;
  targets.Add(good);
  targets.Add(MakeTensor("absent", DType::kF32, {9}, 2));

  const auto refused = Restore(folder, targets);
  const auto restored = Restore(folder, targets, {.allow_missing = true});

  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_THAT(restored->missing, ElementsAre("absent"));
  EXPECT_EQ(targets["absent"], std::string(36, Targets::kUntouched));
}

TEST_F(RestoreTest, ReadsACopiedFolder) {
  const SavedTensor saved = MakeTensor("t", DType::kF32, {1000}, 1);
  const std::string folder = WriteCheckpoint(root(), {.step = 5, .shards = {{.tensors = {saved}}}});
  const std::string copy = directory_ / "somewhere-else";
  std::filesystem::copy(folder, copy);
  Targets targets;
  targets.Add(saved);

  const auto restored = Restore(copy, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 5);
  EXPECT_EQ(targets["t"], saved.bytes);
}

TEST_F(RestoreTest, RestoresWithoutChecksums) {
  const SavedTensor saved = MakeTensor("t", DType::kF32, {700000}, 1);
  const std::string folder = WriteCheckpoint(root(), {.checksums = false, .shards = {{.tensors = {saved}}}});
  Targets targets;
  targets.Add(saved);

  const auto restored = Restore(folder, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["t"], saved.bytes);
}

TEST_F(RestoreTest, InspectsNamesShapesAndValuesWithoutReadingTensors) {
  const SavedTensor head = MakeTensor("head", DType::kF32, {10, 5}, 1);
  const SavedTensor bias = MakeTensor("bias", DType::kBF16, {5}, 2);
  WriteCheckpoint(root(), {.step = 8,
                           .shards = {{.tensors = {head}, .aliases = {{"embedding", "head"}}},
                                      {.tensors = {bias}, .values = {{"lr", 0.5}}}}});

  const auto details = InspectSelected(root(), Step(8));

  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->info.step, 8);
  ASSERT_EQ(details->tensors.size(), 3);
  EXPECT_EQ(details->tensors[0].name, "bias");
  EXPECT_EQ(details->tensors[0].file, "shard-00001.safetensors");
  EXPECT_EQ(details->tensors[1].name, "embedding");
  EXPECT_EQ(details->tensors[1].alias_of, "head");
  EXPECT_THAT(details->tensors[2].shape, ElementsAre(10, 5));
  EXPECT_EQ(details->tensors[2].bytes, 200);
  ASSERT_EQ(details->values.size(), 2);
  EXPECT_EQ(details->values[1], (Values{{"lr", 0.5}}));
}

TEST_F(RestoreTest, VerifiesEveryByteAndReportsProgress) {
  const SavedTensor saved = MakeTensor("t", DType::kU8, {(5 << 20) + 3}, 1);
  const std::string folder = WriteCheckpoint(root(), {.step = 8, .shards = {{.tensors = {saved}}}});
  std::vector<std::uint64_t> seen;
  std::uint64_t total = 0;

  const Status verified = VerifySelected(Parts(), root(), Latest(), [&](std::uint64_t done, std::uint64_t of) {
    seen.push_back(done);
    total = of;
    return true;
  });

  EXPECT_TRUE(verified.ok()) << verified;
  EXPECT_EQ(total, std::filesystem::file_size(folder + "/shard-00000.safetensors"));
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), total);
}

TEST_F(RestoreTest, EndsCancelledByTheProgressCallback) {
  const SavedTensor saved = MakeTensor("t", DType::kU8, {(20 << 20) + 3}, 1);
  WriteCheckpoint(root(), {.step = 8, .shards = {{.tensors = {saved}}}});
  int calls = 0;

  const Status verified = VerifySelected(Parts(), root(), Latest(), [&](std::uint64_t, std::uint64_t) {
    ++calls;
    return false;
  });

  EXPECT_EQ(verified.code(), StatusCode::kCancelled) << verified;
  EXPECT_EQ(calls, 1);
}

TEST_F(RestoreTest, NotFoundMeansNoSuchCheckpoint) {
  Targets targets;

  const auto none = RestoreSelected(Parts(), root(), Latest(), 0, targets.state, {});
  WriteCheckpoint(root(), {.step = 1, .shards = {{}}});
  const auto other = RestoreSelected(Parts(), root(), Step(2), 0, targets.state, {});
  const auto found = RestoreSelected(Parts(), root(), Latest(), 0, targets.state, {});

  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(other.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(found.ok()) << found.status();
}

}  // namespace
}  // namespace cairn
