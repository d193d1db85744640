// The power fails after any operation of a recorded run: everything acknowledged by then is there, bit by bit.

#include "support/power_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "support/points.h"
#include "support/recording_queue.h"
#include "support/small_run.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::Test;

/// A durable save, and the number of recorded operations at that time.
struct Acknowledged {
  std::uint64_t step = 0;
  std::uint64_t variant = 0;
  std::size_t operations = 0;
};

std::filesystem::path Memory() {
  const char* const memory = "/dev/shm";
  return ::access(memory, W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

class PowerCutTest : public Test {
 protected:
  PowerCutTest() { std::filesystem::create_directory(disk()); }

  [[nodiscard]] std::string disk() const { return dir_ / "disk"; }
  [[nodiscard]] std::string root() const { return disk() + "/run"; }
  [[nodiscard]] Wiring Recorded() const {
    Wiring wiring;
    wiring.wrap_queue = [recording = recording_](IoQueueFactory inner) { return recording->Wrap(std::move(inner)); };
    return wiring;
  }
  [[nodiscard]] Options RecordedOptions() {
    Options options = SmallOptions(root());
    options.on_event = [this](const Event& event) {
      if (event.kind != EventKind::kSaveDurable) return;
      MutexLock lock(mutex_);
      acknowledged_.push_back({*event.step, variant_, recording_->size()});
    };
    return options;
  }
  void SetVariant(std::uint64_t variant) {
    MutexLock lock(mutex_);
    variant_ = variant;
  }

  /// Checks SomePoints, prefixes of the recording, under each of the four disks; `ranks` wrote it.
  void ExpectAcknowledgedAfterEachCut(int ranks, bool saves_after_cut) {
    // Reads back the run's own bits; the recording has ended.
    const std::size_t end = recording_->size();
    const Points points = SomePoints(11);
    for (std::size_t upto = points.first; upto <= end; upto += points.stride) {
      for (const PowerCut cut :
           {PowerCut{}, PowerCut{.data = true}, PowerCut{.entries = true}, PowerCut{.data = true, .entries = true}}) {
        SCOPED_TRACE(testing::Message() << "after " << upto << " of " << end << " operations, unsynced data "
                                        << (cut.data ? "kept" : "lost") << ", unsynced names "
                                        << (cut.entries ? "kept" : "lost"));
        Check(upto, cut, ranks, saves_after_cut && upto / points.stride % 8 == 0);
        if (HasFailure()) return;
      }
    }
  }

  /// What is frozen at a step.
  void FillFrozen(FrozenTensor& frozen, std::uint64_t step) const {
    frozen.Fill(*frozen_seed_);
    if (step >= frozen_changes_) frozen.Fill(*frozen_seed_ + 1, (1U << 20) / sizeof(std::uint64_t));
  }

  const TempDir dir_;
  // In memory, because it is read back only once.
  const TempDir trees_{Memory()};
  std::shared_ptr<Recording> recording_;
  // Of what is frozen in each checkpoint; and the step from which on its second checksum block is another.
  std::optional<std::uint64_t> frozen_seed_;
  std::uint64_t frozen_changes_ = std::numeric_limits<std::uint64_t>::max();
  // The save that finds that it has changed since step 1.
  std::optional<std::uint64_t> finds_;
  Mutex mutex_;
  std::uint64_t variant_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<Acknowledged> acknowledged_ CAIRN_GUARDED_BY(mutex_);

 private:
  void Check(std::size_t upto, PowerCut cut, int ranks, bool save_too) {
    const std::string tree = trees_ / "tree";
    ASSERT_EQ(MaterializeAfterPowerCut(*recording_, upto, tree, cut), Status::Ok());
    std::optional<std::uint64_t> newest;
    std::map<std::uint64_t, std::uint64_t> variants;  // By step: the last acknowledged variant.
    {
      MutexLock lock(mutex_);
      for (const Acknowledged& one : acknowledged_) {
        if (one.operations > upto) continue;
        newest = std::max(newest.value_or(0), one.step);
        variants[one.step] = one.variant;
      }
    }
    if (std::filesystem::exists(tree + "/run")) {
      Options options = SmallOptions(tree + "/run");
      options.read_only = true;
      const std::unique_ptr<Checkpointer> reader = OpenOrFail(options);
      ASSERT_NE(reader, nullptr);
      const std::vector<std::uint64_t> steps = ListedSteps(*reader);
      if (newest) {
        ASSERT_FALSE(steps.empty()) << "step " << *newest << " was acknowledged";
        EXPECT_GE(steps.back(), *newest);
      }
      if (!steps.empty()) ExpectLinesRecorded(options.root, *reader, /*writer=*/false);
      for (const std::uint64_t step : steps) ExpectBits(*reader, step, ranks, variants);
      for (const std::uint64_t step : frozen_seed_ ? steps : std::vector<std::uint64_t>()) ExpectKept(*reader, step);
      if (finds_) ExpectSuspectsIn(options.root, 1, *finds_);
    } else {
      EXPECT_FALSE(newest.has_value()) << "step " << newest.value_or(0) << " was acknowledged";
    }
    if (save_too && ranks == 1) {
      Options options = SmallOptions(tree + "/run");
      const std::unique_ptr<Checkpointer> writer = OpenOrFail(options);
      ASSERT_NE(writer, nullptr);
      EXPECT_EQ(SaveDurably(*writer, 1000), Status::Ok());
      EXPECT_EQ(writer->Drain(Soon()), Status::Ok());
      EXPECT_THAT(Leftovers(options.root), testing::Each(testing::StartsWith(".spare-")));
    }
    std::filesystem::remove_all(tree);
  }

  void ExpectKept(Checkpointer& reader, std::uint64_t step) {
    FrozenTensor expected;
    FillFrozen(expected, step);
    FrozenTensor read;
    ASSERT_TRUE(ReadAlone(reader, Step(step), read.With({}), {.resume = false}).ok());
    EXPECT_TRUE(read == expected) << "step " << step;
  }

  static void ExpectBits(Checkpointer& reader, std::uint64_t step, int ranks,
                         const std::map<std::uint64_t, std::uint64_t>& variants) {
    const auto acknowledged = variants.find(step);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::unique_ptr<Tensors> fresh = SmallState(0, rank);
      const auto restored = reader.Restore(Step(step), fresh->state());
      ASSERT_TRUE(restored.ok()) << restored.status();
      // A step being replaced may be the new variant before that is acknowledged, but never an older one.
      const std::uint64_t least = acknowledged == variants.end() ? 0 : acknowledged->second;
      EXPECT_TRUE(Holds(*fresh, step, rank, least) || Holds(*fresh, step, rank, least + 1))
          << "step " << step << ", rank " << rank;
    }
  }
};

TEST_F(PowerCutTest, KeepsAcknowledgedSavesWithRemovalsAndAReplacement) {
  recording_ = Recording::Make(disk());
  {
    Options options = RecordedOptions();
    options.keep_last = 2;
    const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options, Recorded());
    ASSERT_NE(checkpointer, nullptr);
    std::vector<std::unique_ptr<Tensors>> states;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      states.push_back(SmallState(step));
      ASSERT_TRUE(checkpointer->Save(step, states.back()->state()).ok());
    }
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    SetVariant(1);
    ASSERT_EQ(SaveDurably(*checkpointer, 4, {.if_exists = IfExists::kReplace}, 1), Status::Ok());
    SetVariant(0);
    ASSERT_EQ(SaveDurably(*checkpointer, 5), Status::Ok());
  }

  ExpectAcknowledgedAfterEachCut(1, true);
}

