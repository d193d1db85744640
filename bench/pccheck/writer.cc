// What the writer process does.
//
// As the authors' does, it runs on one core, which the main thread polls on for the next save. A save goes to whichever
// saver is idle. That one has the state copied to the shared memory, chunk by chunk; its threads store each chunk in a
// slot as soon as it is there, and have the kernel begin to write it; then come one msync and the root record.
//
// The authors' threads have cores of their own where there are enough of them; on two cores they share the poller's.
// Early write-back is not theirs. It write-protects the pages again, and only a process that runs on one core gets that
// cheaply: no other core has them in its TLB.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/pccheck/channel.h"
#include "bench/pccheck/shared_memory.h"
#include "bench/pccheck/writer_process.h"
#include "bench/strategies/slot_file.h"

namespace cairn::bench {
namespace {

using Kind = PcCheckMessage::Kind;
using Clock = std::chrono::steady_clock;

/// The chunks of the shared memory that are free.
class FreeChunks {
 public:
  explicit FreeChunks(const WriterSettings& settings) {
    for (std::uint64_t i = settings.chunks; i > 0; --i) free_.push_back((i - 1) * settings.chunk_bytes);
  }
  std::uint64_t Take() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (free_.empty()) freed_.Wait(mutex_);
    const std::uint64_t place = free_.back();
    free_.pop_back();
    return place;
  }
  void Give(std::uint64_t place) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.push_back(place);
    freed_.NotifyOne();
  }

 private:
  Mutex mutex_;
  CondVar freed_;
  std::vector<std::uint64_t> free_ CAIRN_GUARDED_BY(mutex_);
};

/// The emulated disk, which the training's process has.
class RemoteDisk {
 public:
  RemoteDisk(PcCheckChannel channel, bool paced) : channel_(std::move(channel)), paced_(paced) {}

  /// When it will be done with what is given to it now.
  Clock::time_point Take(std::uint64_t bytes) CAIRN_EXCLUDES(mutex_) {
    if (!paced_) return Clock::time_point::min();
    MutexLock lock(mutex_);
    const Result<PcCheckMessage> answer = channel_.Ask({.kind = Kind::kTake, .bytes = bytes});
    return answer.ok() ? Clock::time_point(std::chrono::nanoseconds(answer->due)) : Clock::time_point::min();
  }

 private:
  Mutex mutex_;
  PcCheckChannel channel_ CAIRN_GUARDED_BY(mutex_);
  const bool paced_;
};

class Writer {
 public:
  Writer(const SharedMemory& memory, std::unique_ptr<SlotFile> file)
      : settings_(memory.settings()),
        chunks_(memory.chunks()),
        file_(std::move(file)),
        free_(settings_),
        disk_(PcCheckChannel(UniqueFd(kWriterDiskFd)), settings_.paced) {
    for (int i = 0; i < settings_.in_flight; ++i) {
      savers_.push_back(std::make_unique<Saver>(kWriterFirstSaverFd + i, settings_.writers));
      idle_.push_back(savers_.back().get());
    }
  }

  /// Until the training has gone.
  Status Serve(PcCheckChannel& control) {
    for (std::uint64_t turn = 0;; ++turn) {
      CAIRN_ASSIGN_OR_RETURN(const PcCheckMessage save, NextSave(control));
      Saver& saver = IdleSaver();
      saver.copier.Post([this, &saver, step = save.step, turn] { Run(saver, step, turn); });
    }
  }

 private:
  /// One checkpoint under way.
  struct Saver {
    Saver(int socket, int threads) : training(UniqueFd(socket)), writers("pccheck-write", threads) {}
    PcCheckChannel training;
    WorkerPool writers;
    WorkerPool copier{"pccheck-copy", 1};
  };
  /// Its chunks that are copied and not stored yet.
  struct Progress {
    Mutex mutex;
    CondVar changed;
    int chunks CAIRN_GUARDED_BY(mutex) = 0;
    // When the emulated disk has the newest chunks stored, as many as there are threads.
    std::deque<Clock::time_point> with_disk CAIRN_GUARDED_BY(mutex);
  };

  Result<PcCheckMessage> NextSave(PcCheckChannel& control) const {
    if (!settings_.polls) return control.Receive();
    while (true) {
      if (std::optional<Result<PcCheckMessage>> found = control.Poll(); found.has_value()) return *found;
    }
  }

  Saver& IdleSaver() CAIRN_EXCLUDES(mutex_) {
    while (true) {
      MutexLock lock(mutex_);
      while (idle_.empty() && !settings_.polls) changed_.Wait(mutex_);
      if (idle_.empty()) continue;
      Saver& saver = *idle_.front();
      idle_.pop_front();
      return saver;
    }
  }

  void Run(Saver& saver, std::uint64_t step, std::uint64_t turn) CAIRN_EXCLUDES(mutex_) {
    const Status status = Save(saver, step, turn);
    MutexLock lock(mutex_);
    ++ended_;
    if (status_.ok()) status_ = status;
    // Sent before another save can have the channel. Where the training has gone, nobody is told.
    static_cast<void>(saver.training.Send(StatusMessage(Kind::kEnded, status)));
    idle_.push_back(&saver);
    changed_.NotifyAll();
  }

