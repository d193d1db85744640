// Checkpoints of many ranks: of how many shards a restore asks, and what it holds of them.

#include <sys/resource.h>

#include <filesystem>
#include <set>

#include "restore_fixture.h"
#include "store/names.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 200;
constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 17;

/// The limit of open descriptors, as long as this lives.
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

/// kRanks shards: each has a tensor of its own, "own-<rank>", and kRows rows of "w".
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
    return RestoreWhich(WatchedParts(), root(), Latest(), rank, targets.state, {});
  }
  [[nodiscard]] std::set<std::string> OpenedShards() const {
    std::set<std::string> opened;
    for (const SeenOperation& one : plan_->Seen()) {
      if (one.op == IoOp::kOpen && one.path.find("shard-") != std::string::npos) opened.insert(one.path);
    }
    return opened;
  }

  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::vector<SavedTensor> own_;
  std::string whole_;
  std::string folder_;
  std::vector<std::string> events_;
};

TEST_F(ManyShardsTest, OwnTensorsAreReadFromTheRanksOwnShardAlone) {
  Targets targets;
  targets.Add(own_[7]);

  const Result<Restored> restored = RestoreAs(7, targets);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets[OwnName(7)], own_[7].bytes);
  EXPECT_EQ(std::get<std::int64_t>(restored->values.at("rank")), 7);
  EXPECT_EQ(OpenedShards(), std::set<std::string>{ShardPath(7)});
  EXPECT_EQ(plan_->Count({.op = IoOp::kOpen}), 1U);
}

TEST_F(ManyShardsTest, DamageElsewhereIsNoMatterToARankThatNeedsNothingThere) {
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

TEST_F(ManyShardsTest, PassThroughFewDescriptors) {
  Targets targets;
  SavedTensor whole = MakeTensor("w", DType::kF32, {kRanks * kRows, kColumns}, 0);
  targets.Add(whole);

  const DescriptorLimit limit(64);
  const Result<Restored> restored = RestoreAs(0, targets);
  const Status verified = VerifyWhich(WatchedParts(), root(), Latest(), {});
  const Result<CheckpointDetails> details = InspectWhich(root(), Latest());

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

  const Status verified = VerifyWhich(WatchedParts(), root(), Latest(), {});

  EXPECT_EQ(verified.code(), StatusCode::kCorrupt) << verified;
  EXPECT_THAT(verified.message(), HasSubstr(ShardPath(kRanks - 1)));
}

TEST_F(ManyShardsTest, AFileThatIsAnotherWhenItIsOpenedAgainIsNotRead) {
  const std::string path = ShardPath(150);
  plan_->CallBefore({.op = IoOp::kOpen, .path = path, .nth = 2}, [&](const SeenOperation&) {
    WriteWholeFile(path + ".new", ReadWholeFile(path));
    std::filesystem::rename(path + ".new", path);
  });
  Targets targets;
  targets.Add(MakeTensor("w", DType::kF32, {kRanks * kRows, kColumns}, 0));

  const Result<Restored> restored = RestoreAs(0, targets);

  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt) << restored.status();
  EXPECT_THAT(restored.status().message(), HasSubstr("replaced while it was read"));
}

// Where no lock keeps it there: a filesystem without locks, or somebody's rm.
TEST_F(ManyShardsTest, OneThatIsRemovedInMidReadIsChosenAnew) {
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

}  // namespace
}  // namespace cairn