TEST_F(PowerCutTest, KeepsAcknowledgedSavesIntoRecycledFiles) {
  recording_ = Recording::Make(disk());
  {
    Options options = RecordedOptions();
    options.keep_last = 1;
    const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options, Recorded());
    ASSERT_NE(checkpointer, nullptr);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
      ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    }
    const CheckpointerStats stats = checkpointer->stats();
    if (stats.shards_recycled != 2) GTEST_SKIP() << stats.not_recycled_reason;
  }

  ExpectAcknowledgedAfterEachCut(1, true);
}

class PowerCutKept : public PowerCutTest, public testing::WithParamInterface<bool> {};

// Linked, copied where a link is refused, and with the step that has the file removed or replaced. Where nobody counts
// writes, one is written anew behind its first block.
TEST_P(PowerCutKept, KeepsAcknowledgedSavesWithFrozenTensors) {
  recording_ = Recording::Make(disk());
  frozen_seed_ = 5;
  if (!GetParam()) frozen_changes_ = 3;
  {
    Options options = RecordedOptions();
    options.keep_last = 1;
    const auto plan = FaultPlan::Make();
    Wiring wiring;
    wiring.wrap_queue = [&](IoQueueFactory inner) { return recording_->Wrap(plan->Wrap(std::move(inner))); };
    const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options, wiring);
    ASSERT_NE(checkpointer, nullptr);
    FrozenTensor frozen;
    if (!GetParam()) frozen.version = std::nullopt;
    const auto save = [&](std::uint64_t step, const SaveOptions& save_options = {}) {
      FillFrozen(frozen, step);
      const auto small = SmallState(step);
      const auto one = checkpointer->Save(step, frozen.With(small->state()), save_options);
      ASSERT_TRUE(one.ok() && one->WaitDurable(Soon()).ok());
      ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    };
    save(1);
    save(2);
    save(3);
    plan->Fail({.op = IoOp::kLink, .nth = 1}, EMLINK);
    save(4);
    save(4, {.if_exists = IfExists::kReplace});
    EXPECT_EQ(plan->Count({.op = IoOp::kLink}), 4U);
  }

  ExpectAcknowledgedAfterEachCut(1, true);
}

