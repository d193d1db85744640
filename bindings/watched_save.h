#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "py_calls.h"
#include "thread_look.h"
#include "tree_tensors.h"

namespace cairn {

/// What becomes of a save if a tensor was written after the call of save, before a fence or a wait for its capture had
/// returned: its checkpoint may mix two steps. Shared by the saves of a Checkpointer. All calls need the GIL.
class UnfencedWrites {
 public:
  enum class Then : std::uint8_t { kFail, kWarn, kIgnore };
  using Warn = std::function<void(const Status&)>;

  UnfencedWrites(Then then, Warn warn) : then_(then), warn_(std::move(warn)) {}

  /// Whether versions are of any use.
  [[nodiscard]] bool checked() const { return then_ != Then::kIgnore && !versions_ignored_; }
  [[nodiscard]] bool ignored() const { return then_ == Then::kIgnore; }
  /// For a fence within a compiled graph: torch counts what the graph writes before it runs the graph, and so before
  /// the fence.
  void IgnoreVersions() { versions_ignored_ = true; }
  /// Ok if it was a warning only.
  [[nodiscard]] Status Judge(const Status& found) const;

 private:
  const Then then_;
  const Warn warn_;
  bool versions_ignored_ = false;
};

/// Ranges of memory that a step has written.
class WrittenMemory {
 public:
  /// (address, bytes)
  explicit WrittenMemory(std::vector<std::pair<std::uintptr_t, std::uint64_t>> ranges);
  [[nodiscard]] bool Overlaps(std::uintptr_t address, std::uint64_t bytes) const;

 private:
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges_;  // First byte, end; ascending and apart.
};

/// A held save and the tensors that it reads. It may commit only after a check, made before the caller may change them:
/// the tensors' memory must still be where it was, and must not have been written. If a storage was resized, or a
/// tensor given other data, the old memory may hold anything when it is copied.
///
/// All calls need the GIL.
class WatchedSave {
 public:
  /// With `release` the check lets the save commit; otherwise the caller calls Release. `torch` may be null. Without
  /// tensors, as of copies, nothing is checked.
  WatchedSave(SaveHandle save, std::shared_ptr<const TensorTable> table, std::shared_ptr<const TorchReader> torch,
              std::vector<TreeTensors::Source> tensors, std::shared_ptr<const UnfencedWrites> writes, bool release);

  [[nodiscard]] const SaveHandle& save() const { return save_; }
  /// Checks the tensors, only the first time it is called: if one has moved, or was written, the save fails; otherwise
  /// the save is released. Call it before the caller hears that the tensors may be changed, and as Watcher::Settle
  /// does: not while a write may be under way. Returns false if the save fails because of it.
  bool CheckMemory();
  /// A step has written memory that the save may still read. Has no effect after the check, or on a save that began
  /// within that step: its optimizer's own hooks run after the update.
  void NoteWritten(const WrittenMemory& written, std::uint64_t step);
  /// How many steps had begun when the save did.
  void set_born(std::uint64_t steps) { born_ = steps; }
  [[nodiscard]] bool checked() const { return read_ == nullptr; }
  /// The thread that called save. It is the one that writes, as far as anybody can know.
  [[nodiscard]] ThreadIdent caller() const { return caller_; }
  /// The caller allows the save to commit.
  void Release();

 private:
  struct Read {
    std::shared_ptr<const TensorTable> table;
    std::vector<TreeTensors::Source> tensors;
  };

  /// An error for a tensor whose memory has moved. Adds those that have another version, or other ends.
  [[nodiscard]] Status FindMoved(const Read& read, std::vector<std::uint32_t>& written) const;
  [[nodiscard]] Status Judge(const Read& read, std::vector<std::uint32_t> written) const;

  const SaveHandle save_;
  const std::shared_ptr<const TorchReader> torch_;
  const std::shared_ptr<const UnfencedWrites> writes_;
  const ThreadIdent caller_ = ThisThread();
  bool release_;
  bool failed_ = false;
  std::uint64_t born_ = 0;
  // Entries of the table.
  std::vector<std::uint32_t> written_;
  std::shared_ptr<const Read> read_;  // Null after the check.
};

/// Checks each watched save once it is captured, unless a fence has done so before. Runs on a thread that Python has
/// made, so that no C++ thread takes the GIL.
///
/// torch counts a write when its operation ends, and an operation releases the GIL. So one that began before the
/// capture may be under way, and not be counted, while another thread has the GIL and asks: see Settle.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  /// For how long a check waits for an operation of the thread that called save, and for one of the main thread if that
  /// is another, or if a fence waits: its caller has training to go on with.
  static constexpr std::chrono::seconds kLongest{10};
  static constexpr std::chrono::milliseconds kShort{100};
  /// What has not run on a core for so long waits for something, and writes nothing.
  static constexpr std::chrono::seconds kStill{1};

