// A root on a disk without a free byte or file: what opens it, and what makes room.

#include "support/full_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>

#include "store/names.h"
#include "store_case.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr FullDisk::Limits kNoFiles{.files = 0};
constexpr FullDisk::Limits kNoBytes{.blocks = 0};
constexpr FullDisk::Limits kNoQuota{.files = 0, .blocks = 0, .error = EDQUOT};
constexpr FullDisk::Limits kNoCopies{.blocks = 0, .copies_on_write = true};

/// Steps 1 and 2, of a writer that has ended. Then the disk is full.
class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto root = OpenRoot(*queue_, root_);
    ASSERT_TRUE(root.ok()) << root.status();
    for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveTo(*queue_, root_, {.step = step}), Status::Ok());
    before_ = *ReadWriter(root_);
  }
  /// What a killed run leaves.
  void LeaveEverything() {
    for (const std::string& name : {AttemptName("a"), RetiredName("b"), SpareName(0), ReplacedName(2, "c")}) {
      fs::copy(root_ + "/" + StepName(2), root_ + "/" + name);
    }
    for (const std::string& name : {WriterDraftName("d"), LockDraftName("e")}) WriteAll(root_ + "/" + name, "draft");
  }
  Result<std::unique_ptr<Root>> Open() { return Root::Open(*queue_, {.path = root_}); }

  const MemoryDir dir_;
  const std::string root_ = dir_ / "root";
  const std::shared_ptr<FullDisk> disk_ = FullDisk::Make();
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  const std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(disk_->Wrap(PlainFactory())));
  std::optional<WriterRecord> before_;
};

struct Full {
  const char* name;
  FullDisk::Limits limits;
};
std::ostream& operator<<(std::ostream& out, const Full& full) { return out << full.name; }

class FullDiskOf : public FullDiskTest, public testing::WithParamInterface<Full> {};

// A run that is killed again and again on a full disk frees itself.
TEST_P(FullDiskOf, OpensAndIsFreedOfWhatAKilledRunLeft) {
  LeaveEverything();
  disk_->Limit(GetParam().limits);

  const auto root = Open();

  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ((*root)->CheckWriter(), Status::Ok());
  EXPECT_EQ((*ReadWriter(root_))->epoch, before_->epoch + 1);
  EXPECT_THAT(SweepNow(*queue_, root_), IsEmpty());
  EXPECT_THAT(Names(root_), UnorderedElementsAre(kLockName, kWriterName, StepName(1), StepName(2)));
  EXPECT_EQ(SaveTo(*queue_, root_, {.step = 3}), Status::Ok()) << "there is room again";
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1, 2, 3));
}

INSTANTIATE_TEST_SUITE_P(Each, FullDiskOf,
                         testing::Values(Full{"no_files", kNoFiles}, Full{"no_bytes", kNoBytes},
                                         Full{"no_quota", kNoQuota}, Full{"no_copies", kNoCopies}),
                         [](const auto& test) { return test.param.name; });

class FullDiskWithoutLeftovers : public FullDiskOf {};

TEST_P(FullDiskWithoutLeftovers, OpensAndRemoves) {
  disk_->Limit(GetParam().limits);

  const auto root = Open();

  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ((*root)->CheckWriter(), Status::Ok());
  const auto record = ReadWriter(root_);
  ASSERT_TRUE(record.ok() && *record) << record.status();
  EXPECT_EQ((*record)->epoch, before_->epoch + 1);
  EXPECT_NE((*record)->id, before_->id);
  EXPECT_EQ(Remove(*queue_, root_, 1), Status::Ok());
  EXPECT_THAT(Names(root_), UnorderedElementsAre(kLockName, kWriterName, StepName(2)));
  EXPECT_EQ(SaveTo(*queue_, root_, {.step = 3}), Status::Ok());
}

INSTANTIATE_TEST_SUITE_P(Each, FullDiskWithoutLeftovers,
                         testing::Values(Full{"no_files", kNoFiles}, Full{"no_bytes", kNoBytes},
                                         Full{"no_quota", kNoQuota}),
                         [](const auto& test) { return test.param.name; });

TEST_F(FullDiskTest, NothingIsRemovedIfTheRecordCanBeWritten) {
  LeaveEverything();
  disk_->Limit(kNoBytes);
  plan_->Clear();
  const std::size_t unlinks = plan_->Count({.op = IoOp::kUnlink, .path = ShardName(0)});

  ASSERT_TRUE(Open().ok());

  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink, .path = ShardName(0)}), unlinks) << "it sweeps while training starts";
}

// A commit of an earlier writer may come late, and a power cut may bring names back.
TEST_F(FullDiskTest, LeftoversLoseTheirNamesDurablyBeforeTheirFiles) {
  LeaveEverything();
  disk_->Limit(kNoCopies);
  const std::size_t begin = plan_->Seen().size();

  ASSERT_TRUE(Open().ok());

  bool renamed = false;
  bool durable = false;
  for (std::size_t i = begin; i < plan_->Seen().size(); ++i) {
    const SeenOperation seen = plan_->Seen()[i];
    renamed = renamed || (seen.op == IoOp::kRename && seen.path == root_ + "/" + AttemptName("a"));
    durable = durable || (renamed && seen.op == IoOp::kFsync && seen.path == root_);
    if (seen.op != IoOp::kUnlink) continue;
    EXPECT_THAT(seen.path, testing::Not(HasSubstr(AttemptName("a"))));
    if (seen.path.find("/.writer-") == std::string::npos && seen.path.find("/.lock-") == std::string::npos) {
      EXPECT_TRUE(durable) << seen.path;
    }
  }
  EXPECT_TRUE(durable);
}

// The record of another name may be that of a copy by hard links.
TEST_F(FullDiskTest, RecordThatCannotBeOverwrittenIsNoSpaceAndLeavesNothing) {
  fs::create_hard_link(root_ + "/.writer", dir_ / "copy");
  disk_->Limit(kNoBytes);

  const Status linked = Open().status();
  fs::remove(dir_ / "copy");
  disk_->Limit(kNoCopies);
  const Status copied = Open().status();
  fs::remove(root_ + "/.writer");
  disk_->Limit(kNoFiles);
  const Status missing = Open().status();

  for (const Status& status : {linked, copied, missing}) {
    EXPECT_EQ(status.code(), StatusCode::kNoSpace);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(root_ + " cannot be opened for writing: "), HasSubstr("/.writer-"),
                                        HasSubstr("it holds 2 checkpoints"), HasSubstr("read_only needs no space")));
  }
  EXPECT_THAT(Names(root_), UnorderedElementsAre(kLockName, StepName(1), StepName(2)));
  disk_->Limit({.files = 1, .blocks = 1});
  EXPECT_EQ(Open().status(), Status::Ok());
}

// A directory without room for one more name, or a filesystem that writes metadata elsewhere.
TEST_F(FullDiskTest, RenameWithoutRoomIsTriedAgainOnceThereIsSome) {
  LeaveEverything();
  plan_->Fail({.op = IoOp::kRename, .path = AttemptName("a"), .nth = 1}, ENOSPC);
  EXPECT_EQ(Open().status(), Status::Ok());

  LeaveEverything();
  plan_->Fail({.op = IoOp::kRename, .path = AttemptName("a")}, ENOSPC);
  const Status status = Open().status();

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cannot be opened for writing"), HasSubstr(AttemptName("a"))));
}

}  // namespace
}  // namespace cairn
