#include "io/uring_queue.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

#include "base/status_macros.h"
#include "io/io_threads.h"
#include "io/plain_io.h"
#include "io/uring_ring.h"
#include "io/wake_signal.h"

namespace cairn {
namespace {

// For operations besides data: fsyncs, renames and the like of several saves.
constexpr std::size_t kExtraSlots = 16;
// In the kernel since 6.9, but without a name in liburing 2.3.
constexpr unsigned kOpcodeFtruncate = 55;

// All but kCall, which always runs on a thread.
constexpr std::array kAllOps = {IoOp::kOpen,      IoOp::kClose,     IoOp::kRead,      IoOp::kWrite,  IoOp::kFsync,
                                IoOp::kFallocate, IoOp::kFtruncate, IoOp::kSyncRange, IoOp::kRename, IoOp::kUnlink,
                                IoOp::kMkdir,     IoOp::kRmdir,     IoOp::kLink};

unsigned Opcode(IoOp op) {
  constexpr std::array<unsigned, kAllOps.size()> kOpcodes = {
      IORING_OP_OPENAT,   IORING_OP_CLOSE,     IORING_OP_READ,    IORING_OP_WRITE,
      IORING_OP_FSYNC,    IORING_OP_FALLOCATE, kOpcodeFtruncate,  IORING_OP_SYNC_FILE_RANGE,
      IORING_OP_RENAMEAT, IORING_OP_UNLINKAT,  IORING_OP_MKDIRAT, IORING_OP_UNLINKAT,
      IORING_OP_LINKAT};
  return kOpcodes.at(static_cast<std::size_t>(op));
}

void Fill(io_uring_sqe* sqe, const IoRequest& request) {
  const auto transfer = static_cast<unsigned>(std::min(request.length, kMaxTransfer));
  const auto offset = static_cast<off_t>(request.offset);
  switch (request.op) {
    case IoOp::kOpen:
      return io_uring_prep_openat(sqe, request.path.directory(), request.path.c_str(), request.flags | O_CLOEXEC,
                                  request.mode);
    case IoOp::kClose:
      return io_uring_prep_close(sqe, request.fd);
    case IoOp::kRead:
      return io_uring_prep_read(sqe, request.fd, request.buffer, transfer, request.offset);
    case IoOp::kWrite:
      return io_uring_prep_write(sqe, request.fd, request.buffer, transfer, request.offset);
    case IoOp::kFsync:
      return io_uring_prep_fsync(sqe, request.fd, 0);
    case IoOp::kFallocate:
      return io_uring_prep_fallocate(sqe, request.fd, 0, offset, static_cast<off_t>(request.length));
    case IoOp::kFtruncate:
      return io_uring_prep_rw(kOpcodeFtruncate, sqe, request.fd, nullptr, 0, request.length);
    case IoOp::kSyncRange:
      // The field has 32 bits. 0 means up to the end of the file, which includes any longer range.
      return io_uring_prep_sync_file_range(
          sqe, request.fd, request.length > UINT32_MAX ? 0 : static_cast<unsigned>(request.length), request.offset,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    case IoOp::kRename:
      return io_uring_prep_renameat(sqe, request.path.directory(), request.path.c_str(), request.path2.directory(),
                                    request.path2.c_str(), RenameFlags(request.rename));
    case IoOp::kUnlink:
      return io_uring_prep_unlinkat(sqe, request.path.directory(), request.path.c_str(), 0);
    case IoOp::kRmdir:
      return io_uring_prep_unlinkat(sqe, request.path.directory(), request.path.c_str(), AT_REMOVEDIR);
    case IoOp::kMkdir:
      return io_uring_prep_mkdirat(sqe, request.path.directory(), request.path.c_str(), request.mode);
    case IoOp::kLink:
      return io_uring_prep_linkat(sqe, request.path.directory(), request.path.c_str(), request.path2.directory(),
                                  request.path2.c_str(), AT_SYMLINK_FOLLOW);
    case IoOp::kCall:
      break;
  }
}

class UringQueue : public IoQueue {
 public:
  ~UringQueue() override;
  [[nodiscard]] Status Start(int depth, const UringLimits& limits);
  /// For people: which operations run as system calls instead.
  [[nodiscard]] std::string Note() const;

  void Submit(IoRequest request, IoDone done) override;
  Result<std::size_t> RunOnce(Deadline deadline) override;
  void Wake() override { wake_.Wake(); }
  [[nodiscard]] std::size_t pending() const override { return pending_; }
  [[nodiscard]] std::string name() const override { return "io_uring"; }

 private:
  // An operation in the kernel. Its paths must not move.
  struct Slot {
    IoRequest request;
    IoDone done;
  };

  [[nodiscard]] bool RunsOnThread(IoOp op) const {
    return op == IoOp::kCall || on_thread_.at(static_cast<std::size_t>(op));
  }
  void PostToThread(IoRequest request, IoDone done);
  void FillSubmissions();
  [[nodiscard]] Status Enter(Deadline deadline);
  void Reap(std::vector<IoCompletion>& into);
  void FailAll(std::vector<IoCompletion>& into);

  const pid_t owner_ = ::getpid();
  std::array<bool, kAllOps.size()> on_thread_{};
  std::unique_ptr<UringRing> ring_;
  WakeSignal wake_;
  // Receives what the kernel reads from the eventfd.
  std::uint64_t wake_count_ = 0;
  bool wake_armed_ = false;
  // Someone closed the eventfd, so sleeps are short.
  bool wake_lost_ = false;
  // The ring is no longer entered.
  bool broken_ = false;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_;
  // Not yet in the kernel.
  std::deque<Slot> backlog_;
  std::size_t pending_ = 0;
  // Completed by the next RunOnce.
  std::vector<IoCompletion> refused_;
  // For missing opcodes and calls; created on demand. Last: its worker uses wake_.
  std::unique_ptr<IoThreads> helper_;
};

UringQueue::~UringQueue() {
  if (ring_ == nullptr) return;
  if (::getpid() != owner_) {
    // A forked child has neither the ring's memory nor its thread.
    ring_->Forget();
    wake_.Forget();
    (void)helper_.release();
    return;
  }
  helper_.reset();
  backlog_.clear();
  std::vector<IoCompletion> dropped;
  // End the read of the eventfd too, which would write into this object.
  if (wake_armed_) wake_.Wake();
  while (free_slots_.size() < slots_.size() || wake_armed_) {
    const bool entered = Enter(Deadline::Infinite()).ok();
    Reap(dropped);
    if (!entered) return;
  }
}

Status UringQueue::Start(int depth, const UringLimits& limits) {
  const std::size_t slots = static_cast<std::size_t>(depth) + kExtraSlots;
  CAIRN_RETURN_IF_ERROR(wake_.Open(0));  // Blocking, so that the ring's read waits instead of failing with EAGAIN.
  // One more entry for the eventfd.
  CAIRN_ASSIGN_OR_RETURN(ring_, UringRing::Make(static_cast<unsigned>(slots + 1), !limits.without_setup_flags));
  slots_.resize(slots);
  for (std::size_t i = slots; i-- > 0;) free_slots_.push_back(i);
  bool any = false;
  for (const IoOp op : kAllOps) {
    const bool missing =
        !ring_->Has(Opcode(op)) || std::ranges::find(limits.without_opcodes, op) != limits.without_opcodes.end();
    on_thread_.at(static_cast<std::size_t>(op)) = missing;
    any = any || missing;
  }
  if (any) {
    CAIRN_ASSIGN_OR_RETURN(helper_, IoThreads::Start(1, [this] { wake_.Nudge(); }));
  }
  return {};
}

std::string UringQueue::Note() const {
  std::string missing;
  for (const IoOp op : kAllOps) {
    if (RunsOnThread(op)) missing += (missing.empty() ? "" : ", ") + std::string(IoOpName(op));
  }
  if (missing.empty()) return "io_uring runs all operations";
  return fmt::format("io_uring runs all operations but {}: this kernel has no opcode for them, so a thread runs them",
                     missing);
}

void UringQueue::Submit(IoRequest request, IoDone done) {
  ++pending_;
  if (request.op == IoOp::kLink) request.path = PathOfDescriptor(request.fd);
  if (RunsOnThread(request.op)) {
    if (::getpid() == owner_) PostToThread(std::move(request), std::move(done));
  } else {
    backlog_.push_back({std::move(request), std::move(done)});
  }
}

void UringQueue::PostToThread(IoRequest request, IoDone done) {
  if (helper_ == nullptr) {
    Result<std::unique_ptr<IoThreads>> started = IoThreads::Start(1, [this] { wake_.Nudge(); });
    if (!started.ok()) return refused_.push_back({std::move(done), -EAGAIN});
    helper_ = *std::move(started);
  }
  helper_->Post(std::move(request), std::move(done));
}

Result<std::size_t> UringQueue::RunOnce(Deadline deadline) {
  if (::getpid() != owner_)
    return Error(StatusCode::kFailedPrecondition, "the I/O queue cannot be used in a forked child");
  std::vector<IoCompletion> completions = std::exchange(refused_, {});
  if (!completions.empty()) deadline = Deadline::In({});
  while (true) {
    if (!broken_) {
      FillSubmissions();
      const Deadline moment = Deadline::In(std::chrono::milliseconds(10));
      const bool entered = Enter(wake_lost_ && moment.when() < deadline.when() ? moment : deadline).ok();
      Reap(completions);
      broken_ = !entered;
    }
    if (broken_) FailAll(completions);
    if (helper_ != nullptr) helper_->Take(completions);
    const bool woken = wake_.Take();
    if (!completions.empty() || woken || deadline.passed()) break;
    if (broken_) WakeSignal::SleepBriefly(deadline);  // Only the ring may read the eventfd.
  }
  for (IoCompletion& completion : completions) {
    --pending_;
    completion.done(completion.result);
  }
  return completions.size();
}

// For a broken ring, which yields no completions.
void UringQueue::FailAll(std::vector<IoCompletion>& into) {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].done) continue;
    into.push_back({std::move(slots_[slot].done), -kBrokenQueue});
    slots_[slot] = {};
    free_slots_.push_back(slot);
  }
  for (Slot& waiting : backlog_) into.push_back({std::move(waiting.done), -kBrokenQueue});
  backlog_.clear();
  wake_armed_ = false;
}

