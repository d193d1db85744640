// Options::mirrors and restore_from: processes beside the job, which nothing waits for, whatever becomes of them.

#include "store/mirrors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/command_process.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "store/names.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// What is told, as it comes.
class Told {
 public:
  EventCallback callback() {
    return [this](const Event& event) {
      if (event.severity == Severity::kInfo) return;
      MutexLock lock(mutex_);
      events_.push_back(event);
      changed_.NotifyAll();
    };
  }
  /// Until an event's message has this.
  Event WaitFor(const std::string& text) {
    const Deadline end = Soon();
    MutexLock lock(mutex_);
    while (true) {
      for (const Event& event : events_) {
        if (event.message.find(text) != std::string::npos) return event;
      }
      if (end.passed()) break;
      changed_.WaitUntil(mutex_, end);
    }
    ADD_FAILURE() << "no event says: " << text;
    return {};
  }
  [[nodiscard]] std::vector<std::string> messages() {
    MutexLock lock(mutex_);
    std::vector<std::string> all;
    for (const Event& event : events_) all.push_back(event.message);
    return all;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Event> events_ CAIRN_GUARDED_BY(mutex_);
};

class MirroredJob : public ::testing::Test {
 protected:
  [[nodiscard]] Options With(std::vector<MirrorSpec> mirrors) {
    Options options = SmallOptions(root_);
    options.keep_last = 0;
    options.mirrors = std::move(mirrors);
    options.mirror_command = CAIRN_CLI;
    options.on_event = told_.callback();
    return options;
  }
  /// One that never answers, nor ends: for a mirror on storage that hangs.
  std::string HungCommand() {
    const std::string path = base_ / "hung";
    std::ofstream(path) << "#!/bin/sh\necho $$ >> " << base_ / "pids"
                        << "\nexec sleep 1000\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  /// Ends it, once it has begun.
  void KillHung() {
    pid_t pid = 0;
    for (const Deadline end = Soon(); !end.passed() && pid == 0; std::this_thread::yield()) {
      std::ifstream pids(base_ / "pids");
      if (!(pids >> pid)) pid = 0;
    }
    ASSERT_NE(pid, 0);
    ::kill(pid, SIGKILL);
  }
  /// The process that mirrors to `target`, once it says so in the root; not an earlier one.
  [[nodiscard]] pid_t ProcessOf(const std::string& target, pid_t besides = 0) const {
    for (const Deadline end = Soon(); !end.passed(); std::this_thread::yield()) {
      for (const MirrorRecord& record : ListMirrors(PathAt(root_))) {
        const auto found = static_cast<pid_t>(record.process);
        if (record.target == target && found != besides) return found;
      }
    }
    ADD_FAILURE() << "no mirror to " << target;
    return 0;
  }
  static std::vector<std::uint64_t> StepsIn(const std::string& root) {
    Options options = SmallOptions(root);
    options.read_only = true;
    const auto reader = OpenOrFail(options);
    return reader == nullptr ? std::vector<std::uint64_t>() : ListedSteps(*reader);
  }

  const TempDir base_;
  const std::string root_ = base_ / "run";
  const std::string near_ = base_ / "near";
  const std::string far_ = base_ / "far";
  Told told_;
};

TEST_F(MirroredJob, HasWhatWasSavedAtItsMirrorsOnceItIsClosed) {
  auto job = OpenOrFail(With({{.target = near_, .keep_last = 1, .bandwidth = 1_GiB}, {.target = far_, .every = 2}}));
  ASSERT_NE(job, nullptr);
  for (const std::uint64_t step : {1, 2, 3}) ASSERT_EQ(SaveDurably(*job, step), Status::Ok());

  job.reset();

  EXPECT_THAT(StepsIn(near_), ElementsAre(3));
  EXPECT_THAT(StepsIn(far_), ElementsAre(2));
  const auto reader = OpenOrFail(With({}));
  const auto list = reader->List();
  ASSERT_TRUE(list.ok());
  std::vector<std::pair<std::uint64_t, std::vector<std::string>>> places;
  for (const CheckpointInfo& info : *list) places.emplace_back(info.step, info.mirrors);
  EXPECT_THAT(places, ElementsAre(std::pair(1, std::vector<std::string>{}), std::pair(2, std::vector{far_}),
                                  std::pair(3, std::vector{near_})));
  EXPECT_THAT(told_.messages(), IsEmpty());
}

TEST_F(MirroredJob, StartsAMirrorAgainThatWasKilled) {
  const auto job = OpenOrFail(With({{.target = far_}}));
  ASSERT_NE(job, nullptr);
  const pid_t first = ProcessOf(far_);
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  const Event event = told_.WaitFor("has ended by signal 9, and is started again");
  static_cast<void>(ProcessOf(far_, first));

  ASSERT_EQ(SaveDurably(*job, 1), Status::Ok());

  EXPECT_EQ(job->WaitMirrored(1, far_, Soon()), Status::Ok());
  EXPECT_EQ(event.message, root_ + ": mirror " + far_ + ": has ended by signal 9, and is started again");
  EXPECT_EQ(event.phase, "mirror");
  EXPECT_EQ(event.path, far_);
  EXPECT_THAT(job->MetricsText(), AllOf(HasSubstr("cairn_mirror_newest_step{"), HasSubstr("cairn_mirror_behind{"),
                                        HasSubstr("cairn_mirror_failures_total{")));
}

TEST_F(MirroredJob, NamesAMirrorThatHangsAndLeavesItBehind) {
  Options options = With({{.target = far_}});
  options.mirror_timeout = std::chrono::milliseconds(50);
  auto job = OpenOrFail(options);
  ASSERT_NE(job, nullptr);
  const pid_t hung = ProcessOf(far_);
  const UniqueFd watched(static_cast<int>(::syscall(SYS_pidfd_open, hung, 0)));
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  ASSERT_EQ(SaveDurably(*job, 1), Status::Ok());

  const auto begun = Deadline::Clock::now();
  job.reset();
  const auto took = Deadline::Clock::now() - begun;
  const std::vector<std::string> messages = told_.messages();
  ASSERT_EQ(::kill(hung, SIGCONT), 0);

  EXPECT_LT(took, std::chrono::seconds(30));
  EXPECT_THAT(messages,
              ElementsAre(HasSubstr("mirror " + far_ + ": has not ended in time, and is left behind (process " +
                                    std::to_string(hung) + ")")));
  pollfd end{.fd = watched.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&end, 1, 60'000), 1);
  EXPECT_THAT(StepsIn(far_), ElementsAre(1));
  // No zombie.
  const Deadline reaped = Soon();
  while (::kill(hung, 0) == 0 && !reaped.passed()) std::this_thread::yield();
  EXPECT_NE(::kill(hung, 0), 0);
}

TEST_F(MirroredJob, GoesOnBesideAMirrorThatNeverAnswers) {
  Options options = With({{.target = far_}});
  options.mirror_command = HungCommand();
  options.mirror_timeout = std::chrono::milliseconds(50);
  auto job = OpenOrFail(options, {.mirror_patience = std::chrono::nanoseconds(0)});
  ASSERT_NE(job, nullptr);
  for (std::uint64_t step = 1; step <= 6; ++step) ASSERT_EQ(SaveDurably(*job, step), Status::Ok());

  const Event lag = told_.WaitFor("lags: 3 steps are durable that it has not copied");
  static_cast<void>(told_.WaitFor("lags: 6 steps"));
  const Status late = job->WaitMirrored(6, far_, Deadline::In(std::chrono::milliseconds(1)));
  job.reset();
  KillHung();

  EXPECT_EQ(lag.phase, "mirror");
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("step 6 is not at the mirror " + far_ + " yet"));
  EXPECT_THAT(StepsIn(root_), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(MirroredJob, RefusesMirrorsThatCannotWorkBeforeAnythingIsOpened) {
  const auto refused = [this](const MirrorSpec& mirror) { return Checkpointer::Open(With({mirror})).status(); };
  Options missing = With({{.target = far_}});
  missing.mirror_command = base_ / "nowhere";

  const Status none = refused({.target = ""});
  const Status never = refused({.target = far_, .every = 0});
  const Status store = refused({.target = "ftp://host/run"});
  const Status empty = refused({.target = "s3://"});
  const Status secret = refused({.target = "rclone::s3,secret_access_key=ours:bucket/run"});
  const Status inside = refused({.target = root_ + "/copies"});
  const Status twice = Checkpointer::Open(With({{.target = far_}, {.target = far_ + "/"}})).status();
  const Status no_command = Checkpointer::Open(missing).status();

  EXPECT_THAT(none.ToString(), HasSubstr("InvalidArgument: mirrors: expected a directory or a place"));
  EXPECT_THAT(never.ToString(),
              HasSubstr("InvalidArgument: mirrors, " + far_ + ": every: expected 1 or more, found 0"));
  EXPECT_THAT(store.ToString(), HasSubstr("Unsupported: mirrors: ftp://host/run: expected a directory, s3://"));
  EXPECT_THAT(empty.ToString(), HasSubstr("InvalidArgument: mirrors: s3://: expected s3://BUCKET/PREFIX"));
  EXPECT_THAT(secret.ToString(), AllOf(HasSubstr("InvalidArgument: mirrors: rclone:...: expected rclone:REMOTE:PATH"),
                                       Not(HasSubstr("ours"))));
  EXPECT_THAT(inside.ToString(), HasSubstr("expected neither to be in the other"));
  EXPECT_THAT(twice.ToString(), HasSubstr("found two for " + far_));
  EXPECT_THAT(no_command.ToString(), HasSubstr("FailedPrecondition: mirror_command: expected the command cairn"));
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(MirroredJob, SaysAtOnceWhatItsMirrorWillNeverTake) {
  auto job = OpenOrFail(With({{.target = near_, .keep_last = 1}, {.target = far_, .every = 2}}));
  ASSERT_NE(job, nullptr);
  const pid_t process = ProcessOf(near_);
  ASSERT_EQ(::kill(process, SIGSTOP), 0);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*job, step), Status::Ok());

  const Status odd = job->WaitMirrored(1, far_);
  const Status unknown = job->WaitMirrored(1, base_ / "elsewhere");
  const Status missing = job->WaitMirrored(7, far_);
  const Status there = job->WaitMirrored(2, far_, Soon());
  ASSERT_EQ(::kill(process, SIGCONT), 0);
  const Status newer = job->WaitMirrored(1, near_, Soon());

  EXPECT_THAT(odd.ToString(), HasSubstr("FailedPrecondition: " + root_ + ": step 1 is not at the mirror " + far_ +
                                        ", and never will be: that takes only steps divisible by 2"));
  EXPECT_THAT(unknown.ToString(), AllOf(HasSubstr("InvalidArgument"), HasSubstr("expected one of " + near_)));
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(there, Status::Ok());
  EXPECT_THAT(newer.ToString(), AllOf(HasSubstr("FailedPrecondition"), HasSubstr("and never will be")));
}

TEST_F(MirroredJob, TellsInTheMirrorsOwnWordsWhatGoesWrong) {
  {
    const auto other = OpenOrFail(SmallOptions(far_));
    ASSERT_EQ(SaveDurably(*other, 7), Status::Ok());
  }
  const auto job = OpenOrFail(With({{.target = far_}}));
  ASSERT_NE(job, nullptr);

  const Event event = told_.WaitFor(far_ + " is not a copy of that root: expected the id ");
  static_cast<void>(told_.WaitFor("has ended with exit code 2, and is started again"));
  ASSERT_EQ(SaveDurably(*job, 1), Status::Ok());
  const Status late = job->WaitMirrored(1, far_, Deadline::In(std::chrono::milliseconds(1)));

  EXPECT_EQ(event.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(late.ToString(), AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("is not a copy of that root")));
}

TEST_F(MirroredJob, BringsTheNewestBackWhereTheRootHasNothing) {
  {
    auto job = OpenOrFail(With({{.target = far_}}));
    for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*job, step), Status::Ok());
  }
  fs::remove_all(root_);
  Options options = With({{.target = far_}});
  options.restore_from = far_;

