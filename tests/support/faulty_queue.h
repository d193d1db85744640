#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"
#include "support/fd_paths.h"

namespace cairn {

/// An operation that a plan has seen, in the order of submission over all its queues.
struct SeenOperation {
  IoOp op = IoOp::kFsync;
  std::string path;   ///< The request's, or what its descriptor was opened with.
  std::string path2;  ///< A rename's target.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::optional<std::int64_t> result;  ///< What the caller got; none until then.
  RenameMode rename = RenameMode::kPlain;
};
/// "fsync .attempt-…/shard-00000.safetensors", one a line: for failure messages.
[[nodiscard]] std::string ToString(const std::vector<SeenOperation>& seen);

/// Which operations a rule applies to. Members left out match all.
struct FaultMatch {
  std::optional<IoOp> op;
  std::string path;                       ///< A part of either path.
  std::optional<RenameMode> rename = {};  ///< Of renames, those of this mode.
  std::uint64_t nth = 0;  ///< Only the nth that matches the rest, counted from 1 since the rule was added; 0: each.
};

class FaultPlan;

/// Where operations are held. Safe from any thread. Copies are the same gate.
class FaultGate {
 public:
  /// Waits until an operation is held here, or has been. False once the deadline has passed.
  [[nodiscard]] bool WaitHeld(Deadline deadline = Deadline::Infinite()) const;
  /// Releases what is held, and lets later operations pass.
  void Release() const;

 private:
  friend class FaultPlan;
  friend class FaultyQueue;
  struct State {
    bool reached = false;
    bool open = false;
  };
  FaultGate(std::shared_ptr<FaultPlan> plan, std::shared_ptr<State> state)
      : plan_(std::move(plan)), state_(std::move(state)) {}

  std::shared_ptr<FaultPlan> plan_;
  std::shared_ptr<State> state_;  // Guarded by the plan's mutex.
};

/// Faults for the queues made through it, and a record of their operations. Safe from any thread.
///
/// If several rules match, the one added first acts. Every rule counts each operation that matches it.
class FaultPlan : public std::enable_shared_from_this<FaultPlan> {
 public:
  [[nodiscard]] static std::shared_ptr<FaultPlan> Make() { return std::shared_ptr<FaultPlan>(new FaultPlan); }

  /// A factory of queues that follow this plan. For Wiring::wrap_queue: [plan](auto inner) { return plan->Wrap(inner);
  /// }
  [[nodiscard]] IoQueueFactory Wrap(IoQueueFactory inner);

  /// Returns -error instead of running the operation.
  void Fail(FaultMatch match, int error);
  /// Refuses renames with flags, as NFS and some FUSE do.
  void RefuseRenameFlags();
  /// Runs it, but returns -error: the caller does not know the outcome.
  void FailAfter(FaultMatch match, int error);
  /// Reads or writes as if only the first `bytes` had been transferred. The bytes after them are unspecified.
  void Shorten(FaultMatch match, std::uint64_t bytes);
  /// SIGKILL to this process, before or after the operation.
  void KillBefore(FaultMatch match);
  void KillAfter(FaultMatch match);
  /// Calls `hook` on the queue's thread before or after the operation. It may do anything but use that queue.
  void CallBefore(FaultMatch match, std::function<void(const SeenOperation&)> hook);
  void CallAfter(FaultMatch match, std::function<void(const SeenOperation&)> hook);
  /// Holds the operation back, unrun, until the gate is released.
  [[nodiscard]] FaultGate Hold(FaultMatch match);
  /// Forgets all rules; what is held stays held.
  void Clear() CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] std::vector<SeenOperation> Seen() const CAIRN_EXCLUDES(mutex_);
  /// How many of the operations seen match; `nth` is ignored.
  [[nodiscard]] std::size_t Count(const FaultMatch& match) const CAIRN_EXCLUDES(mutex_);

 private:
  friend class FaultGate;
  friend class FaultyQueue;

  enum class Kind : std::uint8_t {
    kNone,
    kFail,
    kFailAfter,
    kShorten,
    kKillBefore,
    kKillAfter,
    kBefore,
    kAfter,
    kHold
  };
  struct Action {
    Kind kind = Kind::kNone;
    int error = 0;
    std::uint64_t bytes = 0;
    std::function<void(const SeenOperation&)> hook;
    std::shared_ptr<FaultGate::State> gate;
  };
  struct Rule {
    FaultMatch match;
    Action action;
    std::uint64_t matched = 0;
  };
  struct Verdict {
    std::size_t index = 0;  // In seen_.
    SeenOperation seen;
    Action action;
  };

  FaultPlan() = default;
  void Add(FaultMatch match, Action action) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Verdict Judge(const IoRequest& request) CAIRN_EXCLUDES(mutex_);
  void Finished(std::size_t index, std::int64_t result) CAIRN_EXCLUDES(mutex_);

  FdPaths fds_;
  mutable Mutex mutex_;
  mutable CondVar held_;
  std::vector<Rule> rules_ CAIRN_GUARDED_BY(mutex_);
  std::vector<SeenOperation> seen_ CAIRN_GUARDED_BY(mutex_);
  std::set<IoQueue*> queues_ CAIRN_GUARDED_BY(mutex_);  // To be woken when a gate opens.
};

}  // namespace cairn
