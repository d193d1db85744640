// Checkpoints by path: what a path has afterwards, and what is rejected.

#include "store/publish.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/status_macros.h"
#include "publish_case.h"
#include "store/locks.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::chrono::milliseconds kShort{50};

class PublishTest : public PublishCase {
 protected:
  const TestSave first_{.step = 1, .shards = 2};
  const TestSave second_{.step = 2};
};

TEST_F(PublishTest, PublishesToAnUnusedPath) {
  Stage(first_);

  EXPECT_EQ(PublishNow(1), Status::Ok());

  EXPECT_EQ(CheckFolder(path_, first_), Status::Ok());
  EXPECT_THAT(Staged(), IsEmpty());
}

TEST_F(PublishTest, ReplacesAndRemovesTheOldCheckpoint) {
  StageAndPublish(first_);
  Stage(second_);

  EXPECT_EQ(PublishNow(2), Status::Ok());

  EXPECT_EQ(CheckFolder(path_, second_), Status::Ok());
  EXPECT_THAT(Staged(), IsEmpty());
  EXPECT_THAT(left_, IsEmpty());
}

TEST_F(PublishTest, DirectoriesAreFsyncedBeforeAnythingIsUnlinked) {
  StageAndPublish(first_);
  Stage(second_);
  std::size_t fsyncs = 0;
  std::optional<std::size_t> before;
  plan_->CallAfter({.op = IoOp::kRename}, [&](const SeenOperation&) { fsyncs = plan_->Count({.op = IoOp::kFsync}); });
  plan_->CallBefore({.op = IoOp::kUnlink, .nth = 1},
                    [&](const SeenOperation&) { before = plan_->Count({.op = IoOp::kFsync}) - fsyncs; });

  EXPECT_EQ(RemoveNow(), Status::Ok());

  EXPECT_EQ(before, 2U);
}

TEST_F(PublishTest, RemovedPathHasNothing) {
  StageAndPublish(first_);

  EXPECT_EQ(RemoveNow(), Status::Ok());

  EXPECT_THAT(Names(folder_), ElementsAre(".cairn"));
  EXPECT_THAT(Staged(), IsEmpty());
  EXPECT_EQ(RemoveNow().code(), StatusCode::kNotFound);
}

TEST_F(PublishTest, LinkItselfIsReplacedOrRemoved) {
  Stage(first_);
  const std::string target = folder_ + "/first.ckpt";
  ASSERT_EQ(Publish(*queue_, root_, 1, target, {}, left_), Status::Ok());
  fs::create_directory_symlink("first.ckpt", path_);
  Stage(second_);

  EXPECT_EQ(PublishNow(2), Status::Ok());

  EXPECT_FALSE(fs::is_symlink(path_));
  EXPECT_EQ(CheckFolder(path_, second_), Status::Ok());
  EXPECT_EQ(CheckFolder(target, first_), Status::Ok());
  EXPECT_THAT(Staged(), IsEmpty());
  fs::create_directory_symlink("first.ckpt", folder_ + "/link");
  EXPECT_EQ(RemovePublished(*queue_, root_, folder_ + "/link", {}, left_), Status::Ok());
  EXPECT_THAT(Names(folder_), ElementsAre(".cairn", "first.ckpt", "last.ckpt"));
}

