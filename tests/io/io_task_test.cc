#include "io/io_task.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "queue_case.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using IoTasks = IoQueueContract;

// Tasks take arguments by value if the caller's may die first.

IoTask<Status> Nothing(Status outcome) { co_return outcome; }

IoTask<Status> WriteNewFile(std::string path, Bytes text) {
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(path, 0, 0600, fd));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(fd, path, 0, text, 1));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(fd, path));
  co_return co_await io::Close(fd, path);
}

IoTask<Status> Note(std::vector<int>& order, int number, std::string path) {
  order.push_back(number);
  IoResult made = co_await io::MakeDirectory(path, 0700);
  order.push_back(-number);
  co_return made.status;
}

IoTask<Status> Beside(std::vector<int>& order, std::string base) {
  std::vector<IoTask<Status>> tasks;
  for (const int number : {1, 2, 3}) tasks.push_back(Note(order, number, base + "/" + std::to_string(number)));
  const Status status = co_await WhenAll(std::move(tasks));
  order.push_back(9);
  co_return status;
}

/// Counts the live frames.
struct Alive {
  explicit Alive(int& number) : count(&number) { ++*count; }
  ~Alive() { --*count; }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;
  int* count;
};

IoTask<Status> Inner(int& alive, std::string path) {
  const Alive mark(alive);
  UniqueFd fd;
  co_return co_await io::OpenDirectory(path, true, fd);
}

IoTask<Status> Outer(int& alive, std::string path) {
  const Alive mark(alive);
  std::vector<IoTask<Status>> tasks;
  tasks.push_back(Inner(alive, path));
  tasks.push_back(Inner(alive, path));
  co_return co_await WhenAll(std::move(tasks));
}

IoTask<Status> ManyThatEndAtOnce(int count) {
  for (int i = 0; i < count; ++i) CAIRN_CO_RETURN_IF_ERROR(co_await Nothing(Status::Ok()));
  co_return Status::Ok();
}

TEST_P(IoTasks, TaskRunsItsOperationsInOrder) {
  const std::string path = dir_ / "file";
  const std::string text = "some bytes";

  EXPECT_EQ(RunTaskBlocking(*queue_, WriteNewFile(path, std::as_bytes(std::span(text)))), Status::Ok());

  EXPECT_EQ(std::filesystem::file_size(path), text.size());
}

TEST_P(IoTasks, FirstErrorEndsTheTaskAndNamesTheFile) {
  const std::string path = dir_ / "missing" + "/file";

  const Status status = RunTaskBlocking(*queue_, WriteNewFile(path, {}));

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("open of " + path));
}

TEST_P(IoTasks, DoneIsCalledFromRunOnceEvenWithoutAnOperation) {
  bool done = false;

  RunTask(*queue_, Nothing(Error(StatusCode::kCancelled, "no")), [&done](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    done = true;
  });

  EXPECT_FALSE(done);
  Drain();
  EXPECT_TRUE(done);
}

TEST_P(IoTasks, ConcurrentTasksAreAllAwaited) {
  std::vector<int> order;

  ASSERT_EQ(RunTaskBlocking(*queue_, Beside(order, dir_.path())), Status::Ok());

  ASSERT_EQ(order.size(), 7U);
  EXPECT_THAT(std::vector<int>(order.begin(), order.begin() + 3), ElementsAre(1, 2, 3)) << "all begun at once";
  EXPECT_EQ(order.back(), 9);
}

TEST_P(IoTasks, OneFailureOfConcurrentTasksIsTheOutcomeOfAll) {
  std::vector<int> order;
  std::filesystem::create_directory(dir_ / "2");

  EXPECT_EQ(RunTaskBlocking(*queue_, Beside(order, dir_.path())).code(), StatusCode::kAlreadyExists);

  EXPECT_EQ(order.size(), 7U);
}

TEST_P(IoTasks, DestroyingTheQueueFreesFrames) {
  int alive = 0;
  bool done = false;
  RunTask(*queue_, Outer(alive, dir_.path()), [&done](const Status&) { done = true; });
  EXPECT_EQ(alive, 3);

  queue_.reset();

  EXPECT_EQ(alive, 0);
  EXPECT_FALSE(done);
}

TEST_P(IoTasks, FramesOfATaskThatNeverRunsAreFreed) {
  int alive = 0;
  { [[maybe_unused]] const IoTask<Status> task = Outer(alive, dir_.path()); }
  EXPECT_EQ(alive, 0);
}

TEST_P(IoTasks, TasksThatEndAtOnceUseNoStack) {
  EXPECT_EQ(RunTaskBlocking(*queue_, ManyThatEndAtOnce(1'000'000)), Status::Ok());
}

TEST_P(IoTasks, CallRunsOnAnotherThreadAndReturnsItsStatus) {
  const std::thread::id mine = std::this_thread::get_id();
  std::thread::id theirs = mine;
  const std::string name = "the disk";

  const Status status = RunTaskBlocking(*queue_, io::OnThread(name, [&theirs] {
    theirs = std::this_thread::get_id();
    return Error(StatusCode::kIoError, "seen");
  }));

  EXPECT_EQ(status.message(), "seen");
  EXPECT_NE(theirs, mine);
}

/// A full disk, each of whose operations takes one RunOnce.
class FullDisk : public IoQueue {
 public:
  void Submit(IoRequest request, IoDone done) override {
    under_way_.push_back({std::move(done), request.op == IoOp::kWrite ? -ENOSPC : -ENOENT});
  }
  Result<std::size_t> RunOnce(Deadline /*deadline*/) override {
    auto ended = std::exchange(under_way_, {});
    for (const auto& [done, result] : ended) done(result);
    return ended.size();
  }
  void Wake() override {}
  [[nodiscard]] std::size_t pending() const override { return under_way_.size(); }
  [[nodiscard]] std::string name() const override { return "full disk"; }

 private:
  std::vector<std::pair<IoDone, std::int64_t>> under_way_;
};

IoTask<Status> WriteWithRoom(const UniqueFd& fd, const std::string& name, Bytes text, Room* room) {
  co_return co_await io::WriteAll(fd, name, 0, text, 1, {.room = room});
}

TEST(FullDiskTest, ConcurrentWritesToAFullDiskAllEnd) {
  for (const int apart : {0, 1, 2, 3}) {
    FullDisk disk;
    const UniqueFd fd;
    const std::string name = "shard";
    Room room{.paths = {"a", "b", "c"}};
    std::vector<StatusCode> outcomes;
    for (int i = 0; i < 8; ++i) {
      RunTask(disk, WriteWithRoom(fd, name, std::as_bytes(std::span(name)), &room),
              [&outcomes](const Status& status) { outcomes.push_back(status.code()); });
      for (int k = 0; k < apart; ++k) ASSERT_TRUE(disk.RunOnce(Deadline::Infinite()).ok());
    }

    for (int k = 0; k < 1000 && disk.pending() != 0; ++k) ASSERT_TRUE(disk.RunOnce(Deadline::Infinite()).ok());

    EXPECT_EQ(outcomes, std::vector<StatusCode>(8, StatusCode::kNoSpace)) << apart << " operations apart";
  }
}

INSTANTIATE_TEST_SUITE_P(All, IoTasks, testing::ValuesIn(AllQueues()), CaseName);

}  // namespace
}  // namespace cairn
