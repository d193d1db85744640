// Checkpoints of many ranks: how many shards a restore opens, and how much it holds in memory.

#include <sys/resource.h>

#include <filesystem>
#include <functional>
#include <set>

#include "format/index.h"
#include "restore_fixture.h"
#include "store/names.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 200;
constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 17;

/// Lowers the limit of open descriptors while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit lower{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

/// kRanks shards, each with its own tensor "own-<rank>" and kRows rows of "w".
class ManyShardsTest : public RestoreTest {
 protected:
  ManyShardsTest() {
    std::vector<SavedShardContent> shards;
    for (int rank = 0; rank < kRanks; ++rank) {
      own_.push_back(MakeTensor(OwnName(rank), DType::kF32, {5}, 100U + static_cast<std::uint32_t>(rank)));
      SavedTensor part = MakeTensor("w", DType::kF32, {kRows, kColumns}, static_cast<std::uint32_t>(rank));
      part.part = TensorPart{"w", {kRanks * kRows, kColumns}, {rank * kRows, 0}};
      whole_ += part.bytes;
      shards.push_back({.tensors = {own_.back(), part}});
      shards.back().values.emplace("rank", std::int64_t{rank});
    }
    folder_ = WriteCheckpoint(root(), {.step = 3, .shards = std::move(shards)});
  }
  static std::string OwnName(int rank) { return "own-" + std::to_string(rank); }
  [[nodiscard]] std::string ShardPath(int rank) const {
    return folder_ + "/" + ShardName(static_cast<std::uint64_t>(rank));
  }
  [[nodiscard]] RestoreParts WatchedParts() {
    RestoreParts parts = Parts();
    parts.queue = plan_->Wrap(std::move(parts.queue));
    parts.on_event = [this](const Event& event) { events_.push_back(event.message); };
    return parts;
  }
  [[nodiscard]] Result<Restored> RestoreAs(int rank, const Targets& targets) {
    return RestoreSelected(WatchedParts(), root(), Latest(), rank, targets.state, {});
  }
  [[nodiscard]] Result<CheckpointDetails> Inspect(const InspectPart& part) {
    return InspectSelected(WatchedParts(), root(), Latest(), part);
  }
  static std::vector<std::string> NamesOf(const CheckpointDetails& details) {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : details.tensors) names.push_back(tensor.name);
    return names;
  }
  [[nodiscard]] std::set<std::string> OpenedShards() const {
    std::set<std::string> opened;
    for (const SeenOperation& one : plan_->Seen()) {
      if (one.op == IoOp::kOpen && one.path.find("shard-") != std::string::npos) opened.insert(one.path);
    }
    return opened;
  }

  /// Gives the checkpoint an index, built from the headers that `header_of` returns.
  using HeaderOf = std::function<ShardHeader(int rank)>;
  void AddIndex(const HeaderOf& header_of) {
    std::vector<std::string> runs;
    for (int rank = 0; rank < kRanks; ++rank) runs.push_back(EncodeIndexRun(header_of(rank)));
    const std::optional<BuiltIndex> built = BuildIndex(runs);
    ASSERT_TRUE(built.has_value());
    WriteWholeFile(folder_ + "/" + std::string(kIndexName), built->bytes);
    Manifest manifest = ReadManifest(folder_);
    manifest.index = ManifestIndex{.file = std::string(kIndexName),
                                   .length = built->bytes.size(),
                                   .head = built->head_bytes,
                                   .digest = built->head_digest};
    WriteManifest(folder_, manifest);
  }
  [[nodiscard]] ShardHeader HeaderOfRank(int rank) const {
    const std::string bytes = ReadWholeFile(ShardPath(rank));
    const auto all = std::as_bytes(std::span(bytes));
    const auto length = ShardHeaderLength(all.first(8), bytes.size(), ShardPath(rank));
    const auto header = DecodeShardHeader(all.first(*length), bytes.size(), ShardPath(rank));
    EXPECT_TRUE(header.ok()) << header.status();
    return *header;
  }
  void AddTrueIndex() {
    AddIndex([this](int rank) { return HeaderOfRank(rank); });
  }
  /// What rank 3 of a smaller world wants: the rows of ranks 10 to 12 except the first and the last, and another rank's
  /// tensor.
  void WantOfOthers() {
    SavedTensor rows = MakeTensor("some rows", DType::kF32, {kRows * 3 - 2, kColumns}, 0);
    rows.part = TensorPart{"w", {kRanks * kRows, kColumns}, {10 * kRows + 1, 0}};
    wanted_.Add(rows);
    wanted_.Add(own_[150]);
  }
  void ExpectRestoredOfOthers(const Result<Restored>& restored) {
    ASSERT_TRUE(restored.ok()) << restored.status();
    constexpr std::size_t kRowBytes = kColumns * 4;
    EXPECT_EQ(wanted_["some rows"], whole_.substr((10 * kRows + 1) * kRowBytes, (3 * kRows - 2) * kRowBytes));
    EXPECT_EQ(wanted_[OwnName(150)], own_[150].bytes);
  }

  Targets wanted_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::vector<SavedTensor> own_;
  std::string whole_;
  std::string folder_;
  std::vector<std::string> events_;
};