TEST_F(PublishTest, OtherFilesAreLeftAlone) {
  Stage(first_);
  const auto expect_left = [this] {
    EXPECT_EQ(PublishNow(1).code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(RemoveNow().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(CheckContent(root_, first_), Status::Ok());
  };

  WriteAll(path_, "of torch.save");
  expect_left();
  EXPECT_EQ(ReadAll(path_), "of torch.save");

  fs::remove(path_);
  fs::create_directory(path_);
  expect_left();

  WriteAll(path_ + "/manifest.json", "{\"name\": \"a web page\", \"format_version\": 2}");
  expect_left();
  EXPECT_THAT(Names(path_), ElementsAre("manifest.json"));

  fs::remove(path_ + "/manifest.json");
  fs::create_symlink(root_ + "/" + StepName(1) + "/manifest.json", path_ + "/manifest.json");
  expect_left();
}

TEST_F(PublishTest, DamagedCheckpointCanBeReplaced) {
  StageAndPublish(first_);
  const std::string manifest = ReadAll(path_ + "/manifest.json");
  WriteAll(path_ + "/manifest.json", manifest.substr(0, manifest.size() / 2));
  Stage(second_);

  EXPECT_EQ(PublishNow(2), Status::Ok());

  EXPECT_EQ(CheckFolder(path_, second_), Status::Ok());
}

TEST_F(PublishTest, WaitsForAReaderAndNamesItAtTheDeadline) {
  StageAndPublish(first_);
  Stage(second_);
  const auto reader = ReadLock::Take(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();

  const Status published = PublishNow(2, Deadline::In(kShort));
  const Status removed = RemoveNow(Deadline::In(kShort));

  for (const Status& status : {published, removed}) {
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("last.ckpt cannot be replaced or removed"));
    EXPECT_THAT(status.message(), HasSubstr("process " + std::to_string(::getpid())));
  }
  EXPECT_EQ(CheckFolder(path_, first_), Status::Ok());
  EXPECT_EQ(CheckContent(root_, second_), Status::Ok());
}

TEST_F(PublishTest, ReaderThatEndsInTimeOnlyDelays) {
  StageAndPublish(first_);
  Stage(second_);
  auto reader = std::make_optional(ReadLock::Take(path_));
  ASSERT_TRUE(reader->ok()) << reader->status();
  plan_->CallBefore({.op = IoOp::kOpen, .path = "manifest.json", .nth = 3}, [&](const SeenOperation&) {
    EXPECT_EQ(CheckFolder(path_, first_), Status::Ok());
    reader.reset();
  });

  EXPECT_EQ(PublishNow(2), Status::Ok());

  EXPECT_EQ(CheckFolder(path_, second_), Status::Ok());
}

TEST_F(PublishTest, ReaderDuringAReplacementGetsNotFound) {
  StageAndPublish(first_);
  Stage(second_);
  std::optional<StatusCode> found;
  plan_->CallBefore({.op = IoOp::kRename, .nth = 1},
                    [&](const SeenOperation&) { found = ReadLock::Take(path_).status().code(); });

  EXPECT_EQ(PublishNow(2), Status::Ok());

  EXPECT_EQ(found, StatusCode::kNotFound);
}

TEST_F(PublishTest, EntryMadeBetweenLookAndRenameIsNotReplaced) {
  StageAndPublish(first_);
  Stage(second_);
  plan_->CallBefore({.op = IoOp::kRename, .nth = 1}, [&](const SeenOperation&) {
    fs::rename(path_, folder_ + "/moved");
    fs::create_directory(path_);
    WriteAll(path_ + "/precious", "mine");
  });

  EXPECT_FALSE(PublishNow(2).ok());

  EXPECT_EQ(ReadAll(path_ + "/precious"), "mine");
  EXPECT_EQ(CheckFolder(folder_ + "/moved", first_), Status::Ok());
  EXPECT_EQ(CheckContent(root_, second_), Status::Ok());
}

TEST_F(PublishTest, DisplacedWriterTouchesNothing) {
  StageAndPublish(first_);
  Stage(second_);
  const WriterCheck taken_over = [] { return Error(StatusCode::kFailedPrecondition, "taken over"); };

  const Status published = Publish(*queue_, root_, 2, path_, {.check_writer = taken_over}, left_);
  const Status removed = RemovePublished(*queue_, root_, path_, {.check_writer = taken_over}, left_);

  EXPECT_EQ(published.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(removed.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckFolder(path_, first_), Status::Ok());
  EXPECT_EQ(CheckContent(root_, second_), Status::Ok());
}

TEST_F(PublishTest, ImpossiblePathsAreRejected) {
  Stage(first_);
  const auto publish = [this](const std::string& path) { return Publish(*queue_, root_, 1, path, {}, left_).code(); };

  EXPECT_EQ(publish("last.ckpt"), StatusCode::kInvalidArgument);
  EXPECT_EQ(publish("/"), StatusCode::kInvalidArgument);
  EXPECT_EQ(publish(path_ + std::string("\0.bak", 5)), StatusCode::kInvalidArgument);
  EXPECT_EQ(publish(folder_ + "/.."), StatusCode::kInvalidArgument);
  EXPECT_EQ(publish(root_ + "/last.ckpt"), StatusCode::kInvalidArgument);
  EXPECT_EQ(RemovePublished(*queue_, root_, root_ + "/" + StepName(1), {}, left_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(publish(folder_ + "/none/last.ckpt"), StatusCode::kNotFound);
  EXPECT_EQ(Publish(*queue_, root_, 7, path_, {}, left_).code(), StatusCode::kNotFound);

  EXPECT_EQ(CheckContent(root_, first_), Status::Ok());
}

TEST_F(PublishTest, PathOnAnotherFilesystemIsUnsupported) {
  TempDir elsewhere;
  if (fs::space(elsewhere.path()).capacity == fs::space(folder_).capacity) GTEST_SKIP() << "only one filesystem";
  Stage(first_);

  EXPECT_EQ(Publish(*queue_, root_, 1, elsewhere / "last.ckpt", {}, left_).code(), StatusCode::kUnsupported);

  EXPECT_EQ(CheckContent(root_, first_), Status::Ok());
}

TEST_F(PublishTest, WithoutExchangeAUsedPathIsUnchanged) {
  queue_ = MakeQueue(plan_->Wrap(PlainFactory()));
  plan_->RefuseRenameFlags();
  Stage(first_);
  ASSERT_EQ(PublishNow(first_.step), Status::Ok());
  Stage(second_);

  const Status status = PublishNow(second_.step);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status;
  EXPECT_THAT(status.message(), HasSubstr("cannot exchange names"));
  EXPECT_EQ(CheckFolder(path_, first_), Status::Ok());
  EXPECT_EQ(CheckContent(root_, second_), Status::Ok());
}

TEST_F(PublishTest, StepThatIsBeingReadIsNotPublished) {
  Stage(first_);
  std::optional<ReadLock> reader = *ReadLock::Take(JoinPath(root_, StepName(first_.step)));

  EXPECT_EQ(PublishNow(first_.step).code(), StatusCode::kFailedPrecondition);
  reader.reset();

  EXPECT_EQ(PublishNow(first_.step), Status::Ok());
}

}  // namespace
}  // namespace cairn
