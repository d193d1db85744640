#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cairn/options.h"
#include "cairn/status.h"
#include "io/path_at.h"

namespace cairn {

enum class IoOp : std::uint8_t {
  kOpen,       ///< path, flags (as open(2); O_CLOEXEC is added), mode -> the descriptor.
  kClose,      ///< fd.
  kRead,       ///< fd, buffer, length, offset -> bytes read; fewer at the end of the file.
  kWrite,      ///< fd, buffer, length, offset -> bytes written; may be fewer.
  kFsync,      ///< fd, a file or a directory.
  kFallocate,  ///< fd, offset, length; mode 0: blocks are laid out and the file grows.
  kFtruncate,  ///< fd, length.
  kSyncRange,  ///< fd, offset, length: waits for write-back of the range (sync_file_range with all three flags).
  kRename,     ///< path -> path2, as `rename` says.
  kUnlink,     ///< path of a file.
  kMkdir,      ///< path, mode.
  kRmdir,      ///< path of an empty directory.
  kLink,       ///< fd, a file -> path2, one more name of it; never replaces. ENOENT if it has no name any more.
  kCall,       ///< call, run on a thread of the queue; path is for messages -> 0.
};
/// "open", "write", ...: for messages and traces.
[[nodiscard]] const char* IoOpName(IoOp op);

enum class RenameMode : std::uint8_t { kPlain, kNoReplace, kExchange };

/// One operation. IoOp says which fields it uses. The caller keeps `buffer` alive until completion.
struct IoRequest {
  IoOp op = IoOp::kFsync;
  int fd = -1;
  void* buffer = nullptr;
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
  PathAt path;
  PathAt path2;
  int flags = 0;
  unsigned mode = 0;
  RenameMode rename = RenameMode::kPlain;
  std::function<void()> call;
  /// For messages: the file of the descriptor.
  std::string name = {};
  /// No save waits for it: its removals of files may take long.
  bool background = false;
};

/// Takes the operation's value or -errno. RunOnce calls it on the queue's thread after removing the operation, so that
/// it may submit more.
using IoDone = std::function<void(std::int64_t result)>;

/// The errno of operations in a broken queue. No filesystem returns it.
inline constexpr int kBrokenQueue = ENOTRECOVERABLE;

/// How often EINTR and EAGAIN in a row are retried before they count as a failure.
inline constexpr int kMaxRetries = 16;

/// Every durable operation of Cairn goes through one of these. [interface]
///
/// The thread that creates a queue owns it: only that thread may submit, run and destroy it. Operations run
/// concurrently in any order; wait for completions to enforce one. The queue retries nothing: callers handle EINTR,
/// EAGAIN and short transfers. Destroying a queue waits for operations in flight and drops their callbacks. If a queue
/// breaks (someone closed its descriptors), it completes every present and future operation with -kBrokenQueue; the
/// kernel may still carry out those in flight.
class IoQueue {
 public:
  virtual ~IoQueue() = default;

  /// Accepts the operation. `done` is called exactly once, never from within Submit.
  virtual void Submit(IoRequest request, IoDone done) = 0;
  /// Passes submitted operations to the kernel, sleeps until a completion, a Wake or the deadline, and calls the
  /// callbacks of completed operations. Returns their number. Its only error is FailedPrecondition in a forked child.
  virtual Result<std::size_t> RunOnce(Deadline deadline) = 0;
  /// Makes the current RunOnce return, or the next one. Safe from any thread, and async-signal-safe.
  virtual void Wake() = 0;
  /// Operations whose callbacks have not been called.
  [[nodiscard]] virtual std::size_t pending() const = 0;
  /// "io_uring", "threads".
  [[nodiscard]] virtual std::string name() const = 0;
};

/// Makes a queue on the calling thread.
using IoQueueFactory = std::function<Result<std::unique_ptr<IoQueue>>()>;

struct IoQueueChoice {
  IoQueueFactory factory;
  std::string name;
  /// Why this one was chosen: "io_uring_setup: Operation not permitted (seccomp?)".
  std::string reason;
};
/// Probes the kernel and chooses. `depth` is how many data operations run at once; more may be submitted. Fails only if
/// `kind` requires a backend that is unavailable.
[[nodiscard]] Result<IoQueueChoice> ChooseIoQueue(IoQueueKind kind, int depth);

/// Submits one operation and runs the queue, which nothing else may be using, until it completes. Returns its value, or
/// a status that names the operation and the file.
Result<std::int64_t> RunBlocking(IoQueue& queue, IoRequest request);

/// The status of a request that failed with this errno. It names the operation and, if the disk is full, the free
/// space.
[[nodiscard]] Status FailureOf(const IoRequest& request, int error);

/// The request, for messages: "fsync of <name>", "rename of a to b".
[[nodiscard]] std::string Describe(const IoRequest& request);
/// The path of the file that it is about; empty if it has none.
[[nodiscard]] std::string FileOf(const IoRequest& request);

}  // namespace cairn