TEST_F(ManyShardsTest, OwnTensorsAreReadFromTheOwnShard) {
  Targets targets;
  targets.Add(own_[7]);

  const Result<Restored> restored = RestoreAs(7, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets[OwnName(7)], own_[7].bytes);
  EXPECT_EQ(std::get<std::int64_t>(restored->values.at("rank")), 7);
  EXPECT_EQ(OpenedShards(), std::set<std::string>{ShardPath(7)});
  EXPECT_EQ(plan_->Count({.op = IoOp::kOpen}), 1U);
}

TEST_F(ManyShardsTest, IndexFindsExactlyTheNeededShards) {
  AddTrueIndex();
  WantOfOthers();

  const Result<Restored> restored = RestoreAs(3, wanted_);

  ExpectRestoredOfOthers(restored);
  EXPECT_EQ(OpenedShards(),
            (std::set<std::string>{ShardPath(3), ShardPath(10), ShardPath(11), ShardPath(12), ShardPath(150)}));
  EXPECT_EQ(events_, std::vector<std::string>{});
}

// Tensors of one name may differ between ranks: without an index the lowest shard's is read too.
TEST_F(ManyShardsTest, LowestShardIsReadWithOrWithoutAnIndex) {
  std::vector<SavedShardContent> shards;
  std::vector<SavedTensor> states;
  for (int rank = 0; rank < kRanks; ++rank) {
    states.push_back(MakeTensor("rng", DType::kF32, {4}, 500U + static_cast<std::uint32_t>(rank)));
    shards.push_back({.tensors = {own_[rank], states.back()}});
  }
  folder_ = WriteCheckpoint(root(), {.step = 9, .shards = std::move(shards)});
  Targets beyond;
  beyond.Add(states[0]);
  beyond.Add(own_[150]);
  Targets own;
  own.Add(states[0]);
  own.Add(own_[150]);

  const Result<Restored> without = RestoreAs(kRanks + 3, beyond);
  const std::string found_without = beyond["rng"];
  AddTrueIndex();
  const Result<Restored> with = RestoreAs(kRanks + 3, beyond);
  const Result<Restored> by_rank_3 = RestoreAs(3, own);

  ASSERT_TRUE(without.ok() && with.ok() && by_rank_3.ok()) << with.status();
  EXPECT_EQ(found_without, states[0].bytes);
  EXPECT_EQ(beyond["rng"], states[0].bytes);
  EXPECT_EQ(own["rng"], states[3].bytes);
  EXPECT_EQ(events_.size(), 1U);
}

