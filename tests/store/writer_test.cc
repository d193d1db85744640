// One writer for each root: the lock, `.writer`, the fence at Open, and a writer that was displaced by another.

#include "store/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "store/names.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "support/forked.h"
#include "support/hooked_calls.h"
#include "support/lost_lock.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class WriterTest : public ::testing::Test {
 protected:
  using Opened = std::unique_ptr<Root>;

  Opened Open(const RootOptions& options) {
    Result<Opened> root = Root::Open(*queue_, options);
    EXPECT_TRUE(root.ok()) << root.status();
    return root.ok() ? *std::move(root) : nullptr;
  }
  Opened Open() { return Open({.path = root_}); }
  /// By another writer with its own queue.
  Opened TakeOver() {
    const auto queue = MakeQueue();
    Result<Opened> root = Root::Open(*queue, {.path = root_, .take_over = true});
    EXPECT_TRUE(root.ok()) << root.status();
    return root.ok() ? *std::move(root) : nullptr;
  }
  static WriterCheck CheckOf(const Opened& root) {
    return [raw = root.get()] { return raw->CheckWriter(); };
  }
  Status SaveBy(const Opened& root, const TestSave& save) { return SaveTo(*queue_, root->at(), save, CheckOf(root)); }
  Status RetireBy(const Opened& root, std::uint64_t step, const std::string& attempt = {}) {
    return RemoveCheckpointBlocking(*queue_, root->at(), step, {.attempt = attempt, .check_writer = CheckOf(root)})
        .status;
  }

  TempDir dir_;
  const std::string root_ = dir_ / "root";
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(PlainFactory()));
};

TEST_F(WriterTest, EachOpenWritesTheNextEpoch) {
  Open();
  const auto first = ReadWriter(root_);
  const Opened open = Open();
  const auto second = ReadWriter(root_);

  ASSERT_TRUE(first.ok() && *first && second.ok() && *second);
  EXPECT_EQ((*first)->epoch, 1U);
  EXPECT_EQ((*second)->epoch, 2U);
  EXPECT_NE((*first)->id, (*second)->id);
  EXPECT_EQ((*second)->Describe(), fmt::format("this process ({})", ::getpid()));
  EXPECT_EQ((WriterRecord{.host = "far", .process = 7}.Describe()), "process 7 on \"far\"");
}

TEST_F(WriterTest, EachOpenKeepsTheRootsIdAndLine) {
  std::string id;
  {
    const Opened first = Open();
    id = first->id();
    EXPECT_THAT(id, SizeIs(36));
    EXPECT_EQ(first->line(), 0U);
    EXPECT_EQ(RunTaskBlocking(*queue_, first->WriteLine(3)), Status::Ok());
    EXPECT_EQ(first->line(), 3U);
    EXPECT_EQ(first->CheckWriter(), Status::Ok());
  }
  const Opened second = Open();

  EXPECT_EQ(second->id(), id);
  EXPECT_EQ(second->line(), 4U) << "each begins one";
  const auto record = ReadWriter(root_);
  ASSERT_TRUE(record.ok() && *record) << record.status();
  EXPECT_EQ((*record)->epoch, 2U);
  EXPECT_EQ((*record)->root, id);
  EXPECT_EQ((*record)->line, 4U);
}

