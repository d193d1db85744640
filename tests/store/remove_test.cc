#include "store/remove.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "store/list.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/pins.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "support/forked.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class RemoveTest : public ::testing::Test {
 protected:
  void Save(const TestSave& save) { ASSERT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok()); }
  [[nodiscard]] std::string StepFolder(std::uint64_t step) const { return root_ / StepName(step); }
  Status RemoveStep(std::uint64_t step) { return Remove(*queue_, root_.path(), step); }

  TempDir root_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(PlainFactory()));
};

TEST_F(RemoveTest, RemovesOnlyTheFolder) {
  Save({.step = 1, .shards = 2});
  Save({.step = 2});
  ASSERT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644), Status::Ok());

  EXPECT_EQ(RemoveStep(1), Status::Ok());

  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(2)));
  EXPECT_EQ(CheckContent(root_.path(), {.step = 2}), Status::Ok());
}

TEST_F(RemoveTest, MissingStepIsNotFound) {
  EXPECT_EQ(RemoveStep(1).code(), StatusCode::kNotFound);
  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644).code(), StatusCode::kNotFound);
}

TEST_F(RemoveTest, StepWithoutAManifestCanBeRemoved) {
  Save({.step = 1});
  fs::remove(StepFolder(1) + "/manifest.json");

  EXPECT_EQ(RemoveStep(1), Status::Ok());

  EXPECT_THAT(Names(root_.path()), IsEmpty());
}

TEST_F(RemoveTest, NothingIsTouchedBeforeTheRootsFsyncHasReturned) {
  Save({.step = 1});
  plan_->CallBefore({.op = IoOp::kRename}, [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync}, EIO); });

  const Status status = RemoveStep(1);

  EXPECT_EQ(status.code(), StatusCode::kUnknownOutcome);
  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink}), 0U);
  const std::vector<std::string> names = Names(root_.path());
  ASSERT_THAT(names, SizeIs(1));
  EXPECT_THAT(names[0], StartsWith(".retired-"));
  EXPECT_THAT(Names(root_ / names[0]), ElementsAre(kManifestName, ShardName(0)));
}

TEST_F(RemoveTest, FailedRenameLeavesTheCheckpoint) {
  Save({.step = 1});
  plan_->Fail({.op = IoOp::kRename}, EIO);

  EXPECT_EQ(RemoveStep(1).code(), StatusCode::kIoError);

  EXPECT_EQ(CheckContent(root_.path(), {.step = 1}), Status::Ok());
}

TEST_F(RemoveTest, FileThatCannotBeUnlinkedIsReported) {
  Save({.step = 1, .shards = 2});
  plan_->Fail({.op = IoOp::kUnlink, .path = ShardName(1)}, EIO);

  const Status status = RemoveStep(1);

  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("step 1 is removed, but some of its files are left"));
  EXPECT_THAT(status.message(), HasSubstr(ShardName(1)));
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
  EXPECT_THAT(Names(root_ / Names(root_.path()).front()), ElementsAre(ShardName(1)));
}

TEST_F(RemoveTest, DirectoryInsideIsLeftAloneAndLinksAreNotFollowed) {
  Save({.step = 1});
  TempDir elsewhere;
  WriteAll(elsewhere / "precious", "mine");
  fs::create_directory_symlink(elsewhere.path(), StepFolder(1) + "/linked");
  fs::create_directory(StepFolder(1) + "/tokenizer");
  WriteAll(StepFolder(1) + "/tokenizer/vocabulary", "mine");

  const Status status = RemoveStep(1);

  EXPECT_THAT(status.message(), HasSubstr("tokenizer is a directory that is not part of a checkpoint"));
  EXPECT_EQ(ReadAll(root_ / Names(root_.path()).front() + "/tokenizer/vocabulary"), "mine");
  EXPECT_THAT(Names(root_ / Names(root_.path()).front()), ElementsAre("tokenizer"));
  EXPECT_EQ(ReadAll(elsewhere / "precious"), "mine");
}

