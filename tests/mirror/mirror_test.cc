// What a mirror copies, beside a writer that goes on, and what it refuses.

#include "mirror/mirror.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "format/index.h"
#include "mirror_case.h"
#include "store/mirrors.h"
#include "store/names.h"
#include "store/remove.h"
#include "store/spare.h"
#include "support/full_disk.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class MirrorTest : public ::testing::Test, protected MirrorCase {
 protected:
  [[nodiscard]] std::unique_ptr<Mirror> Open(const MirrorRules& rules = {}) {
    return OpenMirror(*queue_, Options(rules));
  }
  [[nodiscard]] static Result<std::optional<Mirror::Copied>> CopyNext(Mirror& mirror) {
    return mirror.CopyNext([] { return false; });
  }
  /// Calls `hook` once, in the middle of the first copy to the target: as its second write begins, so that pieces are
  /// left that no lane has taken yet.
  void InTheMiddle(const std::function<void()>& hook) {
    plan_->CallBefore({.op = IoOp::kWrite, .path = target(), .nth = 2}, [hook](const SeenOperation&) { hook(); });
  }
  void ExpectClean() {
    EXPECT_THAT(Leftovers(root()), IsEmpty());
    EXPECT_THAT(Leftovers(target()), IsEmpty());
  }
  static ino_t InodeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
    return found.st_ino;
  }

  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  const std::shared_ptr<FullDisk> disk_ = FullDisk::Make();
  const std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(disk_->Wrap(PlainFactory())));
};

TEST_F(MirrorTest, CopiesNewestFirstByteForByte) {
  for (const std::uint64_t step : {10, 20, 30}) Save(step);
  const auto mirror = Open();

  const auto copied = CopyAll(*mirror);

  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_THAT(*copied, ElementsAre(30, 20, 10));
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10, 20, 30));
  ExpectClean();
  const auto record = ReadMirrorRecord(root(), MirrorId(target()));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->target, target());
  EXPECT_EQ(record->checkpoints.size(), 3U);
  EXPECT_EQ(record->error, "");
  EXPECT_FALSE(record->copying);
}

// So that training which goes on from the target begins a line above all of the root.
TEST_F(MirrorTest, TheTargetHasTheRootsIdAndLines) {
  Save(10, 0, 7);
  ASSERT_TRUE(CopyAll(*Open()).ok());

  const auto there = ReadWriter(target());

  ASSERT_TRUE(there.ok() && *there) << there.status();
  EXPECT_EQ((*there)->root, id());
  EXPECT_GT((*there)->line, 7U + 100) << "the root may go on unseen, and then be lost";
}

// So that what is in memory, and began before the disk was lost, continues what was copied.
TEST_F(MirrorTest, TheTargetHasTheRootsOpenings) {
  Save(10);
  const auto mirror = Open();
  ASSERT_TRUE(CopyAll(*mirror).ok());
  Openings of_root = (*ReadWriter(root()))->openings;
  ASSERT_THAT(of_root, Not(IsEmpty()));

  Openings there = (*ReadWriter(target()))->openings;

  ASSERT_THAT(there, testing::SizeIs(of_root.size() + 1));
  EXPECT_GT(there.back().line, 100U) << "whatever the root begins unseen is below";
  there.pop_back();
  EXPECT_EQ(there, of_root);
}

TEST_F(MirrorTest, RetiresAtTheTargetByItsOwnRules) {
  for (const std::uint64_t step : {10, 20, 30, 40}) Save(step);
  const auto mirror = Open({.every = 20, .keep_last = 1});
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(40));

  Save(60);
  Save(70);
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(60));

  EXPECT_THAT(GoodSteps(target()), ElementsAre(60));
  EXPECT_THAT(GoodSteps(root()), ElementsAre(10, 20, 30, 40, 60, 70));
}