TEST_F(WriterTest, TheLastOpeningsAreRecordedInASector) {
  Openings all;
  for (int i = 0; i < 100; ++i) {
    const Opened root = Open();
    all.push_back({root->line(), root->writer_id().substr(0, 8)});
    ASSERT_EQ(root->record().openings.back(), all.back());
    ASSERT_EQ(RunTaskBlocking(*queue_, root->KeepOpening()), Status::Ok());
    ASSERT_LE(fs::file_size(root_ + "/.writer"), 512U);
  }

  const Openings last = (*ReadWriter(root_))->openings;

  ASSERT_THAT(last, SizeIs(::testing::Ge(10U)));
  EXPECT_TRUE(std::equal(last.rbegin(), last.rend(), all.rbegin()));
  const WriterRecord lines{.openings = {{std::numeric_limits<std::uint64_t>::max(), "01234567"}}};
  EXPECT_EQ(DecodeWriter(EncodeWriter(lines), "record")->openings, lines.openings);
  for (const char* bad : {R"([[2,"a"],[1,"b"]])", R"([[1]])", R"([["1","a"]])", "[1]"}) {
    const std::string text = std::string(R"({"epoch":4,"host":"h","id":"i","process":1,"openings":)") + bad + "}";
    EXPECT_THAT(DecodeWriter(text, "record")->openings, IsEmpty()) << bad;
  }
}

TEST_F(WriterTest, OpeningsOfWhichNoOtherRecordKnowsTakeOnePlace) {
  const auto own = [](const Opened& root, std::uint64_t line) { return Opening{line, root->writer_id().substr(0, 8)}; };
  Openings kept;
  {
    const Opened root = Open();
    ASSERT_EQ(RunTaskBlocking(*queue_, root->KeepOpening()), Status::Ok());
    kept.push_back(own(root, 0));
  }
  for (int i = 0; i < 50; ++i) {
    const Opened root = Open();
    ASSERT_EQ(root->line(), 1U + static_cast<std::uint64_t>(i)) << "each begins one";
    EXPECT_EQ(RunTaskBlocking(*queue_, root->WriteLine(root->line())), Status::Ok());
    ASSERT_THAT((*ReadWriter(root_))->openings, ElementsAre(kept[0], own(root, 1)));
  }
  {
    const Opened root = Open();
    ASSERT_EQ(RunTaskBlocking(*queue_, root->KeepOpening()), Status::Ok());
    kept.push_back(own(root, 1));
  }

  const Opened last = Open();

  EXPECT_THAT((*ReadWriter(root_))->openings, ElementsAre(kept[0], kept[1], own(last, 52)));
}

TEST(Lines, AreOfTheRootThatHasBegunThem) {
  const Openings root = {{4, "a"}, {6, "b"}, {9, "c"}};
  EXPECT_TRUE(IsLineOf(root, {{4, "a"}}, 4));
  EXPECT_TRUE(IsLineOf(root, {{4, "a"}}, 5)) << "begun within that opening";
  EXPECT_TRUE(IsLineOf(root, {{4, "a"}, {6, "b"}}, 5));
  EXPECT_TRUE(IsLineOf(root, {{2, "0"}, {4, "a"}, {6, "x"}}, 5)) << "before they parted";
  EXPECT_TRUE(IsLineOf(root, root, 9));
  EXPECT_TRUE(IsLineOf(root, {{6, "b"}}, 1)) << "what was before it is the same";
  EXPECT_FALSE(IsLineOf(root, {{4, "a"}}, 6)) << "another one has begun that";
  EXPECT_FALSE(IsLineOf(root, {{4, "a"}, {6, "x"}}, 6));
  EXPECT_FALSE(IsLineOf(root, {{6, "x"}}, 1));
  EXPECT_FALSE(IsLineOf(root, {{10, "x"}}, 10)) << "it has none";
  EXPECT_FALSE(IsLineOf(root, {{2, "0"}}, 2)) << "too long ago";
  EXPECT_FALSE(IsLineOf({}, {{4, "a"}}, 4));
}

// Of version 1's first writers, or damaged by hand: read as it is.
TEST_F(WriterTest, RecordWithoutIdAndLineGetsThem) {
  for (const char* more : {"", R"(,"root":7,"line":"3")", R"(,"root":"../x","line":-1)"}) {
    fs::remove_all(root_);
    fs::create_directory(root_);
    WriteAll(root_ + "/.writer", std::string(R"({"epoch":4,"host":"h","id":"i","process":1)") + more + "}\n");
    EXPECT_EQ((*ReadWriter(root_))->root, "") << more;
    {
      const Opened reader = Open({.path = root_, .read_only = true});
      EXPECT_EQ((*ReadWriter(root_))->epoch, 4U) << "a reader writes nothing";
    }

    const Opened root = Open();

    EXPECT_THAT(root->id(), SizeIs(36)) << more;
    EXPECT_EQ(root->line(), 1U) << more;
    EXPECT_EQ((*ReadWriter(root_))->epoch, 5U);
    EXPECT_EQ((*ReadWriter(root_))->root, root->id());
  }
}