void UringQueue::FillSubmissions() {
  if (!wake_armed_ && !wake_lost_) {
    if (io_uring_sqe* sqe = io_uring_get_sqe(ring_->get()); sqe != nullptr) {
      io_uring_prep_read(sqe, wake_.fd(), &wake_count_, sizeof wake_count_, 0);
      io_uring_sqe_set_data64(sqe, slots_.size());
      wake_armed_ = true;
    }
  }
  while (!backlog_.empty() && !free_slots_.empty()) {
    io_uring_sqe* sqe = io_uring_get_sqe(ring_->get());
    if (sqe == nullptr) return;
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = std::move(backlog_.front());
    backlog_.pop_front();
    Fill(sqe, slots_[slot].request);
    // Without this flag, the kernel tries the operation on this thread first. There it waits for the server of a FUSE
    // or network filesystem (an open of a cached name; a read or write of a descriptor with O_NONBLOCK; the poll that
    // comes before a worker gets it), and some kernels wait for locks of local filesystems too.
    io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    io_uring_sqe_set_data64(sqe, slot);
  }
}

// Submits, then sleeps until a completion, the deadline or a signal.
Status UringQueue::Enter(Deadline deadline) {
  int outcome = 0;
  if (deadline.passed()) {
    outcome = io_uring_submit_and_get_events(ring_->get());
  } else {
    __kernel_timespec timeout{};
    if (!deadline.infinite()) {
      const timespec left = WakeSignal::TimeLeft(deadline);
      timeout = {.tv_sec = left.tv_sec, .tv_nsec = left.tv_nsec};
    }
    io_uring_cqe* first = nullptr;
    outcome =
        io_uring_submit_and_wait_timeout(ring_->get(), &first, 1, deadline.infinite() ? nullptr : &timeout, nullptr);
  }
  if (outcome == -EAGAIN) {
    // The kernel lacks memory for more requests; pending ones may free some.
    __kernel_timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
    io_uring_cqe* first = nullptr;
    outcome = io_uring_wait_cqe_timeout(ring_->get(), &first, &pause);
  }
  // EBUSY: completions must be reaped first, which happens next.
  if (outcome >= 0 || outcome == -ETIME || outcome == -EINTR || outcome == -EBUSY) return {};
  return ErrnoStatus(-outcome, "io_uring_enter");
}

void UringQueue::Reap(std::vector<IoCompletion>& into) {
  unsigned head = 0;
  unsigned count = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(ring_->get(), head, cqe) {
    ++count;
    const std::uint64_t slot = cqe->user_data;
    if (slot == slots_.size()) {
      wake_armed_ = false;
      wake_lost_ = cqe->res < 0 && cqe->res != -EINTR && cqe->res != -EAGAIN;
      continue;
    }
    into.push_back({std::move(slots_[slot].done), cqe->res});
    slots_[slot] = {};
    free_slots_.push_back(slot);
  }
  io_uring_cq_advance(ring_->get(), count);
}

Result<std::unique_ptr<UringQueue>> Make(int depth, const UringLimits& limits) {
  auto queue = std::make_unique<UringQueue>();
  CAIRN_RETURN_IF_ERROR(queue->Start(depth, limits));
  return queue;
}

}  // namespace

Result<std::unique_ptr<IoQueue>> MakeUringQueue(int depth, const UringLimits& limits) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<UringQueue> queue, Make(depth, limits));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

Result<std::string> ProbeUring(int depth) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<UringQueue> queue, Make(depth, {}));
  return queue->Note();
}

}  // namespace cairn