  auto job = OpenOrFail(options);
  ASSERT_NE(job, nullptr);
  const std::vector<std::uint64_t> brought = ListedSteps(*job);
  EXPECT_EQ(RestoreAndCompare(*job, Latest()), Status::Ok());
  ASSERT_EQ(SaveDurably(*job, 3), Status::Ok());
  job.reset();

  EXPECT_THAT(brought, ElementsAre(2));
  EXPECT_THAT(StepsIn(far_), ElementsAre(1, 2, 3));
  EXPECT_THAT(told_.messages(), IsEmpty());
  // A root that has something is left alone: nobody asks the mirror.
  options.restore_from = base_ / "nowhere";
  options.mirror_command = HungCommand();
  options.group_timeout = std::chrono::milliseconds(50);
  options.mirrors.clear();
  EXPECT_NE(OpenOrFail(options), nullptr);
}

TEST_F(MirroredJob, BeginsEmptyWhereTheMirrorHasNothingEither) {
  fs::create_directories(far_ + "/lost+found");  // A new filesystem's own root.
  { const auto other = OpenOrFail(SmallOptions(near_)); }
  Options options = With({{.target = far_}});
  options.restore_from = far_;

  const auto job = OpenOrFail(options);
  ASSERT_NE(job, nullptr);

  EXPECT_EQ(RestoreAndCompare(*job, Latest()).code(), StatusCode::kNotFound);
  static_cast<void>(
      told_.WaitFor("restore_from " + far_ + ": it has no checkpoint, so the root begins empty. Beside it: near"));
}

TEST_F(MirroredJob, DoesNotBeginEmptyWhereTheMirrorsDiskMayNotBeMounted) {
  Options options = With({{.target = far_}});
  options.restore_from = far_;

  const Status missing = Checkpointer::Open(options).status();

  EXPECT_THAT(missing.ToString(), HasSubstr("restore_from " + far_ + ": " + far_ +
                                            ": no such directory: is its disk mounted? For a mirror that is not begun "
                                            "yet, make it first"));
}

TEST_F(MirroredJob, NamesAMirrorThatCannotBringItsNewest) {
  { const auto other = OpenOrFail(SmallOptions(root_)); }  // With an id.
  {
    const auto other = OpenOrFail(SmallOptions(far_));
    ASSERT_EQ(SaveDurably(*other, 7), Status::Ok());
  }
  Options options = With({});
  options.restore_from = far_;

  const Status another = Checkpointer::Open(options).status();
  options.root = base_ / "empty";
  const std::string manifest = far_ + "/" + StepName(7) + "/manifest.json";
  fs::copy_file(manifest, base_ / "manifest");
  fs::resize_file(manifest, 10);
  const Status damaged = Checkpointer::Open(options).status();
  fs::remove_all(options.root);
  fs::copy_file(base_ / "manifest", manifest, fs::copy_options::overwrite_existing);
  options.mirror_command = HungCommand();
  options.group_timeout = std::chrono::milliseconds(50);
  const Status silent = Checkpointer::Open(options).status();

  EXPECT_THAT(another.ToString(), AllOf(HasSubstr("FailedPrecondition: restore_from " + far_ + ": "),
                                        HasSubstr("is not a copy of that root")));
  EXPECT_FALSE(damaged.ok() || damaged.code() == StatusCode::kNotFound) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr("restore_from " + far_ + ": "));
  EXPECT_THAT(silent.ToString(), HasSubstr("DeadlineExceeded: restore_from " + far_ + ": nothing has moved for 50 ms"));
}