TEST_F(WriterTest, RecordThatCannotBeUnderstoodIsReplacedAndTold) {
  const std::string before = Open()->id();
  WriteAll(root_ + "/.writer", "rubbish");
  const Opened root = Open();

  EXPECT_NE(root->id(), before);
  EXPECT_THAT(root->notes(), Contains(AllOf(HasSubstr(".writer"), HasSubstr("rubbish"), HasSubstr("a new id"))));
}

TEST_F(WriterTest, LineIsOverwrittenInPlaceOnAFullDisk) {
  const Opened root = Open();
  plan_->Fail({.op = IoOp::kWrite, .path = ".writer-"}, ENOSPC);

  EXPECT_EQ(RunTaskBlocking(*queue_, root->WriteLine(1)), Status::Ok());

  EXPECT_EQ((*ReadWriter(root_))->line, 1U);
  EXPECT_EQ(root->CheckWriter(), Status::Ok());
}

TEST_F(WriterTest, LineThatCannotBeWrittenIsNoLine) {
  const Opened root = Open();
  const std::size_t before = plan_->Count({});
  const std::size_t fsyncs = plan_->Count({.op = IoOp::kFsync});
  ASSERT_EQ(RunTaskBlocking(*queue_, root->WriteLine(1)), Status::Ok());
  const std::size_t operations = plan_->Count({}) - before;
  EXPECT_EQ(plan_->Count({.op = IoOp::kFsync}) - fsyncs, 2U) << "of the draft, and of the root after its rename";
  for (std::size_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE(testing::Message() << "operation " << k << " of " << operations);
    plan_->Clear();
    plan_->Fail({.nth = k}, EIO);

    const Status status = RunTaskBlocking(*queue_, root->WriteLine(k + 1));
    plan_->Clear();

    EXPECT_EQ(root->line(), status.ok() ? k + 1 : k) << status;
    EXPECT_EQ(root->CheckWriter(), Status::Ok());
    EXPECT_EQ(RunTaskBlocking(*queue_, root->WriteLine(k + 1)), Status::Ok());
    EXPECT_EQ((*ReadWriter(root_))->line, k + 1);
  }
}

TEST_F(WriterTest, LineOfAWriterDisplacedAtAnyPointDisplacesNobody) {
  for (const bool full : {false, true}) {
    std::size_t operations = 0;
    for (std::size_t k = 0; k == 0 || k <= operations; ++k) {
      SCOPED_TRACE(testing::Message() << "before operation " << k << " of " << operations << ", full disk: " << full);
      fs::remove_all(root_);
      const Opened first = Open();
      Opened second;
      plan_->Clear();
      if (full) plan_->Fail({.op = IoOp::kWrite, .path = ".writer-"}, ENOSPC);
      if (k != 0) plan_->CallBefore({.nth = k}, [&](const SeenOperation&) { second = TakeOver(); });
      const std::size_t before = plan_->Count({});

      const Status status = RunTaskBlocking(*queue_, first->WriteLine(1));
      plan_->Clear();
      if (k == 0) operations = plan_->Count({}) - before;
      if (k == 0 || (full && second == nullptr)) continue;  // That operation is the one that fails.

      ASSERT_NE(second, nullptr);
      EXPECT_EQ(second->CheckWriter(), Status::Ok()) << status;
      EXPECT_EQ(first->CheckWriter().code(), StatusCode::kFailedPrecondition);
      EXPECT_EQ(second->id(), first->id());
      EXPECT_EQ(RunTaskBlocking(*queue_, second->WriteLine(3)), Status::Ok());
      EXPECT_EQ((*ReadWriter(root_))->line, 3U);
    }
  }
}

