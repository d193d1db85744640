// Retired shard files that the next attempt overwrites, and everyone who must not notice.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/remove.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "support/points.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RecycleTest : public ::testing::Test {
 protected:
  RecycleTest() { EXPECT_EQ(SaveTo(*queue_, root_.path(), old_), Status::Ok()); }

  void SetUp() override {
    // This machine's disk may not support recycling.
    const UniqueFd probe(::open((root_ / "probe").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (const Status status = TakeLease(probe, "a file here"); !status.ok()) GTEST_SKIP() << status;
    fs::remove(root_ / "probe");
  }

  [[nodiscard]] std::string OldShard() const { return root_ / StepName(1) + "/" + ShardName(0); }
  [[nodiscard]] std::string NewShard() const { return root_ / StepName(2) + "/" + ShardName(0); }
  [[nodiscard]] std::string SpareFile() const { return SpareFolder() + "/" + ShardName(0); }
  [[nodiscard]] std::string SpareFolder() const { return root_ / SpareName(0); }
  [[nodiscard]] static ino_t Inode(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
    return found.st_ino;
  }
  Status RetireOld() { return Retire(*queue_, root_.path(), 1, 1, &why_); }
  /// Saves step 2, which must succeed. Returns whether it overwrote the spare.
  bool SaveNext(TestSave save = {.step = 2, .recycle = true}) {
    TestRanks ranks(*queue_, root_.path(), save);
    EXPECT_EQ(ranks.Save(), Status::Ok());
    EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
    if (!ranks.not_recycled().empty()) why_ = ranks.not_recycled();
    return ranks.rank(0).recycled();
  }

  const TestSave old_{.step = 1};
  const TestSave next_{.step = 2, .recycle = true};
  TempDir root_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(PlainFactory()));
  std::string why_;
};

TEST_F(RecycleTest, NextSaveOverwritesARetiredShard) {
  const ino_t inode = Inode(OldShard());

  ASSERT_EQ(RetireOld(), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(SpareName(0)));
  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0)));
  EXPECT_TRUE(SaveNext());

  EXPECT_EQ(Inode(NewShard()), inode);
  EXPECT_THAT(Names(SpareFolder()), IsEmpty());
  EXPECT_EQ(why_, "");
}

TEST_F(RecycleTest, SmallerAndLargerStatesOverwriteItToo) {
  ASSERT_EQ(RetireOld(), Status::Ok());
  EXPECT_TRUE(SaveNext({.step = 2, .recycle = true, .more = 3}));

  ASSERT_EQ(Retire(*queue_, root_.path(), 2), Status::Ok());
  EXPECT_TRUE(SaveNext({.step = 3, .recycle = true}));

  struct stat found {};
  ASSERT_EQ(::stat((root_ / StepName(3) + "/" + ShardName(0)).c_str(), &found), 0);
  EXPECT_LE(static_cast<std::uint64_t>(found.st_blocks) * 512, 5 * kBlock) << "the longer file's blocks were kept";
}

TEST_F(RecycleTest, WithoutTheOptionTheSpareStays) {
  ASSERT_EQ(RetireOld(), Status::Ok());

  EXPECT_FALSE(SaveNext({.step = 2}));

  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0)));
}

TEST_F(RecycleTest, EachRankTakesItsFileAndExtraFilesAreRemoved) {
  const TestSave wide{.step = 3, .shards = 3};
  const TestSave next{.step = 4, .shards = 2, .recycle = true};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), wide), Status::Ok());
  const std::string folder = root_ / StepName(3) + "/";
  const std::vector<ino_t> inodes = {Inode(folder + ShardName(0)), Inode(folder + ShardName(1))};

  ASSERT_EQ(Retire(*queue_, root_.path(), 3, 2), Status::Ok());
  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0), ShardName(1)));
  EXPECT_TRUE(SaveNext(next));

  const std::string committed = root_ / StepName(4) + "/";
  EXPECT_THAT((std::vector<ino_t>{Inode(committed + ShardName(0)), Inode(committed + ShardName(1))}), inodes);
}

