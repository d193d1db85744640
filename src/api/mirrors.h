#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "api/command_process.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cairn/checkpointer.h"
#include "cairn/options.h"
#include "cairn/stats.h"
#include "cairn/status.h"

namespace cairn {

/// What a Checkpointer knows of one of its mirrors.
struct MirrorState {
  std::string target;
  /// The newest step that it has copied since it was started; none so far.
  std::optional<std::uint64_t> newest;
  /// Durable saves that it takes, newer than the newest that it has copied.
  std::uint64_t behind = 0;
  /// Copies that have failed, and processes that have ended by themselves.
  std::uint64_t failures = 0;
};

/// Runs Options::mirrors: one process of `cairn mirror` for each, and one thread, which sleeps until one of them says
/// something or ends, or is due to be started again. Only that thread waits for a disk. Safe from any thread.
class Mirrors {
 public:
  struct Parts {
    std::string command;
    std::string root;
    std::vector<MirrorSpec> specs;
    /// Options::mirror_timeout.
    std::chrono::nanoseconds timeout{};
    /// How long a step may wait before an event says that its mirror lags.
    std::chrono::nanoseconds patience{};
    EventCallback on_event;
  };
  /// ResourceExhausted if the thread cannot be started. What becomes of the processes is told by events.
  [[nodiscard]] static Result<std::unique_ptr<Mirrors>> Start(Parts parts);
  /// End must have returned true, or not have been called: then it waits for the processes.
  ~Mirrors();
  Mirrors(const Mirrors&) = delete;
  Mirrors& operator=(const Mirrors&) = delete;

  /// The newest checkpoint that is durable. Waits for nothing.
  void Committed(const CheckpointInfo& newest) CAIRN_EXCLUDES(mutex_);
  /// One of the newest that Committed was told of: the root may have removed it since.
  [[nodiscard]] std::optional<CheckpointInfo> FindCommitted(std::uint64_t step) const CAIRN_EXCLUDES(mutex_);
  /// Nothing will be committed any more: each mirror ends once it has copied what is due. Waits for nothing.
  void Tell() CAIRN_EXCLUDES(mutex_);
  /// The same, and waits until they have ended, or mirror_timeout after the first Tell. DeadlineExceeded if `deadline`
  /// comes before.
  [[nodiscard]] Status WaitEnded(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// WaitEnded. If some have not ended then, events name them, and the result is false, of later calls too: this must
  /// not be destroyed. There is no event afterwards.
  bool End(Deadline deadline) CAIRN_EXCLUDES(mutex_, event_mutex_);
  /// Checkpointer::WaitMirrored of this checkpoint, which is durable.
  [[nodiscard]] Status Wait(const std::string& target, const CheckpointInfo& wanted, Deadline deadline)
      CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<MirrorState> states() const CAIRN_EXCLUDES(mutex_);

 private:
  using Clock = Deadline::Clock;

  /// A mirror. Only the thread's, but for what is under mutex_.
  struct One {
    MirrorSpec spec;
    std::unique_ptr<CommandProcess> process;
    Clock::time_point begun;
    Clock::time_point start_at;
    std::chrono::nanoseconds pause;
    // It was told to end before it was started.
    bool last = false;
    bool over = false;
    // What it has said in this run, and in the one before: what repeats itself is no event.
    std::set<std::string> said;
    std::set<std::string> said_before;
    // Of how many saves that it has not copied an event tells next.
    std::uint64_t next_lag = 0;
  };
  /// What others ask of it.
  struct Known {
    MirrorState state;
    pid_t process = 0;
    // Attempts that are at the target.
    std::set<std::string> there;
    // {line, step} of the newest checkpoint in the root when it last found nothing to copy.
    std::optional<std::pair<std::uint64_t, std::uint64_t>> looked;
    std::string error;
    // What it waits for, while nothing moves.
    std::string waits;
    // Steps that wait, and since when, oldest first; of many the newest.
    std::deque<std::pair<std::uint64_t, Clock::time_point>> waiting;
    bool over = false;
  };

  /// ". Its last error: ...", or what it waits for since then; "" if it has said neither.
  [[nodiscard]] static std::string LastWords(const Known& known);
  explicit Mirrors(Parts parts);
  void Run() CAIRN_EXCLUDES(mutex_, event_mutex_);
  void Begin(std::size_t i) CAIRN_EXCLUDES(mutex_, event_mutex_);
  void Sleep() CAIRN_EXCLUDES(mutex_);
  void Hear(std::size_t i) CAIRN_EXCLUDES(mutex_, event_mutex_);
  void HearEvent(std::size_t i, const std::string& line) CAIRN_EXCLUDES(mutex_, event_mutex_);
  void HearEnd(std::size_t i, int end) CAIRN_EXCLUDES(mutex_, event_mutex_);
  void Copied(std::size_t i, std::uint64_t step, const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  /// What its record in the root says is at the target.
  void ReadRecord(std::size_t i) CAIRN_EXCLUDES(mutex_);
  void TellOfLag() CAIRN_EXCLUDES(mutex_, event_mutex_);
  [[nodiscard]] bool told() const CAIRN_EXCLUDES(mutex_);
  void Wake() const;
  /// Counts a failure, and says it.
  void Fail(std::size_t i, const Status& why, const std::string& text) CAIRN_EXCLUDES(mutex_, event_mutex_);
  /// Unless it has said so already in this run or the one before.
  void Say(std::size_t i, const Status& why, const std::string& text) CAIRN_EXCLUDES(event_mutex_);

  const Parts parts_;
  // An eventfd.
  UniqueFd wake_;
  std::vector<One> mirrors_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Known> known_ CAIRN_GUARDED_BY(mutex_);
  // Oldest first.
  std::deque<CheckpointInfo> committed_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> told_at_ CAIRN_GUARDED_BY(mutex_);
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  bool left_ CAIRN_GUARDED_BY(mutex_) = false;

  // Held through a callback, so that none runs after End.
  Mutex event_mutex_;
  EventCallback on_event_ CAIRN_GUARDED_BY(event_mutex_);

  std::thread thread_;
};

}  // namespace cairn
