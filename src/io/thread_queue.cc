#include "io/thread_queue.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "io/io_threads.h"
#include "io/wake_signal.h"

namespace cairn {
namespace {

// More threads than this only queue up in the kernel.
constexpr int kMaxThreads = 64;

class ThreadQueue : public IoQueue {
 public:
  ~ThreadQueue() override {
    if (::getpid() == owner_) return;
    // A forked child has none of the threads, and the locks as they happened to be.
    (void)threads_.release();
    wake_.Forget();
  }

  [[nodiscard]] Status Start(int depth) {
    CAIRN_RETURN_IF_ERROR(wake_.Open(EFD_NONBLOCK));
    CAIRN_ASSIGN_OR_RETURN(threads_, IoThreads::Start(std::min(depth + 2, kMaxThreads), [this] { wake_.Nudge(); }));
    return {};
  }

  void Submit(IoRequest request, IoDone done) override {
    ++pending_;
    if (::getpid() == owner_) threads_->Post(std::move(request), std::move(done));
  }

  Result<std::size_t> RunOnce(Deadline deadline) override {
    if (::getpid() != owner_) return Error(StatusCode::kFailedPrecondition, "I/O queue used in a forked child");
    std::vector<IoCompletion> completions;
    while (true) {
      threads_->Take(completions);
      const bool woken = wake_.Take();
      if (!completions.empty() || woken || deadline.passed()) break;
      CAIRN_RETURN_IF_ERROR(Sleep(deadline));
    }
    for (IoCompletion& completion : completions) {
      --pending_;
      completion.done(completion.result);
    }
    return completions.size();
  }

  void Wake() override { wake_.Wake(); }
  [[nodiscard]] std::size_t pending() const override { return pending_; }
  [[nodiscard]] std::string name() const override { return "threads"; }

 private:
  [[nodiscard]] Status Sleep(Deadline deadline) {
    pollfd entry{.fd = wake_.fd(), .events = POLLIN, .revents = 0};
    timespec timeout{};
    if (!deadline.infinite()) {
      const auto left = std::max(std::chrono::nanoseconds(deadline.when() - Deadline::Clock::now()),
                                 std::chrono::nanoseconds::zero());
      timeout.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
      timeout.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    }
    if (::ppoll(&entry, 1, deadline.infinite() ? nullptr : &timeout, nullptr) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "poll of an I/O queue");
    }
    std::uint64_t count = 0;
    if (::read(wake_.fd(), &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus(errno, "eventfd of an I/O queue");
    }
    return {};
  }

  const pid_t owner_ = ::getpid();
  WakeSignal wake_;
  std::size_t pending_ = 0;
  std::unique_ptr<IoThreads> threads_;  // Last: its workers use wake_.
};

}  // namespace

Result<std::unique_ptr<IoQueue>> MakeThreadQueue(int depth) {
  auto queue = std::make_unique<ThreadQueue>();
  CAIRN_RETURN_IF_ERROR(queue->Start(depth));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace cairn