TEST_F(MirroredJob, HasRank0StartItsMirrorsAndBringTheNewestBack) {
  {
    auto ranks = OpenRanks(2, With({{.target = far_}}));
    ASSERT_EQ(ranks.size(), 2U);
    std::vector<SaveHandle> saves;
    std::vector<std::unique_ptr<Tensors>> states;
    for (int rank = 0; rank < 2; ++rank) {
      states.push_back(SmallState(1, rank));
      auto save = ranks[static_cast<std::size_t>(rank)]->Save(1, states.back()->state());
      ASSERT_TRUE(save.ok()) << save.status();
      saves.push_back(*save);
    }
    for (const SaveHandle& save : saves) ASSERT_EQ(save.WaitDurable(Soon()), Status::Ok());
    EXPECT_EQ(ranks[0]->WaitMirrored(1, far_, Soon()), Status::Ok());
    EXPECT_THAT(ranks[1]->WaitMirrored(1, far_).ToString(), HasSubstr("only rank 0 waits for mirrors"));
  }
  EXPECT_THAT(told_.messages(), IsEmpty());  // As of a second mirror to one target.
  fs::remove_all(root_);
  Options options = With({});
  options.restore_from = far_;

  std::vector<std::unique_ptr<Checkpointer>> ranks = OpenRanks(2, options);

  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_THAT(ListedSteps(*ranks[1]), ElementsAre(1));
}

}  // namespace
}  // namespace cairn
