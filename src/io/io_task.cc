#include "io/io_task.h"

#include <fcntl.h>

#include <cerrno>
#include <memory>

#include "base/closed_streams.h"
#include "base/status_macros.h"

namespace cairn {

/// Owned by the callbacks of operations in flight, so destroying the queue destroys it too.
class IoRun : public std::enable_shared_from_this<IoRun> {
 public:
  IoRun(IoQueue& queue, IoTask<Status> task, StatusDone done, bool background)
      : queue_(queue), task_(std::move(task)), done_(std::move(done)), background_(background) {}

  void GoOnInBackground() { background_ = true; }

  void Start() {
    if (task_.Start(this, {})) return;
    // `done` must be called from RunOnce: closing an invalid descriptor is an operation that gets there.
    queue_.Submit({.op = IoOp::kClose}, [self = shared_from_this()](std::int64_t) { self->done_(self->task_.Take()); });
  }

  void Submit(IoRequest request, std::coroutine_handle<> waiter, std::int64_t& result) {
    request.background = background_;
    queue_.Submit(std::move(request), [self = shared_from_this(), waiter, &result](std::int64_t value) {
      result = value;
      waiter.resume();
      if (self->task_.ended()) self->done_(self->task_.Take());
    });
  }

 private:
  IoQueue& queue_;
  IoTask<Status> task_;
  StatusDone done_;
  bool background_;
};

void InBackground::Mark(IoRun* run) { run->GoOnInBackground(); }

void RunTask(IoQueue& queue, IoTask<Status> task, StatusDone done) {
  std::make_shared<IoRun>(queue, std::move(task), std::move(done), /*background=*/false)->Start();
}

void RunInBackground(IoQueue& queue, IoTask<Status> task, StatusDone done) {
  std::make_shared<IoRun>(queue, std::move(task), std::move(done), /*background=*/true)->Start();
}

Status RunTaskBlocking(IoQueue& queue, IoTask<Status> task) {
  // Shared: a broken queue may still hold the callback.
  const auto outcome = std::make_shared<std::optional<Status>>();
  RunTask(queue, std::move(task), [outcome](Status status) { *outcome = std::move(status); });
  while (!outcome->has_value()) {
    CAIRN_ASSIGN_OR_RETURN([[maybe_unused]] const std::size_t called, queue.RunOnce(Deadline::Infinite()));
  }
  return **outcome;
}

Status WhenAll::await_resume() {
  Status first;
  for (IoTask<Status>& task : tasks_) {
    if (Status status = task.Take(); first.ok()) first = std::move(status);
  }
  return first;
}

void IoOperation::Submit(IoRun* run, std::coroutine_handle<> waiter) {
  if (request_.op == IoOp::kOpen) TakeClosedStreams();
  run->Submit(request_, waiter, result_);
}

IoResult IoOperation::await_resume() {
  int error = static_cast<int>(-result_);
  if (result_ >= 0) {
    if (into_ == nullptr) return {.value = result_};
    *into_ = UniqueFd(static_cast<int>(result_));
    if (into_->valid()) return {.value = result_};
    error = errno;
  }
  return {.error = error, .status = FailureOf(request_, error)};
}

namespace io {
namespace {

/// Performs a request that needs room on the disk. If it is full, unlinks the reclaimable files and tries again.
IoTask<IoResult> RunReclaiming(IoRequest request, Room* room, UniqueFd* into = nullptr) {
  const bool none = room == nullptr || room->paths.empty();
  bool asked = false;
  while (true) {
    // Files that another operation is unlinking have lost their names but maybe not yet their blocks.
    const bool last = none || (asked && room->freeing == 0);
    IoResult result = co_await IoOperation(request, into);
    if (last || (result.error != ENOSPC && result.error != EDQUOT)) co_return result;
    // Operations that find the disk full at the same time share the files: each file is unlinked once, and the
    // operation that finishes last tries once more.
    if (room->freeing == 0) room->next = 0;
    asked = true;
    ++room->freeing;
    // A file that cannot be unlinked frees nothing: the next try fails.
    while (room->next < room->paths.size()) static_cast<void>(co_await Unlink(room->paths[room->next++]));
    while (room->next < room->paths.size() + room->folders.size()) {
      static_cast<void>(co_await RemoveDirectory(room->folders[room->next++ - room->paths.size()]));
    }
    --room->freeing;
  }
}

}  // namespace

IoOperation Open(const PathAt& path, int flags, UniqueFd& fd) {
  return IoOperation({.op = IoOp::kOpen, .path = path, .flags = flags}, &fd);
}

IoOperation OpenDirectory(const PathAt& path, bool follow, UniqueFd& fd) {
  return Open(path, O_RDONLY | O_DIRECTORY | (follow ? 0 : O_NOFOLLOW), fd);
}

IoOperation Create(const PathAt& path, int more_flags, unsigned mode, UniqueFd& fd) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | more_flags;
  return IoOperation({.op = IoOp::kOpen, .path = path, .flags = flags, .mode = mode}, &fd);
}

IoOperation Fsync(const UniqueFd& fd, const std::string& name) {
  return IoOperation({.op = IoOp::kFsync, .fd = fd.get(), .name = name});
}

IoOperation Read(const UniqueFd& fd, const std::string& name, std::string& into) {
  return IoOperation({.op = IoOp::kRead, .fd = fd.get(), .buffer = into.data(), .length = into.size(), .name = name});
}

IoOperation ReadAt(const UniqueFd& fd, const std::string& name, std::string& into, std::size_t filled,
                   std::uint64_t offset) {
  return IoOperation({.op = IoOp::kRead,
                      .fd = fd.get(),
                      .buffer = into.data() + filled,
                      .length = into.size() - filled,
                      .offset = offset,
                      .name = name});
}

IoOperation Truncate(const UniqueFd& fd, const std::string& name, std::uint64_t length) {
  return IoOperation({.op = IoOp::kFtruncate, .fd = fd.get(), .length = length, .name = name});
}

IoOperation SyncRange(const UniqueFd& fd, const std::string& name, std::uint64_t offset, std::uint64_t length) {
  return IoOperation({.op = IoOp::kSyncRange, .fd = fd.get(), .length = length, .offset = offset, .name = name});
}

IoOperation Rename(const PathAt& from, const PathAt& to, RenameMode mode) {
  return IoOperation({.op = IoOp::kRename, .path = from, .path2 = to, .rename = mode});
}

IoOperation Link(const UniqueFd& fd, const std::string& name, const PathAt& to) {
  return IoOperation({.op = IoOp::kLink, .fd = fd.get(), .path2 = to, .name = name});
}

IoOperation Unlink(const PathAt& path) { return IoOperation({.op = IoOp::kUnlink, .path = path}); }

IoOperation MakeDirectory(const PathAt& path, unsigned mode) {
  return IoOperation({.op = IoOp::kMkdir, .path = path, .mode = mode});
}

IoOperation RemoveDirectory(const PathAt& path) { return IoOperation({.op = IoOp::kRmdir, .path = path}); }

IoTask<Status> OnThread(const std::string& name, std::function<Status()> call) {
  Status outcome;
  IoRequest request{.op = IoOp::kCall, .path = name};
  request.call = [&outcome, call = std::move(call)] { outcome = call(); };
  CAIRN_CO_RETURN_IF_ERROR(co_await IoOperation(std::move(request)));
  co_return outcome;
}

IoTask<Status> FsyncTask(const UniqueFd& fd, const std::string& name) { co_return co_await Fsync(fd, name); }

IoTask<Status> Close(UniqueFd& fd, const std::string& name) {
  if (!fd.valid()) co_return Status::Ok();
  IoRequest close{.op = IoOp::kClose, .fd = fd.Release(), .name = name};
  co_return co_await IoOperation(std::move(close));
}

IoTask<IoResult> Create(const PathAt& path, int more_flags, unsigned mode, UniqueFd& fd, Room* room) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | more_flags;
  IoRequest request{.op = IoOp::kOpen, .path = path, .flags = flags, .mode = mode};
  co_return co_await RunReclaiming(std::move(request), room, &fd);
}

