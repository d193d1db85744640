#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_queue.h"

namespace cairn {

// Sequences of operations on an IoQueue, as coroutines that read from top to bottom:
//
//   IoTask<Status> MakeNote(const std::string& path, Bytes text) {
//     UniqueFd fd;
//     CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(path, 0, 0644, fd));
//     CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(fd, path, 0, text, 1));
//     co_return co_await io::Fsync(fd, path);
//   }
//
// All of it runs on the queue's thread. A task owns its frame, and so the frames of the tasks that it awaits.
// Destroying the queue destroys the frames of operations in flight. Arguments passed by reference must outlive the
// task. Never make a lambda a task: its captures would die first.

using StatusDone = std::function<void(Status)>;

class IoRun;  // A task and the queue that it runs on.

/// The part of a task's frame that does not depend on its type.
struct IoPromise {
  IoRun* run = nullptr;
  // Resumed at the end, unless the task ended before anyone awaited it.
  std::coroutine_handle<> waiter;
  // Counts the unfinished tasks that the waiter awaits. The last one resumes it.
  std::size_t* missing = nullptr;

  struct AtEnd {
    [[nodiscard]] static bool await_ready() noexcept { return false; }
    template <typename Promise>
    static std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      const IoPromise& promise = ended.promise();
      if (promise.waiter == nullptr || (promise.missing != nullptr && --*promise.missing != 0)) {
        return std::noop_coroutine();
      }
      return promise.waiter;
    }
    static void await_resume() noexcept {}
  };
  static std::suspend_always initial_suspend() noexcept { return {}; }
  static AtEnd final_suspend() noexcept { return {}; }
  [[noreturn]] static void unhandled_exception() { throw; }
};

/// A coroutine that awaits operations and other tasks. It starts when it is awaited, or by RunTask.
template <typename T>
class [[nodiscard]] IoTask {
 public:
  struct promise_type : IoPromise {  // NOLINT(readability-identifier-naming): the language's name
    std::optional<T> value;
    IoTask get_return_object() { return IoTask(std::coroutine_handle<promise_type>::from_promise(*this)); }
    template <typename Value>
    void return_value(Value&& result) {
      value.emplace(std::forward<Value>(result));
    }
  };

  IoTask(IoTask&& other) noexcept : frame_(std::exchange(other.frame_, {})) {}
  IoTask& operator=(IoTask&&) = delete;
  IoTask(const IoTask&) = delete;
  IoTask& operator=(const IoTask&) = delete;
  ~IoTask() {
    if (frame_) frame_.destroy();
  }

  /// Runs up to the first operation. False if the task has ended by then. Otherwise the last of the `missing` tasks
  /// resumes `waiter` at its end.
  bool Start(IoRun* run, std::coroutine_handle<> waiter, std::size_t* missing = nullptr) {
    frame_.promise().run = run;
    frame_.resume();
    if (frame_.done()) return false;
    frame_.promise().waiter = waiter;
    frame_.promise().missing = missing;
    return true;
  }
  [[nodiscard]] bool ended() const { return frame_.done(); }
  /// The result of a task that has ended. Call it once.
  [[nodiscard]] T Take() { return *std::move(frame_.promise().value); }

  [[nodiscard]] static bool await_ready() noexcept { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiter) {
    return Start(waiter.promise().run, waiter);
  }
  [[nodiscard]] T await_resume() { return Take(); }

 private:
  explicit IoTask(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  std::coroutine_handle<promise_type> frame_;
};

/// Runs the task. `done` is called once, from RunOnce, never from within this call, even if the task has no operation.
void RunTask(IoQueue& queue, IoTask<Status> task, StatusDone done);
/// The same, for what no save waits for (IoRequest::background).
void RunInBackground(IoQueue& queue, IoTask<Status> task, StatusDone done);
/// The same, and runs the queue, which nothing else may be using, until the task ends.
[[nodiscard]] Status RunTaskBlocking(IoQueue& queue, IoTask<Status> task);

/// Awaits several tasks that run side by side, until all have ended. Gives the first error in their order.
class [[nodiscard]] WhenAll {
 public:
  explicit WhenAll(std::vector<IoTask<Status>> tasks) : tasks_(std::move(tasks)) {}

  [[nodiscard]] static bool await_ready() noexcept { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiter) {
    missing_ = tasks_.size();
    for (IoTask<Status>& task : tasks_) {
      if (!task.Start(waiter.promise().run, waiter, &missing_)) --missing_;
    }
    return missing_ != 0;
  }
  [[nodiscard]] Status await_resume();

 private:
  std::vector<IoTask<Status>> tasks_;
  std::size_t missing_ = 0;
};

/// An operation's result.
struct [[nodiscard]] IoResult {
  /// At least 0 on success.
  std::int64_t value = 0;
  /// The errno on failure.
  int error = 0;
  /// The error, with the operation and its file.
  Status status;