TEST_F(RecycleTest, KeepsFilesOfOneCheckpointOnly) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  const ino_t first = Inode(OldShard());

  ASSERT_EQ(RetireOld(), Status::Ok());
  ASSERT_EQ(Retire(*queue_, root_.path(), 2), Status::Ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(SpareName(0)));
  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0)));
  EXPECT_EQ(Inode(SpareFile()), first);
}

TEST_F(RecycleTest, FilesOfTwoCheckpointsAreTakenLastFirst) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  const ino_t first = Inode(OldShard());
  const ino_t second = Inode(NewShard());

  ASSERT_EQ(RetireOld(), Status::Ok());
  ASSERT_EQ(Retire(*queue_, root_.path(), 2, 1, &why_, 2), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(SpareName(0), SpareName(1)));

  EXPECT_TRUE(SaveNext({.step = 3, .recycle = true}));
  EXPECT_TRUE(SaveNext({.step = 4, .recycle = true}));
  EXPECT_EQ(Inode(root_ / StepName(3) + "/" + ShardName(0)), second);
  EXPECT_EQ(Inode(root_ / StepName(4) + "/" + ShardName(0)), first);
  EXPECT_FALSE(SaveNext({.step = 5, .recycle = true}));
}

TEST_F(RecycleTest, RejectedSpareIsUnlinkedAndTheNextTaken) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  const ino_t first = Inode(OldShard());
  ASSERT_EQ(RetireOld(), Status::Ok());
  ASSERT_EQ(Retire(*queue_, root_.path(), 2, 1, &why_, 2), Status::Ok());
  const UniqueFd reader(::open((root_ / SpareName(1) + "/" + ShardName(0)).c_str(), O_RDONLY | O_CLOEXEC));

  EXPECT_TRUE(SaveNext({.step = 3, .recycle = true}));

  EXPECT_EQ(Inode(root_ / StepName(3) + "/" + ShardName(0)), first);
  EXPECT_THAT(Names(root_ / SpareName(1)), IsEmpty());
  EXPECT_THAT(why_, HasSubstr("it is open or mapped elsewhere"));
}

// Readers that had the file before it was retired, or are about to open it.

