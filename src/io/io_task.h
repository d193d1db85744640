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
// All of it on the queue's thread. A task owns its frame, and so the frames of the tasks that it waits for; where the
// queue is destroyed, the frames go with the operations under way. What a reference among the arguments refers to must
// live until the task has ended. A lambda is no task: its captures would die before it.

using StatusDone = std::function<void(Status)>;

class IoRun;  // A task and the queue that it runs on.

/// What every task's frame holds.
struct IoPromise {
  IoRun* run = nullptr;
  std::coroutine_handle<> waiter;  // Resumed at the end, unless the task ended before it was waited for.
  std::size_t* missing = nullptr;  // Of the tasks that the waiter waits for: the last one resumes it.

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

/// A coroutine that awaits operations and other tasks. It begins when it is awaited, or by RunTask.
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

  /// Runs up to the first operation. False where it has ended by then; else `waiter` is resumed at the end, by the last
  /// of the `missing`.
  bool Start(IoRun* run, std::coroutine_handle<> waiter, std::size_t* missing = nullptr) {
    frame_.promise().run = run;
    frame_.resume();
    if (frame_.done()) return false;
    frame_.promise().waiter = waiter;
    frame_.promise().missing = missing;
    return true;
  }
  [[nodiscard]] bool ended() const { return frame_.done(); }
  /// Of a task that has ended, once.
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

/// Runs the task. `done` is called once, from RunOnce and never from within this call, even where the task has no
/// operation.
void RunTask(IoQueue& queue, IoTask<Status> task, StatusDone done);
/// The same, running the queue (which nothing else is using) until the end.
[[nodiscard]] Status RunTaskBlocking(IoQueue& queue, IoTask<Status> task);

/// Awaits several tasks that run side by side, until all have ended. Gives the first error in their order.
class [[nodiscard]] Together {
 public:
  explicit Together(std::vector<IoTask<Status>> tasks) : tasks_(std::move(tasks)) {}

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

/// What an operation gave.
struct [[nodiscard]] IoResult {
  std::int64_t value = 0;  ///< 0 or more, where it went well.
  int error = 0;           ///< Its errno, where it did not.
  Status status;           ///< The same in words, with the operation and its file.

  operator Status() && { return std::move(status); }  // NOLINT(google-explicit-constructor): CAIRN_CO_RETURN_IF_ERROR
  [[nodiscard]] bool ok() const { return error == 0; }
};

/// Awaits one operation.
class [[nodiscard]] IoOperation {
 public:
  /// `name`, which outlives it, is what the descriptor stands for in messages. A descriptor that the operation gives
  /// goes `into`.
  explicit IoOperation(IoRequest request, const std::string& name, UniqueFd* into = nullptr)
      : request_(std::move(request)), name_(&name), into_(into) {}

  [[nodiscard]] static bool await_ready() noexcept { return false; }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    Submit(waiter.promise().run, waiter);
  }
  IoResult await_resume();

 private:
  void Submit(IoRun* run, std::coroutine_handle<> waiter);

  IoRequest request_;
  const std::string* name_;
  UniqueFd* into_;
  std::int64_t result_ = 0;
};

/// Files that may be unlinked where the disk is full, to make room for what cannot be written otherwise.
struct Room {
  std::vector<PathAt> paths;
  int freeing = 0;       ///< Operations that are unlinking them,
  std::size_t next = 0;  ///< this one next.
};

namespace io {

/// Opens a directory; `follow` says whether the path may be a link to one.
IoOperation OpenDirectory(const PathAt& path, bool follow, UniqueFd& fd);
IoOperation Open(const PathAt& path, int flags, UniqueFd& fd);
/// Opens `path` for writing, as a new file that nobody else has made.
IoOperation Create(const PathAt& path, int more_flags, unsigned mode, UniqueFd& fd);
/// Once, and final: an fsync that failed is never tried again, because the kernel has dropped the pages by then.
IoOperation Fsync(const UniqueFd& fd, const std::string& name);
IoOperation Read(const UniqueFd& fd, const std::string& name, std::string& into);
/// Reads at the file's `offset` into what of the text lies behind `filled`.
IoOperation ReadAt(const UniqueFd& fd, const std::string& name, std::string& into, std::size_t filled,
                   std::uint64_t offset);
IoOperation Truncate(const UniqueFd& fd, const std::string& name, std::uint64_t length);
IoOperation SyncRange(const UniqueFd& fd, const std::string& name, std::uint64_t offset, std::uint64_t length);
IoOperation Rename(const PathAt& from, const PathAt& to, RenameMode mode);
IoOperation Unlink(const PathAt& path);
IoOperation MakeDirectory(const PathAt& path, unsigned mode);
IoOperation RemoveDirectory(const PathAt& path);
/// Runs what may block (a look at the disk, a lock) on a thread of the queue's. `name` is what it looks at.
IoTask<Status> OnThread(const std::string& name, std::function<Status()> call);
/// An fsync as a task, for Together.
IoTask<Status> FsyncTask(const UniqueFd& fd, const std::string& name);
/// Closes `fd` where it is open. It is given away before the result is known: a failed close has closed it too.
IoTask<Status> Close(UniqueFd& fd, const std::string& name);

/// Lays blocks out from the file's begin on. Where the disk or the quota is full, what `room` holds goes first.
IoTask<IoResult> Allocate(const UniqueFd& fd, const std::string& name, std::uint64_t length, Room* room);

struct WriteOptions {
  Room* room = nullptr;          ///< What goes first where the disk or the quota is full.
  const Status* stop = nullptr;  ///< No longer ok: nothing more is written, and this is the outcome.
};
/// Writes all of `memory`, resubmitting what a short write left, from a multiple of `alignment` on. A write of nothing
/// is an error, and so is a second one in a row that gets no further.
IoTask<IoResult> WriteAll(const UniqueFd& fd, const std::string& name, std::uint64_t offset, Bytes memory,
                          std::uint64_t alignment, WriteOptions options = {});

}  // namespace io

/// Leaves the task with the status where it is not ok.
#define CAIRN_CO_RETURN_IF_ERROR(expression)                               \
  do {                                                                     \
    if (::cairn::Status cairn_status = (expression); !cairn_status.ok()) { \
      co_return cairn_status;                                              \
    }                                                                      \
  } while (false)

}  // namespace cairn