IoTask<IoResult> Allocate(const UniqueFd& fd, const std::string& name, std::uint64_t length, Room* room) {
  IoRequest request{.op = IoOp::kFallocate, .fd = fd.get(), .length = length, .name = name};
  co_return co_await RunReclaiming(std::move(request), room);
}

IoTask<IoResult> WriteAll(const UniqueFd& fd, const std::string& name, std::uint64_t offset, Bytes memory,
                          std::uint64_t alignment, WriteOptions options) {
  // The last write made no progress.
  bool stalled = false;
  while (true) {
    if (options.stop != nullptr && !options.stop->ok()) co_return IoResult{.error = ECANCELED, .status = *options.stop};
    IoRequest request{.op = IoOp::kWrite, .fd = fd.get()};
    // The queue only reads it: requests use one buffer field for both directions.
    request.buffer = const_cast<std::byte*>(memory.data());
    request.length = memory.size();
    request.offset = offset;
    request.name = name;
    IoResult result = co_await RunReclaiming(std::move(request), options.room);
    const auto written = static_cast<std::uint64_t>(result.value);
    if (!result.ok() || written == memory.size()) co_return result;
    const std::uint64_t advance = AlignDown(written, alignment);
    if (written == 0 || written > memory.size() || (advance == 0 && stalled)) {
      co_return IoResult{.error = EIO,
                         .status = Error(StatusCode::kIoError, "write of {} at {}: expected {} bytes, wrote {}", name,
                                         offset, memory.size(), written)};
    }
    stalled = advance == 0;
    offset += advance;
    memory = memory.subspan(advance);
  }
}

}  // namespace io
}  // namespace cairn