TEST_F(RemoveTest, CheckpointBeingReadStays) {
  Save({.step = 1});
  {
    const auto first = ReadLock::Take(StepFolder(1));
    const auto second = ReadLock::Take(StepFolder(1));
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();

    const Status refused = RemoveStep(1);
    const Status replaced = SaveTo(*queue_, root_.path(), {.step = 1, .seed = 2, .replace = true});

    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr(StepName(1) + " is being read"));
    EXPECT_EQ(replaced.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(replaced.message(), HasSubstr(fmt::format("s by process {}; it is unchanged", ::getpid())));
    EXPECT_EQ(CheckContent(root_.path(), {.step = 1}), Status::Ok());
  }

  EXPECT_EQ(RemoveStep(1), Status::Ok());
  EXPECT_EQ(ReadLock::Take(StepFolder(1)).status().code(), StatusCode::kNotFound);
}

TEST_F(RemoveTest, ReplacementWaitsForReaders) {
  Save({.step = 1});
  std::optional<ReadLock> reader = *ReadLock::Take(StepFolder(1));
  // The first looks whether it is being read, the second waits.
  plan_->CallBefore({.op = IoOp::kCall, .path = StepName(1), .nth = 3}, [&](const SeenOperation&) { reader.reset(); });

  Save({.step = 1, .seed = 2, .replace = true, .reader_timeout = std::chrono::minutes(1)});

  EXPECT_FALSE(reader.has_value());
  EXPECT_EQ(CheckContent(root_.path(), {.step = 1, .seed = 2}), Status::Ok());
}

TEST_F(RemoveTest, ReplacementOfWhatIsRemovedMeanwhileIsAPlainCommit) {
  Save({.step = 1});
  std::optional<ReadLock> reader = *ReadLock::Take(StepFolder(1));
  plan_->CallBefore({.op = IoOp::kCall, .path = StepName(1), .nth = 2}, [&](const SeenOperation&) {
    reader.reset();
    fs::remove_all(StepFolder(1));
  });

  Save({.step = 1, .seed = 2, .replace = true, .reader_timeout = std::chrono::minutes(1)});

  EXPECT_EQ(CheckContent(root_.path(), {.step = 1, .seed = 2}), Status::Ok());
}

TEST_F(RemoveTest, ReaderDuringARemovalGetsNotFound) {
  Save({.step = 1});
  std::optional<StatusCode> found;
  plan_->CallBefore({.op = IoOp::kRename},
                    [&](const SeenOperation&) { found = ReadLock::Take(StepFolder(1)).status().code(); });

  EXPECT_EQ(RemoveStep(1), Status::Ok());

  EXPECT_EQ(found, StatusCode::kNotFound);
}

TEST_F(RemoveTest, ForkedChildDoesNotKeepAReadersLock) {
  Save({.step = 1});
  int wait[2];
  ASSERT_EQ(::pipe(wait), 0);
  auto lock = std::make_optional(ReadLock::Take(StepFolder(1)));
  ASSERT_TRUE(lock->ok()) << lock->status();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(wait[1]);
    char byte = 0;
    static_cast<void>(::read(wait[0], &byte, 1));
    ::_exit(0);
  }

  lock.reset();

  EXPECT_EQ(RemoveStep(1), Status::Ok());
  ::close(wait[0]);
  ::close(wait[1]);
  ::waitpid(child, nullptr, 0);
}

TEST_F(RemoveTest, ForkedChildCannotReleaseAReadersLock) {
  Save({.step = 1});
  auto lock = std::make_optional(ReadLock::Take(StepFolder(1)));
  ASSERT_TRUE(lock->ok()) << lock->status();

  const pid_t child = ::fork();
  if (child == 0) {
    lock.reset();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);

  EXPECT_EQ(RemoveStep(1).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RemoveTest, PinIsDurableListedAndRemovable) {
  Save({.step = 1});
  const auto pinned = [&] { return ReadCheckpointFolder(StepFolder(1))->info.pinned; };

  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644), Status::Ok());
  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644), Status::Ok());
  EXPECT_TRUE(pinned());
  EXPECT_EQ(plan_->Seen().back().op, IoOp::kFsync);
  EXPECT_EQ(plan_->Seen().back().path, StepFolder(1));

  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, std::nullopt, 0644), Status::Ok());
  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, std::nullopt, 0644), Status::Ok());
  EXPECT_FALSE(pinned());

  plan_->Fail({.op = IoOp::kFsync}, EIO);
  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644).code(), StatusCode::kIoError);
  EXPECT_FALSE(pinned());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(1))) << "no draft";
}