TEST_F(RecycleTest, MappedOldShardKeepsItsBytes) {
  const std::string bytes = ReadAll(OldShard());
  void* mapped = nullptr;
  {
    const UniqueFd fd(::open(OldShard().c_str(), O_RDONLY | O_CLOEXEC));
    mapped = ::mmap(nullptr, bytes.size(), PROT_READ, MAP_PRIVATE, fd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
  }

  ASSERT_EQ(RetireOld(), Status::Ok());
  EXPECT_FALSE(SaveNext());

  EXPECT_EQ(std::string(static_cast<const char*>(mapped), bytes.size()), bytes);
  EXPECT_THAT(why_, HasSubstr("it is open or mapped elsewhere"));
  ::munmap(mapped, bytes.size());
}

TEST_F(RecycleTest, OpenOldShardKeepsItsBytes) {
  const std::string bytes = ReadAll(OldShard());
  const UniqueFd fd(::open(OldShard().c_str(), O_RDONLY | O_CLOEXEC));

  ASSERT_EQ(RetireOld(), Status::Ok());
  EXPECT_THAT(Names(root_.path()), IsEmpty()) << "a rejected spare is unlinked";
  EXPECT_FALSE(SaveNext());

  std::string read(bytes.size(), '\0');
  EXPECT_EQ(::pread(fd.get(), read.data(), read.size(), 0), static_cast<ssize_t>(read.size()));
  EXPECT_EQ(read, bytes);
  EXPECT_THAT(why_, HasSubstr("it is open or mapped elsewhere"));
}

TEST_F(RecycleTest, OpenSpareKeepsItsBytes) {
  const std::string bytes = ReadAll(OldShard());
  ASSERT_EQ(RetireOld(), Status::Ok());
  const UniqueFd fd(::open(SpareFile().c_str(), O_RDONLY | O_CLOEXEC));

  EXPECT_FALSE(SaveNext());

  std::string read(bytes.size(), '\0');
  EXPECT_EQ(::pread(fd.get(), read.data(), read.size(), 0), static_cast<ssize_t>(read.size()));
  EXPECT_EQ(read, bytes);
  EXPECT_THAT(Names(SpareFolder()), IsEmpty());
  EXPECT_THAT(why_, HasSubstr("it is open or mapped elsewhere"));
}

TEST_F(RecycleTest, ReaderThatOpensTheSpareMeanwhileGetsIt) {
  ASSERT_EQ(RetireOld(), Status::Ok());
  int refused = 0;
  plan_->CallBefore({.op = IoOp::kRename, .path = SpareName(0)}, [&](const SeenOperation&) {
    // A blocking open would sleep here until the lease is released.
    if (::open(SpareFile().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC) < 0) refused = errno;
  });

  EXPECT_FALSE(SaveNext());

  EXPECT_EQ(refused, EWOULDBLOCK);
  EXPECT_THAT(why_, HasSubstr("another process is waiting to open it"));
}

TEST_F(RecycleTest, HardLinkedCopyStaysIntact) {
  const std::string bytes = ReadAll(OldShard());
  fs::create_hard_link(OldShard(), root_ / "copy");

  ASSERT_EQ(RetireOld(), Status::Ok());
  EXPECT_FALSE(SaveNext());

  EXPECT_EQ(ReadAll(root_ / "copy"), bytes);
  EXPECT_THAT(why_, HasSubstr("it has 2 names"));
}

TEST_F(RecycleTest, HardLinkToTheSpareStaysIntact) {
  const std::string bytes = ReadAll(OldShard());
  ASSERT_EQ(RetireOld(), Status::Ok());
  fs::create_hard_link(SpareFile(), root_ / "copy");

  EXPECT_FALSE(SaveNext());

  EXPECT_EQ(ReadAll(root_ / "copy"), bytes);
}

TEST_F(RecycleTest, HardLinkMadeDuringTheTakeOverStaysIntact) {
  const std::string bytes = ReadAll(OldShard());
  ASSERT_EQ(RetireOld(), Status::Ok());
  plan_->CallBefore({.op = IoOp::kRename, .path = SpareName(0)},
                    [&](const SeenOperation&) { fs::create_hard_link(SpareFile(), root_ / "copy"); });

  EXPECT_FALSE(SaveNext());

  EXPECT_EQ(ReadAll(root_ / "copy"), bytes);
  EXPECT_THAT(why_, HasSubstr("it has 2 names"));
}

TEST_F(RecycleTest, CheckpointWithAReadersLockIsNotRetired) {
  const auto reader = ReadLock::Take(root_ / StepName(1));
  ASSERT_TRUE(reader.ok()) << reader.status();

  EXPECT_EQ(RetireOld().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(SaveNext());

  EXPECT_EQ(CheckContent(root_.path(), old_), Status::Ok());
}

TEST_F(RecycleTest, FileWithAWiderModeIsUnlinked) {
  fs::permissions(OldShard(), fs::perms(0664));

  ASSERT_EQ(RetireOld(), Status::Ok());

  EXPECT_THAT(Names(root_.path()), IsEmpty());
  EXPECT_THAT(why_, HasSubstr("its mode is 0664, wider than 0644"));
}

TEST_F(RecycleTest, LinkInPlaceOfASpareIsNotFollowed) {
  TempDir elsewhere;
  WriteAll(elsewhere / ShardName(0), "mine");
  fs::create_directory_symlink(elsewhere.path(), SpareFolder());

  ASSERT_EQ(RetireOld(), Status::Ok());
  plan_->Fail({.op = IoOp::kFallocate, .nth = 1}, ENOSPC);
  EXPECT_FALSE(SaveNext()) << "nor is it unlinked when the disk is full";

  EXPECT_EQ(ReadAll(elsewhere / ShardName(0)), "mine");
}

// The protocol.

TEST_F(RecycleTest, NothingIsKeptBeforeTheRootsFsyncHasReturned) {
  plan_->CallBefore({.op = IoOp::kRename}, [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync}, EIO); });

  EXPECT_EQ(RetireOld().code(), StatusCode::kUnknownOutcome);

  EXPECT_FALSE(fs::exists(SpareFolder()));
  plan_->Clear();
  EXPECT_FALSE(SaveNext());
}