TEST_F(MirrorTest, RetentionOfTheRootGoesOnWhileACheckpointIsCopied) {
  Save(10);
  const auto mirror = Open();
  Status retired(StatusCode::kInternal, "not called");
  Status recyclable;
  InTheMiddle([&] {
    recyclable = CheckRecyclable(StepFolder(10) + "/" + ShardName(0), 0644);
    retired = Retire(10);
  });

  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10));

  EXPECT_EQ(retired, Status::Ok());
  EXPECT_FALSE(recyclable.ok()) << "a save would write over what is being copied";
  EXPECT_THAT(GoodSteps(root()), IsEmpty());
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  ExpectClean();
}

TEST_F(MirrorTest, AStepReplacedWhileItIsCopiedIsFinishedAndThenReplacedThere) {
  const std::string first = Save(10).info.attempt;
  const auto mirror = Open();
  InTheMiddle([&] { Save(10, 1); });

  const auto copied = CopyNext(*mirror);
  ASSERT_TRUE(copied.ok() && *copied) << copied.status();
  EXPECT_EQ((*copied)->info.attempt, first);
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  const auto again = CopyNext(*mirror);

  ASSERT_TRUE(again.ok() && *again) << again.status();
  EXPECT_NE((*again)->info.attempt, first);
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  EXPECT_THAT(*CopyAll(*mirror), IsEmpty());
  ExpectClean();
}

TEST_F(MirrorTest, AStepReplacedAfterItWasListedIsListedAgain) {
  Save(10);
  const auto mirror = Open();
  plan_->CallBefore({.op = IoOp::kCall, .path = root() + "/" + StepName(10), .nth = 1},
                    [this](const SeenOperation&) { Save(10, 1); });

  const auto copied = CopyNext(*mirror);

  ASSERT_TRUE(copied.ok() && *copied) << copied.status();
  EXPECT_EQ((*copied)->info.attempt, "attempt-1-10-1");
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  ExpectClean();
}

TEST_F(MirrorTest, ADamagedBlockIsNeverMirroredAsGood) {
  Save(10);
  Save(20);
  FlipABit(20, 1, 5'000'000);
  const auto mirror = Open();

  const auto damaged = CopyNext(*mirror);

  EXPECT_EQ(damaged.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(damaged.status().message(),
              AllOf(HasSubstr(StepFolder(20) + "/" + ShardName(1)), HasSubstr("CRC32C"), HasSubstr("\"weight\"")));
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10)) << "it is passed over";
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  EXPECT_THAT(mirror->record().error, HasSubstr("CRC32C"));
  ExpectClean();

  fs::remove_all(StepFolder(20));
  Save(20, 1);
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(20));
  EXPECT_EQ(mirror->record().error, "");
}

TEST_F(MirrorTest, ADamagedNewestLetsTheOneBeforeItThrough) {
  for (const std::uint64_t step : {10, 20, 30}) Save(step);
  FlipABit(30, 1, 5'000'000);
  WriteWholeFile(StepFolder(20) + "/manifest.json", "{}");
  const auto mirror = Open({.keep_last = 1});

  const auto manifest = CopyNext(*mirror);
  const auto block = CopyNext(*mirror);

  EXPECT_THAT(manifest.status().message(), HasSubstr(StepFolder(20) + "/manifest.json"));
  EXPECT_THAT(block.status().message(), HasSubstr("CRC32C"));
  EXPECT_EQ(mirror->damaged(), 2U);
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10));
  EXPECT_NE(mirror->record().error, "");
}

TEST_F(MirrorTest, ADamagedHeaderOrAMissingShardIsNeverMirrored) {
  Save(10);
  Save(20);
  FlipABit(10, 0, 100);
  fs::remove(StepFolder(20) + "/" + ShardName(1));
  const auto mirror = Open();

  const auto missing = CopyNext(*mirror);
  const auto header = CopyNext(*mirror);

  EXPECT_EQ(missing.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(missing.status().message(), HasSubstr(ShardName(1) + ": expected a regular file, found none"));
  EXPECT_EQ(header.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(header.status().message(), HasSubstr("header digest"));
  EXPECT_THAT(*CopyAll(*mirror), IsEmpty());
  EXPECT_THAT(GoodSteps(target()), IsEmpty());
  ExpectClean();
}

TEST_F(MirrorTest, AFullTargetKeepsWhatItHasAndIsTriedAgain) {
  Save(10);
  const auto mirror = Open();
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10));
  Save(20);
  disk_->Limit({.blocks = 1});

  const auto full = CopyNext(*mirror);

  EXPECT_EQ(full.status().code(), StatusCode::kNoSpace) << full.status();
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  EXPECT_THAT(mirror->record().error, HasSubstr("NoSpace"));
  ExpectClean();
  disk_->Limit({});
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(20));
  EXPECT_EQ(mirror->record().error, "");
}

