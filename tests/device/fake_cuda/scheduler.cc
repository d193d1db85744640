// Runs the streams' operations: one thread for all of them, in an order that the schedule's seed chooses.
#include <algorithm>
#include <chrono>
#include <utility>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

// As many launches fit a real queue, about.
constexpr int kQueueLength = 1024;
constexpr std::uint64_t kLongestDelay = 24;

std::vector<FakeStream*> AllStreams() {
  Driver& d = driver();
  std::vector<FakeStream*> all(d.dying.begin(), d.dying.end());
  for (auto& [gpu, context] : d.contexts) all.insert(all.end(), context.streams.begin(), context.streams.end());
  return all;
}

bool IsReady(const FakeStream& stream) {
  return !stream.busy && !stream.queue.empty() && (!stream.queue.front().ready || stream.queue.front().ready());
}

void Drop(const Operation& operation) {
  if (operation.reaches != nullptr) operation.reaches->reached = true;
}

void DropQueued(FakeStream& stream) {
  for (const Operation& operation : stream.queue) {
    Drop(operation);
    stream.outstanding -= operation.weight;
  }
  *stream.completed += stream.queue.size();
  stream.queue.clear();
}

void Finish(FakeStream& stream, const Operation& operation, CUresult result) {
  Driver& d = driver();
  stream.busy = false;
  stream.outstanding -= operation.weight;
  ++*stream.completed;
  if (operation.reaches != nullptr) operation.reaches->reached = true;
  if (result != CUDA_SUCCESS) SetStickyLocked(*stream.context, result);
  if (d.dying.contains(&stream) && stream.queue.empty()) {
    d.dying.erase(&stream);
    delete &stream;
  }
  d.changed.notify_all();
}

// The stream whose next operation runs now; null, after some turns, if none is ready.
FakeStream* Choose(Lock& lock) {
  Driver& d = driver();
  while (!d.stops && !d.work_is_held) {
    std::vector<FakeStream*> ready = AllStreams();
    std::erase_if(ready, [](const FakeStream* stream) { return !IsReady(*stream); });
    if (ready.empty()) return nullptr;
    if (d.seed == 0) {
      // Streams run in parallel: none waits for all of another's work.
      return *std::min_element(ready.begin(), ready.end(),
                               [](const FakeStream* a, const FakeStream* b) { return *a->completed < *b->completed; });
    }
    std::vector<FakeStream*> due;
    for (FakeStream* stream : ready) {
      int& delay = stream->queue.front().delay;
      if (delay < 0) delay = d.random() % 2 == 0 ? 0 : static_cast<int>(d.random() % kLongestDelay);
      if (delay-- == 0) due.push_back(stream);
    }
    if (!due.empty()) {
      FakeStream* const chosen = due[d.random() % due.size()];
      for (FakeStream* stream : due) stream->queue.front().delay = 0;
      return chosen;
    }
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  return nullptr;
}

// Of what streams wait for. Nobody tells of a flag that the host writes.
void AwaitChange(Lock& lock) {
  const std::vector<FakeStream*> all = AllStreams();
  const bool polls = std::any_of(all.begin(), all.end(), [](const FakeStream* stream) {
    return !stream->busy && !stream->queue.empty() && stream->queue.front().polls;
  });
  if (polls) {
    driver().changed.wait_for(lock, std::chrono::milliseconds(1));
  } else {
    driver().changed.wait(lock);
  }
}

void Schedule() {
  Driver& d = driver();
  Lock lock(d.mutex);
  while (!d.stops) {
    FakeStream* const stream = Choose(lock);
    if (stream == nullptr) {
      if (!d.stops) AwaitChange(lock);
      continue;
    }
    stream->busy = true;
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    d.runs = true;
    lock.unlock();
    const CUresult result = operation.run ? operation.run() : CUDA_SUCCESS;
    operation.run = nullptr;
    lock.lock();
    d.runs = false;
    Finish(*stream, operation, result);
  }
}

// Whether nothing of the stream will run without somebody's help.
bool IsSettled(const FakeStream& stream) { return !stream.busy && (driver().work_is_held || !IsReady(stream)); }

// The work before an operation of the legacy stream, or of a blocking one: they order each other.
std::function<bool()> AfterImpliedWork(const FakeStream& stream, std::function<bool()> ready) {
  std::vector<std::pair<std::shared_ptr<std::uint64_t>, std::uint64_t>> before;
  if (&stream == stream.context->legacy) {
    for (const FakeStream* other : stream.context->streams) {
      if (other != &stream && other->blocking) before.emplace_back(other->completed, other->enqueued);
    }
  } else if (stream.blocking) {
    before.emplace_back(stream.context->legacy->completed, stream.context->legacy->enqueued);
  }
  std::erase_if(before, [](const auto& wait) { return *wait.first >= wait.second; });
  if (before.empty()) return ready;
  return [before = std::move(before), ready = std::move(ready)] {
    return std::all_of(before.begin(), before.end(), [](const auto& wait) { return *wait.first >= wait.second; }) &&
           (!ready || ready());
  };
}

}  // namespace

