#include <sched.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/pccheck/shared_memory.h"
#include "bench/pccheck/writer_process.h"
#include "bench/strategies/nodes.h"
#include "bench/strategies/slot_file.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

using Kind = PcCheckMessage::Kind;

/// PCcheck: N checkpoints under way, each in a slot of its own (N + 1 in all), written by a process of its own on a
/// core of its own (bench/pccheck/writer.cc says how); the newest complete one wins. Several nodes agree on each step
/// before the slot of the one before is used again, as the authors' do.
///
/// In the authors' artifact both processes have the state, which is on the GPU. Here they share the pinned memory that
/// it is copied to; the copies are made by the GPU of this process, as every strategy's are. The training's own waits
/// sleep where the artifact polls: its thread has nothing else to do then, and on a GPU nobody else wants its core.
class PcCheck final : public Strategy {
 public:
  PcCheck(const Workplace& workplace, std::unique_ptr<SharedMemory> memory)
      : at_(workplace), memory_(std::move(memory)), slots_(workplace.directory + "/slots") {}
  ~PcCheck() override {
    static_cast<void>(Drain());
    Stop();
    if (pinned_) at_.gpu.device()->UnpinMemory(memory_->chunks());
  }

  Status Start() {
    if (!pinned_) CAIRN_RETURN_IF_ERROR(at_.gpu.device()->PinMemory(memory_->chunks()));
    pinned_ = true;
    CAIRN_ASSIGN_OR_RETURN(writer_, WriterProcess::Start(slots_, *memory_));
    const int in_flight = memory_->settings().in_flight;
    services_ = std::make_unique<WorkerPool>("pccheck-serve", in_flight + 1);
    CAIRN_RETURN_IF_ERROR(services_->status());
    for (int i = 0; i < in_flight; ++i) services_->Post([this, i] { ServeSaver(writer_->saver(i)); });
    services_->Post([this] { ServeDisk(writer_->disk()); });
    return {};
  }

  Status Save(std::uint64_t step) override {
    CAIRN_RETURN_IF_ERROR(BeforeUpdate());  // The one before is no longer waiting for a saver.
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    CAIRN_RETURN_IF_ERROR(writer_->control().Send({.kind = Kind::kSave, .step = step}));
    ++capturing_;
    ++saves_;
    return {};
  }
  Status BeforeUpdate() override {
    MutexLock lock(mutex_);
    while (capturing_ > 0 && !gone_) changed_.Wait(mutex_);
    return gone_ ? status_ : Status::Ok();
  }
  Status Drain() override {
    MutexLock lock(mutex_);
    while (ended_ < saves_ && !gone_) changed_.Wait(mutex_);
    return status_;
  }
  Result<std::uint64_t> Restore() override {
    CAIRN_RETURN_IF_ERROR(Drain());
    Stop();  // One process at a time has the file.
    Result<std::uint64_t> restored = RestoreHere();
    if (const Status started = Start(); !started.ok()) {
      MutexLock lock(mutex_);
      gone_ = true;
      status_ = started;
      return started;
    }
    return restored;
  }
  [[nodiscard]] std::optional<pid_t> process() const override {
    return writer_ == nullptr ? std::nullopt : std::optional(writer_->pid());
  }

 private:
  void Stop() {
    if (writer_ == nullptr) return;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    writer_->Shut();
    services_.reset();
    writer_.reset();
    MutexLock lock(mutex_);
    stopping_ = false;
  }

  Result<std::uint64_t> RestoreHere() {
    const WriterSettings& settings = memory_->settings();
    CAIRN_ASSIGN_OR_RETURN(auto file, SlotFile::OpenOnceFree(slots_, settings.in_flight + 1, settings.state_bytes));
    return RestoreNewest(*file, at_);
  }

  // What one checkpoint under way asks of this process.
  void ServeSaver(PcCheckChannel& saver) CAIRN_EXCLUDES(mutex_) {
    while (true) {
      const Result<PcCheckMessage> asked = saver.Receive();
      if (!asked.ok()) return NoteGone();
      Status sent;
      if (asked->kind == Kind::kCopy) {
        const MutableBytes to = memory_->chunks().subspan(asked->place, asked->bytes);
        sent = saver.Send(StatusMessage(Kind::kAnswer, at_.gpu.CopyToHost(at_.state, asked->begin, to)));
      } else if (asked->kind == Kind::kRecorded) {
        const Status everywhere = AwaitDurableOnAll(at_, asked->step);
        if (everywhere.ok() && asked->newest) at_.durable(asked->step);
        sent = saver.Send(StatusMessage(Kind::kAnswer, everywhere));
      } else {
        Note(*asked);
      }
      if (!sent.ok()) return NoteGone();
    }
  }