TEST_F(MirrorTest, OneMirrorForARootAndATarget) {
  Save(10);
  const auto mirror = Open();
  const auto queue = MakeQueue();

  const auto second = Mirror::Open(*queue, Options());
  MirrorOptions other = Options();
  other.target = base() + "/disk/other";
  const auto elsewhere = OpenMirror(*queue, other);

  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr("is mirrored to " + target()), HasSubstr("this process")));
  ASSERT_NE(elsewhere, nullptr);
  EXPECT_THAT(*CopyAll(*elsewhere), ElementsAre(10));
  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10));
  EXPECT_EQ(ListMirrors(root()).size(), 2U);
}

TEST_F(MirrorTest, ATargetOfAnotherRootIsRefusedAndLeftAlone) {
  Save(10);
  MirrorCase other;
  other.Save(5);
  MirrorOptions options = Options();
  options.target = other.root();

  const auto refused = Mirror::Open(*queue_, options);
  fs::remove(other.root() + "/.writer");
  const auto nameless = Mirror::Open(*queue_, options);

  for (const auto& one : {refused.status(), nameless.status()}) {
    EXPECT_EQ(one.code(), StatusCode::kFailedPrecondition) << one;
    EXPECT_THAT(one.message(), HasSubstr(id()));
  }
  EXPECT_THAT(ListMirrors(root()), Contains(testing::Field(&MirrorRecord::error, HasSubstr(id()))));
  EXPECT_EQ(other.Compare(other.root(), 5), Status::Ok());
}

TEST_F(MirrorTest, PathsInEachOtherAndRootsWithoutAnIdAreRefused) {
  MirrorOptions inside = Options();
  inside.target = root() + "/mirror";
  EXPECT_EQ(Mirror::Open(*queue_, inside).status().code(), StatusCode::kInvalidArgument);
  inside.target = root() + "/";
  EXPECT_EQ(Mirror::Open(*queue_, inside).status().code(), StatusCode::kInvalidArgument);
  inside.target = base() + "/link";
  fs::create_symlink(root(), inside.target);
  EXPECT_EQ(Mirror::Open(*queue_, inside).status().code(), StatusCode::kInvalidArgument);
  fs::remove(root() + "/.writer");
  EXPECT_THAT(Mirror::Open(*queue_, Options()).status().message(), HasSubstr("has no id"));
}

// The two would raise each other's line counters for ever.
TEST_F(MirrorTest, TheWayBackIsRefusedWhileTheMirrorGoesOn) {
  Save(10);
  std::unique_ptr<Mirror> mirror = Open();
  ASSERT_TRUE(CopyAll(*mirror).ok());
  MirrorOptions back = Options();
  std::swap(back.root, back.target);
  const auto queue = MakeQueue();

  const auto refused = Mirror::Open(*queue, back);
  mirror.reset();
  const auto afterwards = OpenMirror(*queue, back);

  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr(root() + " is mirrored to " + target()), HasSubstr("this process")));
  ASSERT_NE(afterwards, nullptr);
  EXPECT_THAT(*CopyAll(*afterwards), IsEmpty());
}

TEST_F(MirrorTest, OneListIsEnoughForAllThatIsDueInAnUnchangedRoot) {
  for (const std::uint64_t step : {10, 20, 30}) Save(step);
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const auto mirror = Open();
  fs::last_write_time(root(), long_ago);

  const auto first = CopyNext(*mirror);
  Save(40);
  fs::last_write_time(root(), long_ago);  // As if it had not changed.
  const auto rest = CopyAll(*mirror);

  ASSERT_TRUE(first.ok() && *first && rest.ok()) << first.status() << rest.status();
  EXPECT_EQ((*first)->info.step, 30U);
  EXPECT_THAT(*rest, ElementsAre(20, 10, 40)) << "before it ends it looks again";
}