TEST_F(ManyShardsTest, EmptyPartNeedsOnlyTheIndex) {
  AddTrueIndex();
  SavedTensor none = MakeTensor("none of w", DType::kF32, {0, kColumns}, 0);
  none.part = TensorPart{"w", {kRanks * kRows, kColumns}, {kRanks * kRows, 0}};
  Targets targets;
  targets.Add(none);
  targets.Add(own_[150]);

  const Result<Restored> restored = RestoreAs(kRanks + 3, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(OpenedShards(), (std::set<std::string>{ShardPath(0), ShardPath(150)}));
  EXPECT_EQ(events_, std::vector<std::string>{});
}

// 60 dimensions and thousands of entries for every shard: their memory use is limited.
TEST_F(ManyShardsTest, HostileIndexOfManyPiecesIsIgnored) {
  AddIndex([this](int rank) {
    ShardHeader header = HeaderOfRank(rank);
    for (std::int64_t i = 0; i < 200; ++i) {
      ShardTensor tensor{.name = "x" + std::to_string(i), .shape = std::vector<std::int64_t>(60, 1)};
      tensor.part = TensorPart{OwnName(150), std::vector<std::int64_t>(60, 1000000), std::vector<std::int64_t>(60, i)};
      tensor.part->offset[0] = rank;
      header.tensors.push_back(std::move(tensor));
    }
    return header;
  });
  WantOfOthers();

  const Result<Restored> restored = RestoreAs(3, wanted_);

  ExpectRestoredOfOthers(restored);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_THAT(events_[0], HasSubstr("other dimensions"));
}

TEST_F(ManyShardsTest, WithoutAnIndexAllHeadersAreRead) {
  WantOfOthers();

  const Result<Restored> restored = RestoreAs(3, wanted_);

  ExpectRestoredOfOthers(restored);
  EXPECT_EQ(OpenedShards().size(), static_cast<std::size_t>(kRanks));
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_THAT(events_[0], HasSubstr("has no index"));
}

TEST_F(ManyShardsTest, WrongIndexChangesNothing) {
  WantOfOthers();
  const std::vector<std::pair<std::string, HeaderOf>> lies = {
      {"each shard's tensors in the next one", [this](int rank) { return HeaderOfRank((rank + 1) % kRanks); }},
      {"a name left out",
       [this](int rank) {
         ShardHeader header = HeaderOfRank(rank);
         if (rank == 150) std::erase_if(header.tensors, [](const ShardTensor& t) { return t.name == OwnName(150); });
         return header;
       }},
      {"a piece left out",
       [this](int rank) {
         ShardHeader header = HeaderOfRank(rank);
         if (rank == 11) std::erase_if(header.tensors, [](const ShardTensor& t) { return t.name == "w"; });
         return header;
       }},
      {"a piece in another place", [this](int rank) {
         ShardHeader header = HeaderOfRank(rank);
         for (ShardTensor& tensor : header.tensors) {
           if (rank == 11 && tensor.part) tensor.part->offset = {0, 0};
         }
         return header;
       }}};
  for (const auto& [what, header_of] : lies) {
    SCOPED_TRACE(what);
    AddIndex(header_of);
    events_.clear();

    const Result<Restored> restored = RestoreAs(3, wanted_);

    ExpectRestoredOfOthers(restored);
    EXPECT_EQ(events_.size(), 1U);
  }
}

TEST_F(ManyShardsTest, DamagedIndexChangesNothing) {
  AddTrueIndex();
  WantOfOthers();
  const std::string path = folder_ + "/" + std::string(kIndexName);
  const std::string good = ReadWholeFile(path);
  const auto spoil = [&](const std::string& what, const std::function<void()>& how) {
    SCOPED_TRACE(what);
    std::filesystem::remove_all(path);
    WriteWholeFile(path, good);
    how();
    events_.clear();
    ExpectRestoredOfOthers(RestoreAs(3, wanted_));
    EXPECT_EQ(events_.size(), 1U);
  };

  for (const std::size_t at : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
    spoil("a flipped bit", [&] {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      WriteWholeFile(path, bad);
    });
  }
  spoil("cut", [&] { std::filesystem::resize_file(path, good.size() - 1); });
  spoil("empty", [&] { std::filesystem::resize_file(path, 0); });
  spoil("missing", [&] { std::filesystem::remove(path); });
  spoil("a folder", [&] {
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
  });
  spoil("a link", [&] {
    std::filesystem::rename(path, path + ".real");
    std::filesystem::create_symlink(path + ".real", path);
  });
  spoil("a disk that does not give it back", [&] { plan_->Fail({.op = IoOp::kRead, .path = kIndexName.data()}, EIO); });
}

TEST_F(ManyShardsTest, MissingTensorsAreMissingWhateverTheIndexSays) {
  AddIndex([this](int rank) {
    ShardHeader header = HeaderOfRank(rank);
    if (rank == 150) std::erase_if(header.tensors, [](const ShardTensor& t) { return t.name == OwnName(150); });
    return header;
  });
  WantOfOthers();
  wanted_.Add(MakeTensor("nowhere", DType::kF32, {2}, 0));

  const Result<Restored> refused = RestoreAs(3, wanted_);
  EXPECT_TRUE(wanted_.untouched());
  const Result<Restored> restored =
      RestoreSelected(WatchedParts(), root(), Latest(), 3, wanted_.state, {.allow_missing = true});

  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << refused.status();
  ExpectRestoredOfOthers(restored);
  EXPECT_EQ(restored->missing, std::vector<std::string>{"nowhere"});
}

TEST_F(ManyShardsTest, DamageInAnUnneededShardIsIgnored) {
  std::filesystem::resize_file(ShardPath(8), 10);
  Targets mine;
  mine.Add(own_[7]);
  Targets its;
  its.Add(own_[8]);

  const Result<Restored> restored = RestoreAs(7, mine);
  const Result<Restored> damaged = RestoreAs(8, its);

  EXPECT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(damaged.status().code(), StatusCode::kCorrupt) << damaged.status();
  EXPECT_THAT(damaged.status().message(), HasSubstr(ShardPath(8)));
  EXPECT_TRUE(its.untouched());
}

TEST_F(ManyShardsTest, InspectReadsOnlyTheRanksPart) {
  std::set<std::string> opened;
  for (const int rank : {0, 7, kRanks - 1}) {
    const auto details = Inspect({.rank = rank});

    ASSERT_TRUE(details.ok()) << details.status();
    EXPECT_EQ(details->info.world, static_cast<std::uint64_t>(kRanks));
    EXPECT_EQ(NamesOf(*details), (std::vector<std::string>{OwnName(rank), "w"}));
    EXPECT_EQ(std::get<std::int64_t>(details->values.at(static_cast<std::size_t>(rank)).at("rank")), rank);
    opened.insert(ShardPath(rank));
    EXPECT_EQ(OpenedShards(), opened);
  }
}

TEST_F(ManyShardsTest, InspectFindsOtherRanksTensorsByTheIndex) {
  AddTrueIndex();

  const auto details = Inspect({.rank = 3, .names = {OwnName(150), OwnName(3)}});

  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(NamesOf(*details), (std::vector<std::string>{OwnName(150), OwnName(3), "w"}));
  EXPECT_EQ(details->tensors[0].shape, std::vector<std::int64_t>{5});
  EXPECT_EQ(details->tensors[0].file, ShardName(150));
  EXPECT_TRUE(details->values.at(150).empty());
  EXPECT_EQ(OpenedShards(), (std::set<std::string>{ShardPath(3), ShardPath(150)}));
  EXPECT_EQ(events_, std::vector<std::string>{});
}

TEST_F(ManyShardsTest, InspectReadsOneShardOfANameInMany) {
  AddTrueIndex();

  const auto details = Inspect({.rank = {}, .names = {"w"}});

  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(NamesOf(*details), std::vector<std::string>{"w"});
  EXPECT_EQ(OpenedShards().size(), 1U);
}

TEST_F(ManyShardsTest, InspectReadsAllShardsWithoutAGoodIndex) {
  const InspectPart part{.rank = 3, .names = {OwnName(150), "nowhere"}};
  const auto expect_found = [&](const std::string& what, const std::string& why) {
    SCOPED_TRACE(what);
    events_.clear();
    const auto details = Inspect(part);
    ASSERT_TRUE(details.ok()) << details.status();
    EXPECT_EQ(NamesOf(*details), (std::vector<std::string>{OwnName(150), OwnName(3), "w"}));
    ASSERT_EQ(events_.size(), 1U);
    EXPECT_THAT(events_[0], HasSubstr(why));
  };

  expect_found("none", "has no index");
  AddTrueIndex();
  expect_found("a name that is nowhere", "does not name \"nowhere\"");
  AddIndex([this](int rank) {
    ShardHeader header = HeaderOfRank((rank + 1) % kRanks);
    if (rank == 0) header.tensors[0].name = "nowhere";
    return header;
  });
  expect_found("a lie", "is not in the shard that the index names");
}

TEST_F(ManyShardsTest, DamageElsewhereDoesNotAffectAnInspectedPart) {
  std::filesystem::resize_file(ShardPath(8), 10);

  const auto mine = Inspect({.rank = 7});
  const auto its = Inspect({.rank = 8});

  EXPECT_TRUE(mine.ok()) << mine.status();
  EXPECT_EQ(its.status().code(), StatusCode::kCorrupt) << its.status();
  EXPECT_THAT(its.status().message(), HasSubstr(ShardPath(8)));
}

TEST_F(ManyShardsTest, NeedFewDescriptors) {
  Targets targets;
  SavedTensor whole = MakeTensor("w", DType::kF32, {kRanks * kRows, kColumns}, 0);
  targets.Add(whole);

  const DescriptorLimit limit(64);
  const Result<Restored> restored = RestoreAs(0, targets);
  const Status verified = VerifySelected(WatchedParts(), root(), Latest(), {});
  const Result<CheckpointDetails> details = InspectSelected(root(), Latest());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["w"], whole_);
  EXPECT_TRUE(verified.ok()) << verified;
  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->tensors.size(), 2U * kRanks);
}