void SetStickyLocked(Context& context, CUresult result) {
  if (context.sticky == CUDA_SUCCESS) context.sticky = result;
  for (FakeStream* stream : AllStreams()) {
    if (stream->context == &context) DropQueued(*stream);
  }
  driver().changed.notify_all();
}

void StartThread() {
  Driver& d = driver();
  if (d.scheduler.joinable()) return;
  d.stops = false;
  d.scheduler = std::thread(Schedule);
}

void StopThread(Lock& lock) {
  Driver& d = driver();
  if (!d.scheduler.joinable()) return;
  d.stops = true;
  d.changed.notify_all();
  lock.unlock();
  d.scheduler.join();
  lock.lock();
}

FakeStream* MakeStream(Context& context, bool blocking) {
  auto* stream = new FakeStream{.context = &context, .blocking = blocking};
  context.streams.insert(stream);
  return stream;
}

void RetireStream(FakeStream* stream) {
  stream->context->streams.erase(stream);
  if (stream->queue.empty() && !stream->busy) {
    delete stream;
  } else {
    driver().dying.insert(stream);
  }
}

void DestroyStreams(Lock& lock, Context& context) {
  Driver& d = driver();
  const auto streams = [&] {
    std::vector<FakeStream*> all(context.streams.begin(), context.streams.end());
    for (FakeStream* stream : d.dying) {
      if (stream->context == &context) all.push_back(stream);
    }
    return all;
  };
  d.changed.wait(lock, [&] {
    const auto all = streams();
    return std::all_of(all.begin(), all.end(), [](const FakeStream* stream) { return IsSettled(*stream); });
  });
  for (FakeStream* stream : streams()) DropQueued(*stream);
  for (FakeStream* stream : streams()) {
    d.dying.erase(stream);
    delete stream;
  }
  context.streams.clear();
  context.per_thread.clear();
  context.legacy = nullptr;
}

CUresult Enqueue(Call& call, FakeStream& stream, Operation operation) {
  Driver& d = driver();
  const Context& context = *stream.context;
  if (stream.capture != nullptr) {
    // A node of the graph, which runs at no time here.
    if (const auto fork = stream.capture->forks.find(&stream); fork != stream.capture->forks.end()) ++fork->second;
    return CUDA_SUCCESS;
  }
  const auto has_room = [&] {
    return context.sticky != CUDA_SUCCESS || stream.outstanding == 0 ||
           stream.outstanding + operation.weight <= kQueueLength;
  };
  if (!has_room()) {
    ++d.blocked_launches;
    d.queue_is_full = true;
    d.changed.wait(call.lock(), has_room);
    d.queue_is_full = false;
    if (context.sticky != CUDA_SUCCESS) {
      Drop(operation);
      return context.sticky;
    }
  }
  operation.ready = AfterImpliedWork(stream, std::move(operation.ready));
  stream.outstanding += operation.weight;
  ++stream.enqueued;
  stream.queue.push_back(std::move(operation));
  d.changed.notify_all();
  return CUDA_SUCCESS;
}

CUresult AwaitStream(Call& call, FakeStream& stream) {
  Driver& d = driver();
  const std::uint64_t at = stream.enqueued;
  const std::shared_ptr<std::uint64_t> completed = stream.completed;
  const Context& context = *stream.context;
  call.Admit();
  d.changed.wait(call.lock(), [&] { return context.sticky != CUDA_SUCCESS || *completed >= at; });
  return context.sticky;
}

void AwaitDelay(Lock& lock) {
  Driver& d = driver();
  if (d.seed == 0) return;
  for (std::uint64_t turns = d.random() % kLongestDelay; turns > 0; --turns) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

void AwaitRunning(Lock& lock) {
  driver().changed.wait(lock, [] { return !driver().runs; });
}

}  // namespace cairn::fake_cuda
