#include "io/thread_queue.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/closed_streams.h"
#include "base/status_macros.h"
#include "io/io_threads.h"
#include "io/wake_signal.h"

namespace cairn {
namespace {

// More threads would only queue in the kernel.
constexpr int kMaxThreads = 64;

class ThreadQueue : public IoQueue {
 public:
  ~ThreadQueue() override {
    if (::getpid() == owner_) return;
    // A forked child has no threads, and its locks are in an arbitrary state.
    (void)threads_.release();
    wake_.Forget();
  }

  [[nodiscard]] Status Start(int depth) {
    TakeClosedStreams();
    CAIRN_RETURN_IF_ERROR(wake_.Open(EFD_NONBLOCK));
    CAIRN_ASSIGN_OR_RETURN(threads_, IoThreads::Start(std::min(depth + 2, kMaxThreads), [this] { wake_.Nudge(); }));
    return {};
  }

  void Submit(IoRequest request, IoDone done) override {
    ++pending_;
    if (::getpid() == owner_) threads_->Post(std::move(request), std::move(done));
  }

  Result<std::size_t> RunOnce(Deadline deadline) override {
    if (::getpid() != owner_)
      return Error(StatusCode::kFailedPrecondition, "the I/O queue cannot be used in a forked child");
    std::vector<IoCompletion> completions;
    while (true) {
      threads_->Take(completions);
      const bool woken = wake_.Take();
      if (!completions.empty() || woken || deadline.passed()) break;
      wake_.Sleep(deadline);
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
  const pid_t owner_ = ::getpid();
  WakeSignal wake_;
  std::size_t pending_ = 0;
  // Last: its workers use wake_.
  std::unique_ptr<IoThreads> threads_;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> MakeThreadQueue(int depth) {
  auto queue = std::make_unique<ThreadQueue>();
  CAIRN_RETURN_IF_ERROR(queue->Start(depth));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace cairn
