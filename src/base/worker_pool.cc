#include "base/worker_pool.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"

namespace cairn {

WorkerPool::WorkerPool(const std::string& name, int threads) {
  threads_.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    Result<std::thread> thread = StartThread(name, [this] { Run(); });
    if (!thread.ok()) {
      Stop();
      status_ =
          Error(thread.status().code(), "{} ({} of {} threads were started)", thread.status().message(), i, threads);
      return;
    }
    threads_.push_back(*std::move(thread));
  }
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::Post(std::function<void()> job) {
  {
    MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.NotifyOne();
}

void WorkerPool::KeepTo(const std::vector<int>& cpus) {
  for (std::thread& thread : threads_) {
    cpu_set_t allowed;
    if (pthread_getaffinity_np(thread.native_handle(), sizeof(allowed), &allowed) != 0) return;
    cpu_set_t kept;
    CPU_ZERO(&kept);
    for (const int cpu : cpus) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &kept);
    }
    if (CPU_COUNT(&kept) < threads()) return;
    static_cast<void>(pthread_setaffinity_np(thread.native_handle(), sizeof(kept), &kept));
  }
}

void WorkerPool::Run() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) wake_.Wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace cairn