TEST_F(ManyShardsTest, AreVerifiedToTheLastByte) {
  std::string last = ReadWholeFile(ShardPath(kRanks - 1));
  last.back() = static_cast<char>(last.back() ^ 1);
  WriteWholeFile(ShardPath(kRanks - 1), last);

  const Status verified = VerifySelected(WatchedParts(), root(), Latest(), {});

  EXPECT_EQ(verified.code(), StatusCode::kCorrupt) << verified;
  EXPECT_THAT(verified.message(), HasSubstr(ShardPath(kRanks - 1)));
}

TEST_F(ManyShardsTest, ReplacedFileIsNotRead) {
  const std::string path = ShardPath(150);
  plan_->CallBefore({.op = IoOp::kOpen, .path = path, .nth = 2}, [&](const SeenOperation&) {
    WriteWholeFile(path + ".new", ReadWholeFile(path));
    std::filesystem::rename(path + ".new", path);
  });
  Targets targets;
  targets.Add(MakeTensor("w", DType::kF32, {kRanks * kRows, kColumns}, 0));

  const Result<Restored> restored = RestoreAs(0, targets);

  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt) << restored.status();
  EXPECT_THAT(restored.status().message(), HasSubstr("replaced while it was being read"));
}

// Without a lock: a filesystem without locks, or somebody's rm.
TEST_F(ManyShardsTest, RemovalDuringAReadCausesANewChoice) {
  SavedTensor other = MakeTensor("w", DType::kF32, {kRanks * kRows, kColumns}, 1);
  WriteCheckpoint(root(), {.step = 2, .attempt = "older", .shards = {{.tensors = {other}}}});
  plan_->CallBefore({.op = IoOp::kOpen, .path = ShardPath(150), .nth = 2},
                    [&](const SeenOperation&) { std::filesystem::remove_all(folder_); });
  Targets targets;
  targets.Add(other);

  const Result<Restored> restored = RestoreAs(0, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 2U);
  EXPECT_EQ(targets["w"], other.bytes);
}

TEST_F(ManyShardsTest, AnotherWorldSizeNeedsNoOwnShard) {
  AddTrueIndex();
  std::filesystem::remove(ShardPath(7));
  Targets wanted;
  wanted.Add(own_[150]);

  const auto of_the_rank = RestoreAs(7, wanted);
  RestoreParts parts = WatchedParts();
  parts.own_shard = false;
  const auto of_another_world = RestoreSelected(parts, root(), Latest(), 7, wanted.state, {});

  EXPECT_EQ(of_the_rank.status().code(), StatusCode::kCorrupt) << of_the_rank.status();
  ASSERT_TRUE(of_another_world.ok()) << of_another_world.status();
  EXPECT_EQ(wanted["own-150"], own_[150].bytes);
  EXPECT_TRUE(of_another_world->values.empty());
}

}  // namespace
}  // namespace cairn
