#include "support/power_cut.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/thread_queue.h"
#include "support/faulty_queue.h"
#include "support/recording_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using Tree = std::map<std::string, std::string>;

// Files with their contents, directories with "/".
Tree ReadTree(const std::string& path) {
  Tree tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    const std::string name = entry.path().lexically_relative(path).string();
    if (entry.is_directory()) {
      tree[name] = "/";
    } else {
      std::ifstream file(entry.path());
      tree[name] = {std::istreambuf_iterator<char>(file), {}};
    }
  }
  return tree;
}

class PowerCuts : public testing::Test {
 protected:
  PowerCuts() {
    std::filesystem::create_directory(base_);
    std::filesystem::create_directory(base_ + "/old");
    std::ofstream(base_ + "/old/file") << "before";
    recording_ = Recording::Make(base_);
    plan_ = FaultPlan::Make();
    queue_ = *recording_->Wrap(plan_->Wrap([] { return MakeThreadQueue(2); }))();
  }

  std::int64_t Run(IoRequest request) {
    const auto result = RunBlocking(*queue_, std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : -1;
  }
  int Open(const std::string& name, int flags = O_RDWR | O_CREAT) {
    return static_cast<int>(Run({.op = IoOp::kOpen, .path = base_ + "/" + name, .flags = flags, .mode = 0644}));
  }
  void Write(int fd, std::string text, std::uint64_t offset = 0) {
    Run({.op = IoOp::kWrite, .fd = fd, .buffer = text.data(), .length = text.size(), .offset = offset});
  }
  void Fsync(int fd) { Run({.op = IoOp::kFsync, .fd = fd}); }
  void Close(int fd) { Run({.op = IoOp::kClose, .fd = fd}); }
  void FsyncDirectory(const std::string& name) {
    const int fd = Open(name, O_RDONLY | O_DIRECTORY);
    Fsync(fd);
    Close(fd);
  }
  void Mkdir(const std::string& name) { Run({.op = IoOp::kMkdir, .path = base_ + "/" + name, .mode = 0755}); }
  void Rename(const std::string& from, const std::string& to, RenameMode mode = RenameMode::kNoReplace) {
    Run({.op = IoOp::kRename, .path = base_ + "/" + from, .path2 = base_ + "/" + to, .rename = mode});
  }

  // The tree after a power cut, now or after `upto` operations.
  Tree Cut(PowerCut cut = {}, std::optional<std::size_t> upto = {}) {
    const std::string target = dir_ / ("cut" + std::to_string(++cuts_));
    const Status status = MaterializeAfterPowerCut(*recording_, upto.value_or(recording_->size()), target, cut);
    EXPECT_TRUE(status.ok()) << status;
    return ReadTree(target);
  }
  static Tree OldAnd(Tree more) {
    more.insert({{"old", "/"}, {"old/file", "before"}});
    return more;
  }

  TempDir dir_;
  const std::string base_ = dir_ / "base";
  std::shared_ptr<Recording> recording_;
  std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<IoQueue> queue_;
  int cuts_ = 0;
};

TEST_F(PowerCuts, OlderFilesSurvive) { EXPECT_EQ(Cut(), OldAnd({})); }

TEST_F(PowerCuts, NewFileNeedsItsDirectorysFsync) {
  const int fd = Open("new");
  Write(fd, "data");
  Fsync(fd);
  EXPECT_EQ(Cut(), OldAnd({}));

  FsyncDirectory(".");

  EXPECT_EQ(Cut(), OldAnd({{"new", "data"}}));
  Close(fd);
}

TEST_F(PowerCuts, DataAndSizeAreFromTheLastFsync) {
  const int fd = Open("new");
  FsyncDirectory(".");
  EXPECT_EQ(Cut(), OldAnd({{"new", ""}}));

  Write(fd, "first");
  Fsync(fd);
  Write(fd, "SECOND");
  Run({.op = IoOp::kFallocate, .fd = fd, .length = 100});
  Run({.op = IoOp::kSyncRange, .fd = fd, .length = 100});
  EXPECT_EQ(Cut(), OldAnd({{"new", "first"}}));
  Run({.op = IoOp::kFtruncate, .fd = fd, .length = 3});
  Fsync(fd);

  EXPECT_EQ(Cut(), OldAnd({{"new", "SEC"}}));
  Close(fd);
}

TEST_F(PowerCuts, OverwrittenAndTruncatedFilesKeepTheirOldBytes) {
  const int fd = Open("old/file", O_RDWR | O_TRUNC);
  Write(fd, "after");

  EXPECT_EQ(Cut(), OldAnd({}));
  EXPECT_EQ(Cut({.data = true}), (Tree{{"old", "/"}, {"old/file", "after"}}));
  Close(fd);
}

TEST_F(PowerCuts, FsyncCoversOnlyOperationsCompletedBeforeIt) {
  const int fd = Open("new");
  FsyncDirectory(".");
  Write(fd, "first");
  const FaultGate gate = plan_->Hold({.op = IoOp::kFsync});
  bool synced = false;
  queue_->Submit({.op = IoOp::kFsync, .fd = fd}, [&](std::int64_t) { synced = true; });

  Write(fd, "later");
  gate.Release();
  while (!synced) ASSERT_TRUE(queue_->RunOnce(Deadline::Infinite()).ok());

  EXPECT_EQ(Cut(), OldAnd({{"new", "first"}}));
  Close(fd);
}

TEST_F(PowerCuts, FailedFsyncCoversNothing) {
  const int fd = Open("new");
  FsyncDirectory(".");
  Write(fd, "data");
  plan_->FailAfter({.op = IoOp::kFsync}, EIO);

  EXPECT_FALSE(RunBlocking(*queue_, {.op = IoOp::kFsync, .fd = fd}).ok());

  EXPECT_EQ(Cut(), OldAnd({{"new", ""}}));
  Close(fd);
}

TEST_F(PowerCuts, RenameIsLostUntilItsDirectoryIsSynced) {
  Mkdir("attempt");
  FsyncDirectory(".");
  const int fd = Open("attempt/shard");
  Write(fd, "data");
  Fsync(fd);
  Close(fd);
  FsyncDirectory("attempt");

  Rename("attempt", "step");
  EXPECT_EQ(Cut(), OldAnd({{"attempt", "/"}, {"attempt/shard", "data"}}));
  EXPECT_EQ(Cut({.entries = true}), OldAnd({{"step", "/"}, {"step/shard", "data"}}));
  FsyncDirectory(".");

  EXPECT_EQ(Cut(), OldAnd({{"step", "/"}, {"step/shard", "data"}}));
}

TEST_F(PowerCuts, RenamedDirectoryMayBeEmptyUnlessSynced) {
  Mkdir("attempt");
  const int fd = Open("attempt/shard");
  Write(fd, "data");
  Fsync(fd);
  Close(fd);
  Rename("attempt", "step");
  FsyncDirectory(".");

  EXPECT_EQ(Cut(), OldAnd({{"step", "/"}}));
}

TEST_F(PowerCuts, LinkedFileIsOneFileUnderEachNameThatIsSynced) {
  Mkdir("new");
  FsyncDirectory(".");
  const int linked = Open("old/file", O_RDONLY);
  Run({.op = IoOp::kLink, .fd = linked, .path2 = base_ + "/new/file"});
  Close(linked);
  EXPECT_EQ(Cut(), OldAnd({{"new", "/"}}));
  FsyncDirectory("new");
  EXPECT_EQ(Cut(), OldAnd({{"new", "/"}, {"new/file", "before"}}));
  EXPECT_EQ(std::filesystem::hard_link_count(dir_ / ("cut" + std::to_string(cuts_) + "/new/file")), 2U);

  const int fd = Open("new/file", O_RDWR);
  Write(fd, "AFTER!");
  Fsync(fd);
  Close(fd);
  EXPECT_EQ(Cut(), (Tree{{"old", "/"}, {"old/file", "AFTER!"}, {"new", "/"}, {"new/file", "AFTER!"}}));
  Run({.op = IoOp::kUnlink, .path = base_ + "/old/file"});
  EXPECT_EQ(Cut({.entries = true}), (Tree{{"old", "/"}, {"new", "/"}, {"new/file", "AFTER!"}}));
}

TEST_F(PowerCuts, ExchangeIsLostUntilTheDirectoryIsSynced) {
  Mkdir("new");
  FsyncDirectory(".");
  Rename("new", "old", RenameMode::kExchange);

  EXPECT_EQ(Cut(), OldAnd({{"new", "/"}}));
  FsyncDirectory(".");

  EXPECT_EQ(Cut(), (Tree{{"old", "/"}, {"new", "/"}, {"new/file", "before"}}));
}

TEST_F(PowerCuts, RenameBetweenDirectoriesNeedsBothFsyncs) {
  Mkdir("to");
  FsyncDirectory(".");
  Rename("old/file", "to/file");
  FsyncDirectory("to");
  EXPECT_EQ(Cut(), OldAnd({{"to", "/"}, {"to/file", "before"}}));

  FsyncDirectory("old");

  EXPECT_EQ(Cut(), (Tree{{"old", "/"}, {"to", "/"}, {"to/file", "before"}}));
}

TEST_F(PowerCuts, RemovalsAreLostUntilTheirDirectoriesAreSynced) {
  Run({.op = IoOp::kUnlink, .path = base_ + "/old/file"});
  EXPECT_EQ(Cut(), OldAnd({}));
  FsyncDirectory("old");
  EXPECT_EQ(Cut(), (Tree{{"old", "/"}}));
  Run({.op = IoOp::kRmdir, .path = base_ + "/old"});
  EXPECT_EQ(Cut(), (Tree{{"old", "/"}}));

  FsyncDirectory(".");

  EXPECT_EQ(Cut(), Tree{});
}

TEST_F(PowerCuts, CanReplayUpToAnyOperation) {
  const int fd = Open("new");
  Write(fd, "data");
  Fsync(fd);
  FsyncDirectory(".");
  const std::size_t durable = recording_->size() - 1;  // The directory's close came last.
  Run({.op = IoOp::kUnlink, .path = base_ + "/new"});
  FsyncDirectory(".");

  EXPECT_EQ(Cut({}, 0), OldAnd({}));
  EXPECT_EQ(Cut({}, durable - 1), OldAnd({}));
  EXPECT_EQ(Cut({}, durable), OldAnd({{"new", "data"}}));
  EXPECT_EQ(Cut(), OldAnd({}));
  EXPECT_EQ(MaterializeAfterPowerCut(*recording_, 1000, dir_ / "x").code(), StatusCode::kInvalidArgument);
  Close(fd);
}

TEST_F(PowerCuts, KeepingEverythingGivesTheFinalTree) {
  Mkdir("attempt");
  const int fd = Open("attempt/shard");
  Write(fd, "0123456789");
  Write(fd, "ab", 4);
  Run({.op = IoOp::kFtruncate, .fd = fd, .length = 8});
  Close(fd);
  Rename("attempt", "step");
  Run({.op = IoOp::kUnlink, .path = base_ + "/old/file"});

  EXPECT_EQ(Cut({.data = true, .entries = true}), ReadTree(base_));
}

TEST_F(PowerCuts, IgnoresOperationsElsewhere) {
  const int fd = Open("../outside");
  Write(fd, "data");
  Fsync(fd);
  Close(fd);
  FsyncDirectory("..");

  EXPECT_EQ(Cut(), OldAnd({}));
}

}  // namespace
}  // namespace cairn