  Status Save(Saver& saver, std::uint64_t step, std::uint64_t turn) CAIRN_EXCLUDES(mutex_) {
    Progress progress;
    Result<int> slot = file_->Take();  // With a saver idle a slot is free.
    const Status copied = slot.ok() ? CopyChunks(saver, *slot, progress) : slot.status();
    const Status captured = saver.training.Send({.kind = Kind::kCaptured});
    {
      MutexLock lock(progress.mutex);
      while (progress.chunks > 0) progress.changed.Wait(progress.mutex);
      for (const Clock::time_point due : progress.with_disk) std::this_thread::sleep_until(due);
    }
    CAIRN_RETURN_IF_ERROR(copied);
    CAIRN_RETURN_IF_ERROR(captured);
    CAIRN_RETURN_IF_ERROR(file_->Persist(*slot));
    // Several nodes commit the same steps in the same order, and none after one that failed: a node may need the step
    // before that. One node alone lets the newest overtake.
    if (settings_.ordered) CAIRN_RETURN_IF_ERROR(AwaitTurn(turn));
    return Commit(saver, *slot, step);
  }

  // Until the saves before have ended; the failure of one of them.
  Status AwaitTurn(std::uint64_t turn) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (ended_ < turn) changed_.Wait(mutex_);
    return status_;
  }

  // Until every node has recorded this step, a restart may have to go back to the one before.
  Status Commit(Saver& saver, int slot, std::uint64_t step) {
    CAIRN_ASSIGN_OR_RETURN(const SlotFile::Recorded recorded, file_->Record(slot, step));
    CAIRN_ASSIGN_OR_RETURN(const PcCheckMessage everywhere,
                           saver.training.Ask({.kind = Kind::kRecorded, .newest = recorded.newest, .step = step}));
    CAIRN_RETURN_IF_ERROR(everywhere.status());
    if (recorded.unused.has_value()) file_->Free(*recorded.unused);
    return {};
  }

  Status CopyChunks(Saver& saver, int slot, Progress& progress) {
    for (std::uint64_t at = 0; at < settings_.state_bytes; at += settings_.chunk_bytes) {
      const std::uint64_t n = std::min(settings_.chunk_bytes, settings_.state_bytes - at);
      const std::uint64_t place = free_.Take();
      const Result<PcCheckMessage> copied =
          saver.training.Ask({.kind = Kind::kCopy, .begin = at, .bytes = n, .place = place});
      Status status = copied.ok() ? copied->status() : copied.status();
      if (!status.ok()) {
        free_.Give(place);
        return status;
      }
      {
        MutexLock lock(progress.mutex);
        ++progress.chunks;
      }
      saver.writers.Post([this, slot, at, n, place, &progress] { Store(slot, at, n, place, progress); });
    }
    return {};
  }

  void Store(int slot, std::uint64_t at, std::uint64_t n, std::uint64_t place, Progress& progress) {
    std::memcpy(file_->slot(slot).data() + at, chunks_.data() + place, n);
    free_.Give(place);
    // The emulated disk has one chunk of each thread while that stores the next, so saves under way share it equally.
    Clock::time_point earlier = Clock::time_point::min();
    {
      MutexLock lock(progress.mutex);
      if (progress.with_disk.size() >= static_cast<std::size_t>(settings_.writers)) {
        earlier = progress.with_disk.front();
        progress.with_disk.pop_front();
      }
    }
    std::this_thread::sleep_until(earlier);
    const Clock::time_point due = disk_.Take(n);
    file_->StartWriting(slot, at, n);
    MutexLock lock(progress.mutex);
    progress.with_disk.push_back(due);
    --progress.chunks;
    progress.changed.NotifyAll();
  }

  const WriterSettings settings_;
  const MutableBytes chunks_;
  const std::unique_ptr<SlotFile> file_;
  FreeChunks free_;
  RemoteDisk disk_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Saver*> idle_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t ended_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status status_ CAIRN_GUARDED_BY(mutex_);  // The first failure.
  std::vector<std::unique_ptr<Saver>> savers_;
};

void StayOn(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  ::sched_setaffinity(0, sizeof(cores), &cores);
}

// Ends this process, whatever its other threads do, once the training has gone.
void WatchTraining() {
  pollfd control{.fd = kWriterControlFd, .events = POLLRDHUP, .revents = 0};
  while (::poll(&control, 1, -1) <= 0) {
  }
  ::_exit(0);
}

Status Work(const std::string& slots, PcCheckChannel& control) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<SharedMemory> memory, SharedMemory::Map(UniqueFd(kWriterMemoryFd)));
  const WriterSettings& settings = memory->settings();
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SlotFile> file,
                         SlotFile::OpenOnceFree(slots, settings.in_flight + 1, settings.state_bytes));
  StayOn(settings.core);  // Threads begin where the one that starts them is.
  Writer writer(*memory, std::move(file));
  CAIRN_RETURN_IF_ERROR(control.Send({.kind = Kind::kReady}));
  return writer.Serve(control);
}

}  // namespace

void RunWriter(const std::string& slots) {
  const std::thread watch(WatchTraining);  // Never joined: both ways out are an _exit.
  PcCheckChannel control{UniqueFd(kWriterControlFd)};
  const Status status = Work(slots, control);
  static_cast<void>(control.Send(StatusMessage(Kind::kReady, status)));
  ::_exit(1);
}

}  // namespace cairn::bench