TEST_F(MirrorTest, WhatComesMeanwhileIsCopiedNext) {
  for (const std::uint64_t step : {10, 20}) Save(step);
  const auto mirror = Open();
  fs::last_write_time(root(), fs::file_time_type::clock::now() - std::chrono::hours(1));

  ASSERT_TRUE(CopyNext(*mirror).ok());
  Save(30);

  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(30, 10));
}

TEST_F(MirrorTest, NoMoreThanTheBandwidthIsCopied) {
  Save(10);
  MirrorOptions options = Options();
  options.bandwidth = 40'000'000;

  const auto copied = CopyNext(*OpenMirror(*queue_, options));

  ASSERT_TRUE(copied.ok() && *copied) << copied.status();
  const double piece = 4 << 20;  // The last one ends whenever the disk takes it.
  EXPECT_GE((*copied)->time.count(), (static_cast<double>((*copied)->bytes) - 2 * piece) / 40e6);
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
}

// One that slept while another took the target.
TEST_F(MirrorTest, AWriterThatHasTakenTheTargetOverIsSeenBeforeTheRename) {
  Save(10);
  const auto mirror = Open();
  std::unique_ptr<Root> other;
  const auto queue = MakeQueue();
  InTheMiddle([&] { other = *Root::Open(*queue, {.path = target(), .take_over = true}); });

  const auto copied = CopyNext(*mirror);

  EXPECT_EQ(copied.status().code(), StatusCode::kFailedPrecondition) << copied.status();
  EXPECT_EQ(mirror->Check().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(GoodSteps(target()), IsEmpty());
}

TEST_F(MirrorTest, ARootThatIsMovedEndsItsMirror) {
  Save(10);
  const auto mirror = Open();
  EXPECT_EQ(mirror->Check(), Status::Ok());
  fs::rename(root(), base() + "/moved");

  EXPECT_EQ(CopyNext(*mirror).status().code(), StatusCode::kFailedPrecondition);
  const Status moved = mirror->Check();

  EXPECT_EQ(moved.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(moved.message(), HasSubstr(root() + " was moved"));
  fs::rename(base() + "/moved", root());
}

TEST_F(MirrorTest, WhatIsFrozenIsCopiedOnceAndLinkedThere) {
  frozen = 3;
  Save(10);
  Save(20);
  const auto mirror = Open();

  const auto first = CopyNext(*mirror);
  const auto second = CopyNext(*mirror);

  ASSERT_TRUE(first.ok() && *first && second.ok() && *second) << first.status() << second.status();
  const std::string kept = "/" + KeptName(0, "frozen");
  EXPECT_EQ(InodeOf(target() + "/" + StepName(10) + kept), InodeOf(target() + "/" + StepName(20) + kept));
  EXPECT_GT((*first)->bytes, (*second)->bytes + 1'000'000);
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10, 20));
}

TEST_F(MirrorTest, AKeptFileThatIsDamagedAtTheTargetIsCopied) {
  frozen = 3;
  Save(10);
  const auto mirror = Open();
  ASSERT_TRUE(CopyAll(*mirror).ok());
  fs::resize_file(target() + "/" + StepName(10) + "/" + KeptName(0, "frozen"), 5000);
  Save(20);

  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(20));

  EXPECT_EQ(Compare(target(), 20), Status::Ok());
}