  void ServeDisk(PcCheckChannel& disk) const {
    while (true) {
      const Result<PcCheckMessage> asked = disk.Receive();
      if (!asked.ok()) return;
      const auto due =
          std::chrono::duration_cast<std::chrono::nanoseconds>(at_.disk->Take(asked->bytes).time_since_epoch());
      if (!disk.Send({.kind = Kind::kAnswer, .due = due.count()}).ok()) return;
    }
  }

  void Note(const PcCheckMessage& message) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (message.kind == Kind::kCaptured) --capturing_;
    if (message.kind == Kind::kEnded) ++ended_;
    if (status_.ok()) status_ = message.status();
    changed_.NotifyAll();
  }

  void NoteGone() CAIRN_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const Status death = writer_->Death();
    MutexLock lock(mutex_);
    gone_ = true;
    if (status_.ok()) status_ = death;
    changed_.NotifyAll();
  }

  const Workplace at_;
  const std::unique_ptr<SharedMemory> memory_;
  const std::string slots_;
  bool pinned_ = false;
  std::unique_ptr<WriterProcess> writer_;  // Null between Stop and Start.

  Mutex mutex_;
  CondVar changed_;
  int capturing_ CAIRN_GUARDED_BY(mutex_) = 0;        // Saves whose state is not all in the shared memory yet.
  std::uint64_t saves_ CAIRN_GUARDED_BY(mutex_) = 0;  // Begun and ended.
  std::uint64_t ended_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  bool gone_ CAIRN_GUARDED_BY(mutex_) = false;  // The writer has ended by itself.
  Status status_ CAIRN_GUARDED_BY(mutex_);      // The first failure.
  std::unique_ptr<WorkerPool> services_;        // One thread for each checkpoint under way, and one for the disk.
};

std::uint64_t ChunkBytes(const Workplace& workplace) {
  const std::uint64_t most = std::max<std::uint64_t>(AlignUp(DivideUp(workplace.state.bytes(), 8), kBlock), kBlock);
  return workplace.chunk_bytes == 0 ? most : std::min(workplace.chunk_bytes, most);
}

// The last core that this process may run on; of several nodes on one machine, each another.
int CoreFor(const Workplace& workplace) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof(allowed), &allowed);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &allowed)) cores.push_back(core);
  }
  const auto before = static_cast<std::size_t>(workplace.group == nullptr ? 0 : workplace.group->rank());
  return cores.empty() ? 0 : cores[cores.size() - 1 - before % cores.size()];
}

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  const std::uint64_t chunk_bytes = ChunkBytes(workplace);
  const std::uint64_t chunks = workplace.host_memory_bytes / chunk_bytes;
  if (chunks == 0) {
    return Error(StatusCode::kInvalidArgument, "pccheck: expected host memory of at least {} bytes, found {}",
                 chunk_bytes, workplace.host_memory_bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(auto memory, SharedMemory::Make({.state_bytes = workplace.state.bytes(),
                                                          .chunk_bytes = chunk_bytes,
                                                          .chunks = chunks,
                                                          .in_flight = workplace.in_flight,
                                                          .writers = workplace.writers,
                                                          .core = CoreFor(workplace),
                                                          // Of nodes that share a machine none has a core to poll on.
                                                          .polls = workplace.group == nullptr,
                                                          .ordered = workplace.group != nullptr,
                                                          .paced = workplace.disk != nullptr}));
  auto strategy = std::make_unique<PcCheck>(workplace, std::move(memory));
  CAIRN_RETURN_IF_ERROR(strategy->Start());
  return std::unique_ptr<Strategy>(std::move(strategy));
}

}  // namespace

StrategyKind PcCheckKind() {
  return {
      .name = "pccheck",
      .tuning =
          "in_flight + 1 slots in one mapped, laid-out file, written by a process of its own that polls on a core "
          "of its own; writer threads a checkpoint and checkpoints in flight as given, chunks as given or an eighth "
          "of the state, written back early, one msync; pinned memory of twice the state unless set",
      .checkpoints_on_disk = [](int in_flight) { return in_flight + 1; },
      .host_bytes = [](std::uint64_t, std::uint64_t host_memory_bytes, int) { return host_memory_bytes; },
      .open = Open};
}

}  // namespace cairn::bench