INSTANTIATE_TEST_SUITE_P(PowerCut, PowerCutKept, testing::Bool(),
                         [](const auto& test) { return test.param ? "Counted" : "Compared"; });

// A save that finds that what is frozen has changed unseen; the checkpoint that was surely right goes for it.
TEST_F(PowerCutTest, NoSuspectCheckpointIsUnmarkedOnceTheSaveThatFoundItIsThere) {
  recording_ = Recording::Make(disk());
  finds_ = 4;
  {
    Options options = RecordedOptions();
    options.keep_last = 2;
    Wiring wiring = Recorded();
    wiring.frozen_every = 3;
    const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options, wiring);
    ASSERT_NE(checkpointer, nullptr);
    FrozenTensor frozen;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      frozen.Fill(step / 4);
      const auto small = SmallState(step);
      const auto one = checkpointer->Save(step, frozen.With(small->state()));
      ASSERT_TRUE(one.ok() && one->WaitDurable(Soon()).ok());
      ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    }
    EXPECT_THAT(ListedSteps(*checkpointer), testing::ElementsAre(3, 4));
  }

  ExpectAcknowledgedAfterEachCut(1, true);
}

TEST_F(PowerCutTest, KeepsAcknowledgedSavesOfThreeRanks) {
  recording_ = Recording::Make(disk());
  {
    Options options = RecordedOptions();
    options.keep_last = 1;
    const auto ranks = OpenRanks(3, options, [this](int /*rank*/) { return Recorded(); });
    ASSERT_EQ(ranks.size(), 3U);
    std::vector<std::unique_ptr<Tensors>> states;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        states.push_back(SmallState(step, rank));
        ASSERT_TRUE(ranks[static_cast<std::size_t>(rank)]->Save(step, states.back()->state()).ok());
      }
      // The third reuses the files of the first.
      if (step == 1) continue;
      for (const auto& rank : ranks) ASSERT_EQ(rank->Drain(Soon()), Status::Ok());
    }
  }

  ExpectAcknowledgedAfterEachCut(3, false);
}