// Which a later process would link into all that it copies.
TEST_F(MirrorTest, AKeptFileThatHasRottedAtTheTargetIsCopied) {
  frozen = 3;
  Save(10);
  ASSERT_TRUE(CopyAll(*Open()).ok());
  const std::string kept = target() + "/" + StepName(10) + "/" + KeptName(0, "frozen");
  std::fstream file(kept, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.put(77);
  file.close();
  Save(20);

  EXPECT_THAT(*CopyAll(*Open()), ElementsAre(20));

  EXPECT_EQ(Compare(target(), 20), Status::Ok());
}

TEST_F(MirrorTest, AnothersSaveOfTheLineIsLeftAsItIs) {
  Save(10);
  ASSERT_TRUE(CopyAll(*Open()).ok());
  fs::remove(root() + "/.mirrors/" + MirrorId(target()) + ".json");
  Save(10, 1);
  const auto inode = InodeOf(target() + "/" + StepName(10) + "/manifest.json");

  EXPECT_THAT(*CopyAll(*Open()), IsEmpty());

  EXPECT_EQ(InodeOf(target() + "/" + StepName(10) + "/manifest.json"), inode);
  EXPECT_THAT(notes(), Contains(HasSubstr("step 10 there is another save of line 1")));
}

TEST_F(MirrorTest, ATargetThatIsMovedEndsItsMirror) {
  Save(10);
  const auto mirror = Open();
  fs::rename(target(), base() + "/moved");
  fs::create_directory(target());

  EXPECT_EQ(CopyNext(*mirror).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(mirror->Check().code(), StatusCode::kFailedPrecondition);

  EXPECT_TRUE(fs::is_empty(target()));
}

TEST_F(MirrorTest, ADiskThatIsNotMountedIsNotFilledBeneath) {
  Save(10);
  ASSERT_TRUE(CopyAll(*Open()).ok());
  fs::rename(target(), base() + "/unmounted");

  const Status refused = Mirror::Open(*queue_, Options()).status();

  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("is its disk mounted?"));
  EXPECT_FALSE(fs::exists(target()));
  fs::remove(root() + "/.mirrors/" + MirrorId(target()) + ".json");
  EXPECT_THAT(*CopyAll(*Open()), ElementsAre(10));
}

TEST_F(MirrorTest, WhatIsPrivateStaysPrivate) {
  Save(10);
  fs::permissions(root(), fs::perms::owner_all);
  fs::permissions(root() + "/.writer", fs::perms::owner_read | fs::perms::owner_write);

  ASSERT_TRUE(CopyAll(*Open()).ok());

  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(target())) {
    const fs::perms others = entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all);
    EXPECT_EQ(others, fs::perms::none) << entry.path();
  }
}

TEST_F(MirrorTest, MarksOfSuspectsFollow) {
  Save(10);
  frozen = 1;
  WriteWholeFile(StepFolder(Save(20).info.step) + "/" + std::string(kSuspectName), "");
  Save(30);
  const auto mirror = Open();
  ASSERT_TRUE(CopyAll(*mirror).ok());
  WriteWholeFile(StepFolder(30) + "/" + std::string(kSuspectName), "");

  ASSERT_TRUE(CopyAll(*mirror).ok());

  const auto list = ListInfos(target());
  ASSERT_EQ(list->size(), 3U);
  EXPECT_FALSE((*list)[0].suspect);
  EXPECT_TRUE((*list)[1].suspect);
  EXPECT_TRUE((*list)[2].suspect);
}

TEST_F(MirrorTest, WithoutHardLinksRetentionWaitsForTheCopy) {
  Save(10);
  const auto mirror = Open();
  plan_->Fail({.op = IoOp::kLink}, EPERM);
  Status retired;
  InTheMiddle([&] { retired = Retire(10); });

  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10));

  EXPECT_EQ(retired.code(), StatusCode::kFailedPrecondition) << retired;
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("locked while they are copied")));
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  ExpectClean();
  EXPECT_EQ(Retire(10), Status::Ok());
}

