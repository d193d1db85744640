#include "io/io_threads.h"

#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "io/plain_io.h"

namespace cairn {

Result<std::unique_ptr<IoThreads>> IoThreads::Start(int threads, std::function<void()> notify) {
  std::unique_ptr<IoThreads> made(new IoThreads(std::move(notify)));
  made->threads_.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    Result<std::thread> thread = StartThread("cairn-io", [self = made.get()] { self->Run(); });
    if (!thread.ok()) {
      return Error(thread.status().code(), "{} ({} of {} threads were started)", thread.status().message(), i, threads);
    }
    made->threads_.push_back(*std::move(thread));
  }
  return made;
}

IoThreads::~IoThreads() {
  std::deque<Job> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(jobs_);
  }
  posted_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void IoThreads::Post(IoRequest request, IoDone done) {
  {
    MutexLock lock(mutex_);
    jobs_.push_back({std::move(request), std::move(done)});
  }
  posted_.NotifyOne();
}

void IoThreads::Take(std::vector<IoCompletion>& into) {
  MutexLock lock(mutex_);
  into.insert(into.end(), std::make_move_iterator(completions_.begin()), std::make_move_iterator(completions_.end()));
  completions_.clear();
}

void IoThreads::Run() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) posted_.Wait(mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const std::int64_t result = RunPlain(job.request);
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = completions_.empty();
      completions_.push_back({std::move(job.done), result});
    }
    if (first) notify_();
  }
}

}  // namespace cairn