// The old line's step is removed only once the new line's is durable, and that one only once its line is.
TEST_F(PowerCutTest, KeepsTheAbandonedLineUntilTheNewOneIsDurable) {
  recording_ = Recording::Make(disk());
  {
    const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(RecordedOptions(), Recorded());
    ASSERT_NE(checkpointer, nullptr);
    ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
    ASSERT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
    ASSERT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());
    SetVariant(1);
    ASSERT_EQ(SaveDurably(*checkpointer, 2, {}, 1), Status::Ok());
  }

  ExpectAcknowledgedAfterEachCut(1, false);
}

/// The path whose open gave the operation its file.
std::string PathOf(const std::vector<RecordedOperation>& operations, const RecordedOperation& of) {
  for (const RecordedOperation& one : operations) {
    if (one.op == IoOp::kOpen && one.result >= 0 && one.file == of.file) return one.path;
  }
  return {};
}

/// Whether the operation changes the contents of a retired or replaced folder: unlinks a file, takes a spare, or opens
/// one for writing.
bool Touches(const RecordedOperation& one) {
  const bool spare = one.path.find("/.spare-0/") != std::string::npos;
  return one.op == IoOp::kUnlink || (spare && (one.op == IoOp::kRename || one.op == IoOp::kOpen));
}

// A power cut may undo the rename but not later changes in the folder. So each file may be touched only after an fsync
// of the root that began after the rename has returned. The model above has no such disk.
TEST_F(PowerCutTest, DoesNotTouchARetiredStepBeforeItsRenameIsDurable) {
  recording_ = Recording::Make(disk());
  {
    Options options = RecordedOptions();
    options.keep_last = 1;
    const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options, Recorded());
    ASSERT_NE(checkpointer, nullptr);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto if_exists = step == 4 ? IfExists::kReplace : IfExists::kFail;
      ASSERT_EQ(SaveDurably(*checkpointer, std::min<std::uint64_t>(step, 3), {.if_exists = if_exists}), Status::Ok());
      ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    }
    const CheckpointerStats stats = checkpointer->stats();
    if (stats.shards_recycled != 2) GTEST_SKIP() << stats.not_recycled_reason;
  }

  const std::vector<RecordedOperation> operations = recording_->operations();
  int touches = 0;
  for (const RecordedOperation& touch : operations) {
    if (!Touches(touch) || touch.result < 0) continue;
    ++touches;
    std::string folder = std::filesystem::path(touch.path).parent_path();
    // Spare folders are retired folders that were renamed once more.
    std::string retired = folder;
    for (std::size_t rename = 0; rename < touch.begun; ++rename) {
      if (operations[rename].op == IoOp::kRename && operations[rename].path2 == folder)
        retired = operations[rename].path;
    }
    if (folder.starts_with(root() + "/.spare-")) folder = retired;
    bool durable = false;
    for (std::size_t rename = 0; rename < touch.begun; ++rename) {
      const bool of_it = operations[rename].op == IoOp::kRename &&
                         (operations[rename].path == folder || operations[rename].path2 == folder);
      if (!of_it) continue;
      for (std::size_t fsync = rename + 1; fsync < touch.begun; ++fsync) {
        const RecordedOperation& one = operations[fsync];
        durable = durable || (one.op == IoOp::kFsync && one.result >= 0 && one.begun > rename &&
                              PathOf(operations, one) == root());
      }
    }
    EXPECT_TRUE(durable) << touch.path << " was touched before its folder's rename was durable";
  }
  // Unlinked: the manifests of 1 and 2, and both files of the old 3. Opened and renamed: the shards of 1 and 2.
  EXPECT_EQ(touches, 8);
}

}  // namespace
}  // namespace cairn