// As `touch` and `echo` make them.
TEST_F(RemoveTest, APinWithAnyOtherTextIsAUsersAndKeepsIt) {
  Save({.step = 1});
  for (const char* text : {"", "best", "best\n\n", "for the paper\n"}) {
    WriteAll(StepFolder(1) + "/pinned", text);
    EXPECT_EQ(FindPin(StepFolder(1)), PinOwner::kUser) << text;
    EXPECT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644), Status::Ok());
    EXPECT_EQ(ReadAll(StepFolder(1) + "/pinned"), text);
  }
  EXPECT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kBest, 0644), Status::Ok());
  EXPECT_EQ(ReadAll(StepFolder(1) + "/pinned"), "best\n");
}

TEST_F(RemoveTest, UnreadablePinAndStepCountAsPresent) {
  Save({.step = 1});
  ASSERT_EQ(::chmod(StepFolder(1).c_str(), 0), 0);
  ASSERT_EQ(::chmod(root_.path().c_str(), 0755), 0);
  const auto as_nobody = [&](const std::function<bool()>& ask) {
    Forked child([&](const Say&) { return ::setgid(65534) == 0 && ::setuid(65534) == 0 ? (ask() ? 1 : 0) : 2; });
    return child.Wait(Deadline::In(std::chrono::seconds(60))).value;
  };
  if (as_nobody([] { return true; }) == 2) GTEST_SKIP() << "another user's view needs root";

  EXPECT_EQ(as_nobody([&] { return IsPinned(root_.path(), 1); }), 1);
  EXPECT_EQ(as_nobody([&] { return IsPinned(root_.path(), 2); }), 0) << "there is no such step";
  EXPECT_EQ(as_nobody([&] { return FindPin(StepFolder(1)) == PinOwner::kUser; }), 1) << "keep_best leaves it alone";

  ASSERT_EQ(::chmod(root_.path().c_str(), 0), 0);
  EXPECT_EQ(as_nobody([&] { return StepExists(root_.path(), 1); }), 1);
  EXPECT_EQ(as_nobody([&] { return StepExists(root_.path(), 2); }), 1) << "unknown counts as present";
  ASSERT_EQ(::chmod(root_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(StepFolder(1).c_str(), 0755), 0);
}

TEST_F(RemoveTest, RetentionKeepsAStepWithUnreadablePin) {
  Save({.step = 1});
  // A removal's checks of the reader's lock and of the pin.
  for (const std::size_t nth : {1U, 2U}) {
    plan_->Fail({.op = IoOp::kCall, .nth = nth}, EIO);

    const Removal removal = RemoveCheckpointBlocking(*queue_, root_.path(), 1, {});

    EXPECT_EQ(removal.status.code(), StatusCode::kIoError);
    EXPECT_FALSE(removal.gone);
    EXPECT_EQ(CheckContent(root_.path(), {.step = 1}), Status::Ok());
    plan_->Clear();
  }
}

// NFS renames an open file instead of removing it, and the folder cannot be removed then.
TEST_F(RemoveTest, NothingInAFolderIsOpenWhenItsFilesAreUnlinked) {
  Save({.step = 1});
  Save({.step = 2});
  std::vector<std::string> open;
  plan_->CallBefore({.op = IoOp::kUnlink}, [&](const SeenOperation& seen) {
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = fs::read_symlink(entry.path(), gone).string();
      if (target.starts_with(fs::path(seen.path).parent_path().string())) open.push_back(target);
    }
  });

  EXPECT_EQ(RemoveStep(1), Status::Ok());
  Save({.step = 2, .seed = 1, .replace = true});

  EXPECT_THAT(open, IsEmpty());
  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink}), 4U) << "two manifests, two shards";
}

TEST_F(RemoveTest, OverlaysLowerLayerIsReportedWithARemedy) {
  Save({.step = 1});
  plan_->Fail({.op = IoOp::kRename}, EXDEV);

  const Status status = RemoveStep(1);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("redirect_dir=on"));
  EXPECT_EQ(CheckContent(root_.path(), {.step = 1}), Status::Ok());
}

}  // namespace
}  // namespace cairn