  /// The calling thread waits for saves as long as this lives, and so writes nothing.
  class Waiting {
   public:
    explicit Waiting(Watcher& watcher);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Watcher& watcher_;
    const ThreadIdent thread_;
  };

  /// Checks a save, of which no tensor is read any more, once each operation that is under way now has ended: on the
  /// thread that called save none is if it calls; else it, and the main thread, have been seen elsewhere in their
  /// Python code since, or where they write nothing. Waits for an operation up to `longest`, and for none after Stop.
  /// Needs the GIL, and waits without it.
  void Settle(const std::shared_ptr<WatchedSave>& save, std::chrono::nanoseconds longest) CAIRN_EXCLUDES(mutex_);
  /// Waits until the Watcher's thread has checked the save. False at the deadline. The same of the GIL.
  [[nodiscard]] bool WaitChecked(const WatchedSave& save, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  void Add(std::shared_ptr<WatchedSave> save) CAIRN_EXCLUDES(mutex_);
  /// Saves that are not checked yet, oldest first.
  [[nodiscard]] std::vector<std::shared_ptr<WatchedSave>> pending() const CAIRN_EXCLUDES(mutex_);
  /// The thread's function: returns after Stop. Calls `on_checked` once the engine reads a save's tensors no more, and
  /// they are checked. Needs the GIL, and waits without it.
  void Run(const std::function<void()>& on_events, const std::function<void()>& on_checked) CAIRN_EXCLUDES(mutex_);
  void Stop() CAIRN_EXCLUDES(mutex_);
  /// Has Run call `on_events` soon: any thread, without the GIL.
  void NudgeForEvents() CAIRN_EXCLUDES(mutex_);
  /// The process is to end: no wait for a save lasts longer but one that its caller has limited. Also within a signal
  /// handler of Python's.
  void EndWaitsBy(Deadline deadline) { waits_end_ = deadline.when(); }
  [[nodiscard]] Deadline waits_end() const { return Deadline::At(waits_end_); }
  /// The end of a wait that is limited to so many seconds, by the caller or by an option.
  [[nodiscard]] auto EndOf(std::optional<double> timeout, bool by_caller = true) const {
    return [this, end = DeadlineFrom(timeout), ends = !timeout || !by_caller] {
      return ends ? Deadline::At(std::min(end.when(), waits_end_.load())) : end;
    };
  }
  /// An optimizer's step begins. Until it ends no other thread checks a save, because what it writes is known at its
  /// end only; a fence within the step checks. It ends with EndStep of the same thread: at the latest at its next call
  /// that waits for a save, because the step may have raised.
  void BeginStep() CAIRN_EXCLUDES(mutex_);
  void EndStep() CAIRN_EXCLUDES(mutex_);
  /// Whether this is a forked child, in which nothing is watched.
  [[nodiscard]] bool forked() const { return ::getpid() != process_; }
  /// How many steps have begun.
  [[nodiscard]] std::uint64_t steps() const CAIRN_EXCLUDES(mutex_);
  /// Checks and releases all tensors: no save reads them any more.
  void ReleaseTensors() CAIRN_EXCLUDES(mutex_);

 private:
  /// What the main thread does between two operations.
  struct Turn {
    std::shared_ptr<Watcher> watcher;
    std::shared_ptr<WatchedSave> save;
  };
  static int TakeTurn(void* turn);
  [[nodiscard]] bool stepping() const CAIRN_EXCLUDES(mutex_);
  /// Has the main thread check the save when it comes between two operations, if it is the one to wait for.
  void AskMainThread(const std::shared_ptr<WatchedSave>& save);
  static void Check(WatchedSave& save);
  enum class Next : std::uint8_t { kSave, kEvents, kStop };
  /// What the thread does next: for the oldest save once its tensors are read. Needs no GIL.
  Next WaitForNext(std::shared_ptr<WatchedSave>& save) CAIRN_EXCLUDES(mutex_);
  /// Where the thread may be writing; nothing if it is not.
  [[nodiscard]] std::optional<ThreadPlace> LookAt(ThreadIdent thread) const CAIRN_EXCLUDES(mutex_);
  /// Whether a thread but this one is within an optimizer's step.
  [[nodiscard]] bool SteppingElsewhere() const CAIRN_EXCLUDES(mutex_);

  const ThreadIdent main_ = MainThread();
  const pid_t process_ = ::getpid();  // In a forked child nothing is watched, and the lock may be held for ever.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<WatchedSave>> pending_ CAIRN_GUARDED_BY(mutex_);
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
  bool events_ CAIRN_GUARDED_BY(mutex_) = false;
  std::atomic<Deadline::Clock::time_point> waits_end_ = Deadline::Infinite().when();
  std::optional<ThreadIdent> stepping_ CAIRN_GUARDED_BY(mutex_);  // Its thread.
  std::uint64_t steps_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::multiset<ThreadIdent> waiting_ CAIRN_GUARDED_BY(mutex_);  // Threads.
};

void BindWatcher(pybind11::module_& module);

}  // namespace cairn