TEST_F(RecycleTest, BothFoldersAreFsyncedBeforeTheCommit) {
  ASSERT_EQ(RetireOld(), Status::Ok());
  const std::size_t before = plan_->Seen().size();
  TestRanks ranks(*queue_, root_.path(), next_);
  const std::string attempt = root_ / AttemptName(ranks.uuid());

  ASSERT_EQ(ranks.Save(), Status::Ok());

  const std::vector<SeenOperation> seen = plan_->Seen();
  const auto find = [&](IoOp op, const std::string& path, std::size_t from) {
    while (from < seen.size() && (seen[from].op != op || seen[from].path != path)) ++from;
    return from;
  };
  const std::size_t rename = find(IoOp::kRename, SpareFile(), before);
  const std::size_t zero = find(IoOp::kWrite, SpareFile(), rename);  // Under its old name.
  const std::size_t commit = find(IoOp::kRename, attempt, zero);
  ASSERT_LT(commit, seen.size()) << ToString(seen);
  EXPECT_EQ(seen[zero].offset, 0U);
  EXPECT_EQ(seen[zero].length, kBlock);
  EXPECT_LT(find(IoOp::kFsync, SpareFolder(), zero), commit) << ToString(seen);
  EXPECT_LT(find(IoOp::kFsync, attempt, zero), commit) << ToString(seen);
}

TEST_F(RecycleTest, AttemptHasNoOldHeaderWhileItIsWritten) {
  ASSERT_EQ(RetireOld(), Status::Ok());
  TestRanks ranks(*queue_, root_.path(), next_);

  ASSERT_EQ(ranks.Begin(), Status::Ok());

  ASSERT_TRUE(ranks.rank(0).recycled());
  const std::string shard = ReadAll(root_ / AttemptName(ranks.uuid()) + "/" + ShardName(0));
  EXPECT_EQ(shard.substr(0, kBlock), std::string(kBlock, '\0'));
  EXPECT_EQ(ranks.Abandon(), Status::Ok());
}

TEST_F(RecycleTest, AbandonedSaveRemovesItsSpare) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  ASSERT_EQ(RetireOld(), Status::Ok());
  plan_->Fail({.op = IoOp::kWrite, .nth = 3}, EIO);  // After the zeros and a chunk.

  EXPECT_EQ(SaveTo(*queue_, root_.path(), {.step = 3, .recycle = true}).code(), StatusCode::kIoError);

  EXPECT_THAT(Names(root_.path()), ElementsAre(SpareName(0), StepName(2)));
  EXPECT_THAT(Names(SpareFolder()), IsEmpty());
  EXPECT_EQ(CheckContent(root_.path(), {.step = 2}), Status::Ok());
}

TEST_F(RecycleTest, ReplacementOverwritesASpareToo) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  ASSERT_EQ(RetireOld(), Status::Ok());

  EXPECT_TRUE(SaveNext({.step = 2, .seed = 7, .replace = true, .recycle = true}));
}

TEST_F(RecycleTest, CloseRemovesSparesThroughALink) {
  TempDir elsewhere;
  fs::create_directory_symlink(root_.path(), elsewhere / "link");
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  ASSERT_EQ(RetireOld(), Status::Ok());
  ASSERT_EQ(Retire(*queue_, root_.path(), 2, 1, &why_, 2), Status::Ok());

  EXPECT_TRUE(RunTaskBlocking(*queue_, RemoveSparesTask(elsewhere / "link")).ok());

  EXPECT_THAT(Names(root_.path()), IsEmpty());
}

// Leftovers of a killed writer.