TEST_F(WriterTest, InvalidRecordIsCorruptAndReplaced) {
  const std::string good = EncodeWriter({.epoch = 3, .id = "i", .host = "h", .process = 1});
  ASSERT_TRUE(DecodeWriter(good, "f").ok());
  for (const char* bad : {"", "{}", "[]", "{\"epoch\":-1,\"id\":\"i\",\"host\":\"h\",\"process\":1}",
                          "{\"epoch\":1,\"id\":1,\"host\":\"h\",\"process\":1}", "{\"epoch\":1,\"id\":\"i\""}) {
    const Status status = DecodeWriter(bad, "the-file").status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << bad;
    EXPECT_THAT(status.message(), HasSubstr("the-file"));
  }

  fs::create_directory(root_);
  WriteAll(root_ + "/.writer", "rubbish");
  const Opened root = Open();

  EXPECT_EQ(root->CheckWriter(), Status::Ok());
  EXPECT_EQ((*ReadWriter(root_))->epoch, 1U);
}

TEST_F(WriterTest, LockOutlivesOtherDescriptorsOfItsFile) {
  const Opened root = Open();

  // Copying the root opens and closes every file in it from this process.
  fs::copy(root_, dir_ / "copy", fs::copy_options::recursive);
  EXPECT_EQ(ReadAll(root_ + "/.lock"), "");

  Forked other([this](const Say&) {
    const auto queue = MakeQueue();
    return Root::Open(*queue, {.path = root_}).status().code() == StatusCode::kFailedPrecondition ? 0 : 1;
  });
  EXPECT_EQ(other.Wait(Deadline::In(std::chrono::minutes(1))).value, 0);
  EXPECT_EQ(root->CheckWriter(), Status::Ok());
}

TEST_F(WriterTest, OpenWaitsForAWriterToEnd) {
  Forked before([this](const Say& say) {
    const auto queue = MakeQueue();
    const auto root = OpenRoot(*queue, root_);
    say(root.ok() ? "open" : "not open");
    ::pause();
    return 0;
  });
  ASSERT_EQ(before.NextLine(Deadline::In(std::chrono::minutes(1))), "open");
  // Kill it after this Open has found the lock and reads the name of its holder.
  std::optional<Result<Opened>> opened;
  bool killed = false;
  const CallHook hook = [&](const seccomp_data& call) {
    if (PathOf(call) == kWriterName && !std::exchange(killed, true)) before.Kill();
    return 0;
  };
  if (!RunHooked(SYS_openat, hook, [&] {
        const auto queue = MakeQueue();
        opened = Root::Open(*queue, {.path = root_, .wait = std::chrono::minutes(1)});
      })) {
    GTEST_SKIP() << "system calls cannot be hooked here";
  }

  EXPECT_TRUE(killed);
  EXPECT_TRUE(opened->ok()) << opened->status();
}

TEST_F(WriterTest, WithoutLocksOnlyTheRecordTellsWritersApart) {
  const auto without_locks = [this](Opened& into) {
    const CallHook no_locks = [](const seccomp_data& call) { return call.args[1] == F_OFD_SETLK ? ENOLCK : 0; };
    return RunHooked(SYS_fcntl, no_locks, [&] {
      const auto queue = MakeQueue();
      auto root = Root::Open(*queue, {.path = root_});
      if (root.ok()) into = *std::move(root);
    });
  };
  Opened first;
  Opened second;
  if (!without_locks(first)) GTEST_SKIP() << "system calls cannot be hooked here";
  ASSERT_NE(first, nullptr);
  EXPECT_THAT(first->notes(), ElementsAre(HasSubstr("does not support locks")));
  EXPECT_EQ(SaveBy(first, {.step = 1}), Status::Ok());

  ASSERT_TRUE(without_locks(second));

  ASSERT_NE(second, nullptr);
  EXPECT_EQ(SaveBy(first, {.step = 2}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(SaveBy(second, {.step = 3}), Status::Ok());
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1, 3));
}

