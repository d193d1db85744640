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
  kCall,       ///< call, run on a thread of the queue's; path is what it looks at, for messages -> 0.
};
/// "open", "write", ...: for messages and traces.
[[nodiscard]] const char* IoOpName(IoOp op);

enum class RenameMode : std::uint8_t { kPlain, kNoReplace, kExchange };

/// One operation. What a field means is at IoOp; the rest is ignored. `buffer` stays the caller's until completion.
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
};

/// The operation's value, or -errno. Called from RunOnce, on the queue's thread, after the queue has forgotten the
/// operation: it may submit more.
using IoDone = std::function<void(std::int64_t result)>;

/// The errno of operations in a queue that broke. No filesystem gives it.
inline constexpr int kBrokenQueue = ENOTRECOVERABLE;

/// So many EINTR and EAGAIN in a row are tried again before they count as a failure.
inline constexpr int kMaxRetries = 16;

/// Every durable operation of Cairn goes through one of these. [interface]
///
/// One thread owns a queue: the one that makes it, which must be the one that submits, runs and destroys it. Operations
/// submitted together run in any order and at the same time; who needs an order waits for completions. Nothing is
/// retried inside: EINTR, EAGAIN and short transfers are the caller's to see. Destroying a queue waits for what is
/// under way and drops its callbacks. A queue that breaks (somebody closed its descriptors) answers -kBrokenQueue to
/// what is under way, which the kernel may yet carry out, and to all that comes.
class IoQueue {
 public:
  virtual ~IoQueue() = default;

  /// Takes the operation; `done` is called exactly once, never from within Submit.
  virtual void Submit(IoRequest request, IoDone done) = 0;
  /// Hands submitted operations to the kernel, sleeps until at least one completion, a Wake or the deadline, and calls
  /// what is done. Returns the number of callbacks called. FailedPrecondition in a forked child, the only error.
  virtual Result<std::size_t> RunOnce(Deadline deadline) = 0;
  /// Makes the current or the next RunOnce return. Safe from any thread, and async-signal-safe.
  virtual void Wake() = 0;
  /// Operations submitted and not yet called back.
  [[nodiscard]] virtual std::size_t pending() const = 0;
  /// "io_uring", "threads".
  [[nodiscard]] virtual std::string name() const = 0;
};

/// Makes a queue on the calling thread, or says why it can't.
using IoQueueFactory = std::function<Result<std::unique_ptr<IoQueue>>()>;

struct IoQueueChoice {
  IoQueueFactory factory;
  std::string name;
  std::string reason;  ///< Why this one: "io_uring_setup: Operation not permitted (seccomp?)".
};
/// Probes the kernel and picks. `depth` is how many data operations will be under way at once (more may be submitted).
/// Fails only where `kind` insists on what is not to be had.
[[nodiscard]] Result<IoQueueChoice> ChooseIoQueue(IoQueueKind kind, int depth);

/// Submits one operation and runs the queue until it is done: for Open, listing, sweeping and tools, which own a queue
/// that nothing else is using. The value, or the status that names the operation and the path; `name` is the
/// descriptor's.
Result<std::int64_t> RunBlocking(IoQueue& queue, IoRequest request, const std::string& name = {});

/// The status of a request that failed with this errno: what it was doing and, where room ran out, what is left there.
/// `name` as for Describe.
[[nodiscard]] Status FailureOf(const IoRequest& request, const std::string& name, int error);

/// What a request was doing, for messages: "fsync of <name>", "rename of a to b". `name` stands for the descriptor.
[[nodiscard]] std::string Describe(const IoRequest& request, const std::string& name = {});

}  // namespace cairn