TEST_F(RecycleTest, SweepKeepsTheSpareByPolicy) {
  const ino_t inode = Inode(OldShard());
  ASSERT_EQ(RetireOld(), Status::Ok());

  ASSERT_TRUE(OpenRoot(*queue_, root_.path(), {.folders = 1, .shards = 1}).ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(kLockName, SpareName(0), kWriterName));
  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink, .path = ShardName(0)}), 0U);
  EXPECT_TRUE(SaveNext());
  EXPECT_EQ(Inode(NewShard()), inode);

  ASSERT_EQ(Retire(*queue_, root_.path(), 2), Status::Ok());
  ASSERT_TRUE(OpenRoot(*queue_, root_.path()).ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(kLockName, kWriterName));
}

TEST_F(RecycleTest, SweepMakesSparesOfAnAttempt) {
  std::optional<TestRanks> killed(std::in_place, *queue_, root_.path(), TestSave{.step = 5, .shards = 3});
  ASSERT_EQ(killed->Begin(), Status::Ok());
  ASSERT_EQ(killed->Write(), Status::Ok());
  const std::string attempt = root_ / AttemptName(killed->uuid()) + "/";
  const std::vector<ino_t> inodes = {Inode(attempt + ShardName(0)), Inode(attempt + ShardName(1))};
  killed.reset();  // Closes its files but leaves them.

  ASSERT_TRUE(OpenRoot(*queue_, root_.path(), {.folders = 1, .shards = 2}).ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(kLockName, SpareName(0), kWriterName, StepName(1)));
  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0), ShardName(1))) << "the third rank's is not needed";
  EXPECT_TRUE(SaveNext({.step = 6, .shards = 2, .recycle = true}));
  const std::string committed = root_ / StepName(6) + "/";
  EXPECT_THAT((std::vector<ino_t>{Inode(committed + ShardName(0)), Inode(committed + ShardName(1))}), inodes);
  EXPECT_EQ(CheckContent(root_.path(), old_), Status::Ok());
}

TEST_F(RecycleTest, SweepMakesSparesOfAnInterruptedRemoval) {
  fs::copy(root_ / StepName(1), root_ / RetiredName("x"), fs::copy_options::recursive);

  ASSERT_TRUE(OpenRoot(*queue_, root_.path(), {.folders = 1, .shards = 1}).ok());

  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0)));
  EXPECT_TRUE(SaveNext());
  EXPECT_EQ(CheckContent(root_.path(), old_), Status::Ok());
}

TEST_F(RecycleTest, SweepKeepsFilesOfOneCheckpointOnly) {
  const ino_t retired = Inode(OldShard());
  ASSERT_EQ(RetireOld(), Status::Ok());
  {
    TestRanks killed(*queue_, root_.path(), {.step = 5});
    ASSERT_EQ(killed.Begin(), Status::Ok());
  }

  ASSERT_TRUE(OpenRoot(*queue_, root_.path(), {.folders = 1, .shards = 1}).ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(kLockName, SpareName(0), kWriterName));
  EXPECT_THAT(Names(SpareFolder()), ElementsAre(ShardName(0)));
  EXPECT_EQ(Inode(SpareFile()), retired);
}

TEST_F(RecycleTest, SweepKeepsAsManyAsThePolicyAllows) {
  ASSERT_EQ(RetireOld(), Status::Ok());
  for (const std::uint64_t step : {5U, 6U}) {
    TestRanks killed(*queue_, root_.path(), {.step = step});
    ASSERT_EQ(killed.Begin(), Status::Ok());
  }

  ASSERT_TRUE(OpenRoot(*queue_, root_.path(), {.folders = 2, .shards = 1}).ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(kLockName, SpareName(0), SpareName(1), kWriterName));
  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink, .path = ShardName(0)}), 1U);
}

TEST_F(RecycleTest, SweepUnlinksFilesADeadWriterMayStillWrite) {
  // A ring's writes may outlive the process for a moment and keep the file open.
  TestRanks killed(*queue_, root_.path(), {.step = 5});
  ASSERT_EQ(killed.Begin(), Status::Ok());
  std::string why;

  ASSERT_TRUE(OpenRoot(*queue_, root_.path(),
                       {.folders = 1, .shards = 1, .not_recycled = [&why](const std::string& told) { why = told; }})
                  .ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(kLockName, kWriterName, StepName(1)));
  EXPECT_THAT(why, HasSubstr("it is open or mapped elsewhere"));
}