TEST_F(MirrorTest, WithoutHardLinksATargetThatHangsHoldsRetentionNoLongerThanThat) {
  Save(10);
  MirrorOptions options = Options();
  options.lock_patience = std::chrono::milliseconds(20);
  const auto mirror = OpenMirror(*queue_, options);
  plan_->Fail({.op = IoOp::kLink}, EPERM);
  Status retired;
  InTheMiddle([&] {
    const Deadline deadline = Deadline::In(std::chrono::minutes(1));
    while (!(retired = Retire(10)).ok() && !deadline.passed()) {
    }
  });

  const auto copied = CopyNext(*mirror);

  EXPECT_EQ(retired, Status::Ok());
  EXPECT_EQ(copied.status().code(), StatusCode::kDeadlineExceeded) << copied.status();
  EXPECT_EQ(mirror->damaged(), 0U);
  EXPECT_THAT(GoodSteps(target()), IsEmpty());
  ExpectClean();
}

TEST_F(MirrorTest, AnInterruptionLeavesNothing) {
  Save(10);
  const auto mirror = Open();
  int asked = 0;

  const auto copied = mirror->CopyNext([&asked] { return ++asked > 3; });

  EXPECT_EQ(copied.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(mirror->record().error, "");
  EXPECT_THAT(GoodSteps(target()), IsEmpty());
  ExpectClean();
}

TEST_F(MirrorTest, WhatAFailedCopyCouldNotRemoveIsInNobodysWay) {
  const std::string attempt = Save(10).info.attempt;
  const auto mirror = Open();
  fs::create_directory(target() + "/" + AttemptName(attempt));
  WriteWholeFile(target() + "/" + AttemptName(attempt) + "/" + ShardName(0), "half");

  EXPECT_THAT(*CopyAll(*mirror), ElementsAre(10));

  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
  ExpectClean();
}

TEST_F(MirrorTest, TheIndexIsCopiedAndIfItIsGoneLeftOut) {
  for (const std::uint64_t step : {10, 20}) {
    Save(step);
    Manifest manifest = ReadManifest(StepFolder(step));
    std::vector<std::string> runs;
    for (const char* name : {"a", "b"}) {
      ShardHeader header;
      header.tensors.push_back({.name = name, .shape = {1}, .end = 4});
      runs.push_back(EncodeIndexRun(header));
    }
    const auto index = BuildIndex(runs);
    ASSERT_TRUE(index);
    WriteWholeFile(StepFolder(step) + "/index.cairn", index->bytes);
    manifest.index = ManifestIndex{
        .file = "index.cairn", .length = index->bytes.size(), .head = index->head_bytes, .digest = index->head_digest};
    WriteManifest(StepFolder(step), manifest);
  }
  fs::remove(StepFolder(10) + "/index.cairn");

  EXPECT_THAT(*CopyAll(*Open()), ElementsAre(20, 10));

  EXPECT_EQ(ReadWholeFile(target() + "/" + StepName(20) + "/index.cairn"),
            ReadWholeFile(StepFolder(20) + "/index.cairn"));
  EXPECT_FALSE(fs::exists(target() + "/" + StepName(10) + "/index.cairn"));
  EXPECT_EQ(CheckShardFiles(*ReadCheckpointFolder(target() + "/" + StepName(10))), Status::Ok());
}

TEST_F(MirrorTest, TheRootsNextWriterRemovesWhatAKilledMirrorHeldButNotWhatALiveOneHolds) {
  Save(10);
  const std::string dead = root() + "/.mirrors/" + MirrorId("/dead");
  fs::create_directories(dead);
  fs::copy(StepFolder(10), dead + "/" + StepName(10));
  const auto mirror = Open();
  const std::string held = root() + "/.mirrors/" + MirrorId(target()) + "/" + StepName(10);
  bool was_held = false;
  bool still_held = false;
  InTheMiddle([&] {
    was_held = fs::exists(held);
    const auto queue = MakeQueue();
    const auto writer = Root::Open(*queue, {.path = root()});
    Swept swept;
    EXPECT_EQ(RunTaskBlocking(*queue, SweepTask((*writer)->at(), {}, {}, swept)), Status::Ok());
    still_held = fs::exists(held);
  });

  ASSERT_TRUE(CopyNext(*mirror).ok());

  EXPECT_TRUE(was_held);
  EXPECT_TRUE(still_held);
  EXPECT_FALSE(fs::exists(dead + "/" + StepName(10)));
  ExpectClean();
}

}  // namespace
}  // namespace cairn