TEST_F(WriterTest, ReplacedLockIsATakeOverButARemovedOneIsNot) {
  const Opened root = Open();
  fs::remove(root_ + "/.lock");
  EXPECT_EQ(SaveBy(root, {.step = 1}), Status::Ok());

  WriteAll(root_ + "/.lock", "");

  const Status status = SaveBy(root, {.step = 2});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr("taken over by another process"));
  EXPECT_EQ(RetireBy(root, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1));
}

TEST_F(WriterTest, RemovedOrCopiedRecordIsNotATakeOver) {
  const Opened root = Open();
  fs::copy(root_ + "/.writer", dir_ / "copy");
  fs::remove(root_ + "/.writer");
  EXPECT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
  fs::copy(dir_ / "copy", root_ + "/.writer");
  EXPECT_EQ(SaveBy(root, {.step = 2}), Status::Ok());
  fs::remove(root_ + "/.writer");
  fs::remove(root_ + "/.lock");
  EXPECT_EQ(SaveBy(root, {.step = 3}).code(), StatusCode::kFailedPrecondition) << "not provably the writer";
}

TEST_F(WriterTest, WriterFollowsAMovedRoot) {
  const Opened root = Open();
  ASSERT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
  const Opened other = Open({.path = dir_ / "other"});
  ASSERT_EQ(SaveBy(other, {.step = 1, .seed = 1}), Status::Ok());

  fs::rename(root_, dir_ / "moved");
  fs::rename(dir_ / "other", root_);

  EXPECT_EQ(SaveBy(root, {.step = 2}), Status::Ok());
  EXPECT_EQ(RetireBy(root, 1), Status::Ok());
  EXPECT_THAT(SweepNow(*queue_, root->path()), IsEmpty());
  EXPECT_THAT(GoodSteps(dir_ / "moved"), ElementsAre(2));
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1));
  EXPECT_EQ(CheckContent(root_, {.step = 1, .seed = 1}), Status::Ok());
  EXPECT_EQ(root->CheckPath().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(root->CheckPath().message(), HasSubstr(root_ + " is another directory now"));
}

TEST_F(WriterTest, RemovedRootFailsSaves) {
  const Opened root = Open();
  fs::remove_all(root_);

  EXPECT_FALSE(SaveBy(root, {.step = 1}).ok());

  EXPECT_FALSE(fs::exists(root_));
  EXPECT_THAT(root->CheckPath().message(), HasSubstr("no longer exists"));
}