// Space.

TEST_F(RecycleTest, FullDiskUsesUpTheSpareBeforeASaveFails) {
  for (const auto& [op, full] : {std::pair(IoOp::kFallocate, ENOSPC), std::pair(IoOp::kWrite, ENOSPC),
                                 std::pair(IoOp::kFallocate, EDQUOT), std::pair(IoOp::kWrite, EDQUOT)}) {
    SCOPED_TRACE(IoOpName(op) + std::to_string(full));
    TestRanks ranks(*queue_, root_.path(), {.step = 2, .replace = true, .recycle = true});
    // Retired while the save was already in flight.
    plan_->CallAfter({.op = IoOp::kMkdir}, [&, op = op, full = full](const SeenOperation&) {
      fs::create_directory(SpareFolder());
      WriteAll(SpareFile(), "spare");
      plan_->Fail({.op = op, .nth = 1}, full);
    });

    EXPECT_EQ(ranks.Save(), Status::Ok());

    EXPECT_FALSE(fs::exists(SpareFile()));
    EXPECT_FALSE(ranks.rank(0).recycled());
    plan_->Clear();
  }
}

TEST_F(RecycleTest, DiskThatStaysFullFailsTheSave) {
  plan_->Fail({.op = IoOp::kFallocate}, ENOSPC);

  EXPECT_EQ(SaveTo(*queue_, root_.path(), next_).code(), StatusCode::kNoSpace);

  EXPECT_EQ(plan_->Count({.op = IoOp::kFallocate}), 3U) << "one of the old save, two of this one";
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(1)));
}

// Each operation of the retirement and the take-over fails: the save continues with another file or fails, and all
// checkpoints are intact.
TEST_F(RecycleTest, FailedOperationsLoseNothing) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 2}), Status::Ok());
  ASSERT_EQ(RetireOld(), Status::Ok());
  const std::size_t before = plan_->Count({});
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 3, .recycle = true}), Status::Ok());
  ASSERT_EQ(Retire(*queue_, root_.path(), 2), Status::Ok());
  const std::size_t operations = plan_->Count({}) - before;
  TestSave kept{.step = 3, .recycle = true};
  Sample tried(3);
  for (const bool after : {false, true}) {
    for (const int error : {EIO, ENOSPC}) {
      for (std::size_t k = 1; k <= operations; ++k) {
        if (!tried.Takes()) continue;
        SCOPED_TRACE(std::to_string(error) + (after ? " after" : " at") + " operation " + std::to_string(k));
        plan_->Clear();
        after ? plan_->FailAfter({.nth = k}, error) : plan_->Fail({.nth = k}, error);
        const TestSave save{.step = kept.step + 1, .recycle = true};

        const Status saved = SaveTo(*queue_, root_.path(), save);
        EXPECT_EQ(CheckContent(root_.path(), kept), Status::Ok());
        EXPECT_EQ(CheckContent(root_.path(), save).ok(), saved.ok() || saved.code() == StatusCode::kUnknownOutcome)
            << saved;
        if (saved.ok()) {
          static_cast<void>(Retire(*queue_, root_.path(), kept.step));
          EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
        }

        plan_->Clear();
        ASSERT_TRUE(OpenRoot(*queue_, root_.path()).ok());
        EXPECT_THAT(Names(root_.path()),
                    ::testing::Each(::testing::AnyOf(kLockName, kWriterName, ::testing::StartsWith("step-"))));
        // Give the next round one checkpoint and a spare.
        kept = {.step = save.step + 2, .recycle = true};
        ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = save.step + 1}), Status::Ok());
        ASSERT_EQ(SaveTo(*queue_, root_.path(), kept), Status::Ok());
        for (const std::uint64_t step : GoodSteps(root_.path())) {
          if (step != kept.step) {
            ASSERT_EQ(Retire(*queue_, root_.path(), step), Status::Ok());
          }
        }
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace cairn