  operator Status() && { return std::move(status); }  // NOLINT(google-explicit-constructor): CAIRN_CO_RETURN_IF_ERROR
  [[nodiscard]] bool ok() const { return error == 0; }
};

/// Awaits one operation.
class [[nodiscard]] IoOperation {
 public:
  /// `into` receives a descriptor that the operation opens.
  explicit IoOperation(IoRequest request, UniqueFd* into = nullptr) : request_(std::move(request)), into_(into) {}

  [[nodiscard]] static bool await_ready() noexcept { return false; }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    Submit(waiter.promise().run, waiter);
  }
  IoResult await_resume();

 private:
  void Submit(IoRun* run, std::coroutine_handle<> waiter);

  IoRequest request_;
  UniqueFd* into_;
  std::int64_t result_ = 0;
};

/// Awaited by a task: the rest of its run is in the background (IoRequest::background).
struct [[nodiscard]] InBackground {
  [[nodiscard]] static bool await_ready() noexcept { return false; }
  template <typename Promise>
  static bool await_suspend(std::coroutine_handle<Promise> waiter) {
    Mark(waiter.promise().run);
    return false;
  }
  static void await_resume() noexcept {}

 private:
  static void Mark(IoRun* run);
};

/// Files that may be unlinked if the disk is full.
struct Room {
  std::vector<PathAt> paths;
  /// Their folders, which may be removed if they are empty then.
  std::vector<PathAt> folders;
  /// How many operations are removing them, and the next file or, after all files, folder.
  int freeing = 0;
  std::size_t next = 0;
};

namespace io {

/// Opens a directory. `follow` permits a symbolic link to one.
IoOperation OpenDirectory(const PathAt& path, bool follow, UniqueFd& fd);
IoOperation Open(const PathAt& path, int flags, UniqueFd& fd);
/// Creates `path` for writing. Fails if it exists.
IoOperation Create(const PathAt& path, int more_flags, unsigned mode, UniqueFd& fd);
/// Never retried: after a failed fsync the kernel has dropped the dirty pages.
IoOperation Fsync(const UniqueFd& fd, const std::string& name);
IoOperation Read(const UniqueFd& fd, const std::string& name, std::string& into);
/// Reads from the file's `offset` into the text after its first `filled` bytes.
IoOperation ReadAt(const UniqueFd& fd, const std::string& name, std::string& into, std::size_t filled,
                   std::uint64_t offset);
IoOperation Truncate(const UniqueFd& fd, const std::string& name, std::uint64_t length);
IoOperation SyncRange(const UniqueFd& fd, const std::string& name, std::uint64_t offset, std::uint64_t length);
IoOperation Rename(const PathAt& from, const PathAt& to, RenameMode mode);
/// One more name of an open file. Fails if `to` exists.
IoOperation Link(const UniqueFd& fd, const std::string& name, const PathAt& to);
IoOperation Unlink(const PathAt& path);
IoOperation MakeDirectory(const PathAt& path, unsigned mode);
IoOperation RemoveDirectory(const PathAt& path);
/// Runs a blocking `call` (a disk check, a lock) on a thread of the queue. `name` is for messages.
IoTask<Status> OnThread(const std::string& name, std::function<Status()> call);
/// An fsync as a task, for WhenAll.
IoTask<Status> FsyncTask(const UniqueFd& fd, const std::string& name);
/// Closes `fd` if it is open. `fd` is released first, because a failed close has closed it too.
IoTask<Status> Close(UniqueFd& fd, const std::string& name);

/// The same, but if the disk or the quota is full (of files, too), unlinks the files in `room` first.
IoTask<IoResult> Create(const PathAt& path, int more_flags, unsigned mode, UniqueFd& fd, Room* room);
/// Allocates blocks from the start of the file. If the disk or the quota is full, unlinks the files in `room` first.
IoTask<IoResult> Allocate(const UniqueFd& fd, const std::string& name, std::uint64_t length, Room* room);

struct WriteOptions {
  /// Files to unlink if the disk or the quota is full.
  Room* room = nullptr;
  /// Once it is not ok, nothing more is written and this is the outcome.
  const Status* stop = nullptr;
};
/// Writes all of `memory`. After a short write, continues at a multiple of `alignment`. A write of 0 bytes is an error,
/// and so are two in a row without progress.
IoTask<IoResult> WriteAll(const UniqueFd& fd, const std::string& name, std::uint64_t offset, Bytes memory,
                          std::uint64_t alignment, WriteOptions options = {});

}  // namespace io

/// Returns the status from the task if it is not ok.
#define CAIRN_CO_RETURN_IF_ERROR(expression)                               \
  do {                                                                     \
    if (::cairn::Status cairn_status = (expression); !cairn_status.ok()) { \
      co_return cairn_status;                                              \
    }                                                                      \
  } while (false)

}  // namespace cairn