TEST_F(WriterTest, OpenTakesOverOnlyOnRequestAndNamesTheOther) {
  const Opened first = Open();
  EXPECT_EQ(Root::Open(*queue_, {.path = root_}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(first->CheckWriter(), Status::Ok());

  const Opened second = TakeOver();

  EXPECT_THAT(second->notes(), ElementsAre(HasSubstr("taken over from this process")));
  EXPECT_EQ(second->CheckWriter(), Status::Ok());
  const Status displaced = first->CheckWriter();
  EXPECT_EQ(displaced.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(displaced.message(), HasSubstr("taken over by this process"));
  // And the lock is the second writer's.
  EXPECT_EQ(Root::Open(*queue_, {.path = root_}).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(WriterTest, SaveDisplacedAtAnyPointIsListedAtOnceOrNever) {
  std::size_t operations = 0;
  {
    const Opened root = Open();
    const std::size_t before = plan_->Count({});
    ASSERT_EQ(SaveBy(root, {.step = 1, .shards = 2}), Status::Ok());
    operations = plan_->Count({}) - before;
  }
  int listed_ones = 0;
  for (std::size_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE(testing::Message() << "before operation " << k << " of " << operations);
    fs::remove_all(root_);
    const Opened first = Open();
    Opened second;
    std::vector<std::uint64_t> listed;
    plan_->Clear();
    plan_->CallBefore({.nth = k}, [&](const SeenOperation&) {
      second = TakeOver();
      listed = GoodSteps(root_);
    });

    const Status status = SaveBy(first, {.step = 1, .shards = 2});
    plan_->Clear();

    EXPECT_EQ(GoodSteps(root_), listed) << "nothing is added after the listing: " << status;
    if (status.ok()) {
      EXPECT_THAT(listed, ElementsAre(1)) << "an acknowledged step is listed";
    }
    listed_ones += listed.empty() ? 0 : 1;
    EXPECT_EQ(SaveTo(*queue_, second->at(), {.step = 2}, CheckOf(second)), Status::Ok());
    EXPECT_EQ(SaveBy(first, {.step = 3}).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_GT(listed_ones, 0);
}

TEST_F(WriterTest, ReplacementDisplacedAtAnyPointLosesNothing) {
  const TestSave old{.step = 1, .seed = 1};
  const TestSave fresh{.step = 1, .seed = 2, .replace = true};
  std::size_t operations = 0;
  for (std::size_t k = 0; k == 0 || k <= operations; ++k) {
    SCOPED_TRACE(testing::Message() << "before operation " << k << " of " << operations);
    fs::remove_all(root_);
    const Opened first = Open();
    ASSERT_EQ(SaveBy(first, old), Status::Ok());
    Opened second;
    plan_->Clear();
    plan_->RefuseRenameFlags();
    if (k != 0) plan_->CallBefore({.nth = k}, [&](const SeenOperation&) { second = TakeOver(); });
    const std::size_t before = plan_->Count({});

    const Status status = SaveBy(first, fresh);
    plan_->Clear();
    if (k == 0) operations = plan_->Count({}) - before;

    const bool replaced = CheckContent(root_, fresh).ok();
    EXPECT_TRUE(replaced || CheckContent(root_, old).ok()) << status;
    EXPECT_TRUE(replaced || !status.ok());
  }
}

// A successor on a full disk cannot replace the file.
TEST_F(WriterTest, RecordOverwrittenInPlaceIsATakeOver) {
  const Opened root = Open();
  WriteAll(root_ + "/.writer", EncodeWriter({.epoch = 2, .id = "i", .host = "far", .process = 7}));

  const Status displaced = root->CheckWriter();

  EXPECT_EQ(displaced.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(displaced.message(), HasSubstr("taken over by process 7 on \"far\""));
}

TEST_F(WriterTest, LostLockEndsTheWriterForGood) {
  const Opened root = Open();
  ASSERT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
  ASSERT_GT(DropLock(root_ + "/.lock"), 0);

  const Status lost = SaveBy(root, {.step = 2});

  EXPECT_EQ(lost.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(lost.message(), HasSubstr("the lock of " + root_ + " was lost: the NFS server may have restarted"));
  EXPECT_THAT(lost.message(), HasSubstr("open the root again"));
  EXPECT_EQ(RetireBy(root, 1), lost);
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1));
  {
    const auto queue = MakeQueue();
    const auto again = Root::Open(*queue, {.path = root_});
    ASSERT_TRUE(again.ok()) << "the writer took it again: " << again.status();
    EXPECT_EQ(SaveBy(*again, {.step = 3}), Status::Ok());
  }
  fs::remove(root_ + "/.writer");  // Now only the lock would tell.
  EXPECT_EQ(TakeLockAgain(root_ + "/.lock"), true);
  EXPECT_THAT(SaveBy(root, {.step = 4}).message(), HasSubstr("was lost"))
      << "another may have been the writer meanwhile";
}

// The moment before the other writes its name.
TEST_F(WriterTest, LostLockThatAnotherHasTakenIsFoundBeforeItIsNamed) {
  const Opened root = Open();
  ASSERT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
  ASSERT_GT(DropLock(root_ + "/.lock"), 0);
  const auto other = WriterLock::TryTake(root_, 0644);
  ASSERT_TRUE(other.ok() && *other);

  EXPECT_THAT(SaveBy(root, {.step = 2}).message(), HasSubstr("was lost"));
  EXPECT_THAT(RetireBy(root, 1).message(), HasSubstr("was lost"));

  EXPECT_TRUE((*other)->Held());
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1));
}

TEST_F(WriterTest, LostLockNamesTheWriterThatHasItNow) {
  const Opened first = Open();
  ASSERT_GT(DropLock(root_ + "/.lock"), 0);
  const Opened second = Open();

  const Status lost = SaveBy(first, {.step = 1});

  EXPECT_THAT(lost.message(),
              HasSubstr(fmt::format("was lost: the NFS server may have restarted; this process ({}) may "
                                    "have it now",
                                    ::getpid())));
  EXPECT_EQ(SaveBy(second, {.step = 1}), Status::Ok());
}

// So an NFS client answers that could not get a lock back, although it lists the lock still.
TEST_F(WriterTest, LockWhoseFileFailsIsLost) {
  const Opened root = Open();
  Status lost;
  const CallHook fails = [](const seccomp_data&) { return EIO; };
  if (!RunHooked(SYS_pread64, fails, [&] { lost = root->CheckWriter(); })) {
    GTEST_SKIP() << "system calls cannot be hooked here";
  }

  EXPECT_FALSE(lost.ok());
  EXPECT_THAT(root->CheckWriter().message(), HasSubstr("was lost"));
}

// The displaced writer knows the name of the folder that its successor is replacing.
TEST_F(WriterTest, DisplacedWriterRetiresNothingOfItsSuccessor) {
  const Opened first = Open();
  ASSERT_EQ(SaveBy(first, {.step = 1, .seed = 1}), Status::Ok());
  const Opened second = TakeOver();
  fs::rename(root_ + "/" + StepName(1), root_ + "/" + ReplacedName(1, "of-the-successor"));

  const Status status = RunTaskBlocking(*queue_, RemoveReplaced(first->at(), 1, CheckOf(first)));

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::exists(root_ + "/" + ReplacedName(1, "of-the-successor")));
}

TEST_F(WriterTest, ReplacementRemovesOnlyItsReplacedFolder) {
  const Opened first = Open();
  ASSERT_EQ(SaveBy(first, {.step = 1, .seed = 1}), Status::Ok());
  Opened second;
  plan_->RefuseRenameFlags();
  // The successor opens after the commit and replaces the step again.
  plan_->CallBefore({.op = IoOp::kRename, .path = ".retired-", .nth = 1}, [&](const SeenOperation&) {
    second = TakeOver();
    fs::rename(root_ + "/" + StepName(1), root_ + "/" + ReplacedName(1, "of-the-successor"));
  });

  ASSERT_EQ(SaveBy(first, {.step = 1, .seed = 2, .replace = true}), Status::Ok());

  EXPECT_TRUE(fs::exists(root_ + "/" + ReplacedName(1, "of-the-successor")));
}

TEST_F(WriterTest, RetirementDisplacedAtAnyPointKeepsListedSteps) {
  std::size_t operations = 0;
  {
    const Opened root = Open();
    ASSERT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
    const std::size_t before = plan_->Count({});
    ASSERT_EQ(RetireBy(root, 1), Status::Ok());
    operations = plan_->Count({}) - before;
  }
  for (std::size_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE(testing::Message() << "before operation " << k << " of " << operations);
    fs::remove_all(root_);
    const Opened first = Open();
    ASSERT_EQ(SaveBy(first, {.step = 1}), Status::Ok());
    Opened second;
    std::vector<std::uint64_t> listed;
    plan_->Clear();
    plan_->CallBefore({.nth = k}, [&](const SeenOperation&) {
      second = TakeOver();
      listed = GoodSteps(root_);
    });

    const Status status = RetireBy(first, 1);
    plan_->Clear();

    // Displaced between its rename and the following check, it restores a step that nobody has listed.
    const std::vector<std::uint64_t> now = GoodSteps(root_);
    EXPECT_TRUE(now == listed || (listed.empty() && !status.ok())) << status;
    if (!now.empty()) {
      EXPECT_EQ(CheckContent(root_, {.step = 1}), Status::Ok());
    }
  }
}

TEST_F(WriterTest, RetirementKeepsACheckpointOfAnotherAttempt) {
  const Opened root = Open();
  ASSERT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
  const std::string attempt = ReadCheckpointFolder(root_ + "/" + StepName(1))->info.attempt;

  const Status other = RetireBy(root, 1, "another-attempt");

  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition) << other;
  EXPECT_THAT(other.message(), HasSubstr("expected attempt another-attempt, found " + attempt));
  EXPECT_THAT(GoodSteps(root_), ElementsAre(1));
  EXPECT_EQ(RetireBy(root, 1, attempt), Status::Ok());
}

TEST_F(WriterTest, RetirementRestoresAReplacedFolder) {
  const Opened root = Open();
  ASSERT_EQ(SaveBy(root, {.step = 1}), Status::Ok());
  ASSERT_EQ(SaveTo(*queue_, PathAt(dir_ / "root"), {.step = 2}), Status::Ok());
  plan_->CallBefore({.op = IoOp::kRename, .path = ".retired-", .nth = 1}, [&](const SeenOperation&) {
    fs::rename(root_ + "/" + StepName(1), dir_ / "aside");
    fs::rename(root_ + "/" + StepName(2), root_ + "/" + StepName(1));
  });

  const Status status = RetireBy(root, 1);

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(fs::exists(root_ + "/" + StepName(1) + "/manifest.json"));
}

TEST_F(WriterTest, DisplacedWriterKeepsTheSpares) {
  const Opened first = Open();
  fs::create_directory(root_ + "/.spare-0");
  WriteAll(root_ + "/.spare-0/" + ShardName(0), "spare");
  const Opened second = TakeOver();

  EXPECT_FALSE(RunTaskBlocking(*queue_, RemoveSparesTask(first->at(), CheckOf(first))).ok());
  EXPECT_TRUE(fs::exists(root_ + "/.spare-0"));

  EXPECT_TRUE(RunTaskBlocking(*queue_, RemoveSparesTask(second->at(), CheckOf(second))).ok());
  EXPECT_FALSE(fs::exists(root_ + "/.spare-0"));
}

TEST_F(WriterTest, FenceRenamesAttemptsAndRemovesDrafts) {
  fs::create_directories(root_ + "/.attempt-a");
  WriteAll(root_ + "/.attempt-a/" + ShardName(0), "half");
  WriteAll(root_ + "/.writer-old", "");
  WriteAll(root_ + "/.lock-old", "");

  const Opened root = Open();

  const std::vector<SeenOperation> seen = plan_->Seen();
  std::size_t named = seen.size();
  std::size_t fenced = seen.size();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].op == IoOp::kRename && seen[i].path2 == root_ + "/.writer") named = i;
    if (seen[i].op == IoOp::kRename && seen[i].path == root_ + "/.attempt-a") fenced = i;
  }
  EXPECT_LT(named, fenced) << "the successor must be named before it renames an attempt";
  EXPECT_EQ(seen.back().op, IoOp::kFsync);
  EXPECT_EQ(seen.back().path, root_);
  EXPECT_THAT(Names(root_), SizeIs(3));  // .lock, .writer, .retired-<uuid>
  EXPECT_THAT(SweepNow(*queue_, root_), IsEmpty());
  EXPECT_THAT(Names(root_), UnorderedElementsAre(kLockName, kWriterName));
}

}  // namespace
}  // namespace cairn
