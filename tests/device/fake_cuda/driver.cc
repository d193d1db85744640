// What every call checks, and what tests control.
#include "device/fake_cuda/driver.h"

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

namespace cairn::fake_cuda {

thread_local std::vector<Context*> current_contexts;
thread_local CUstreamCaptureMode thread_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

Driver& driver() {
  static Driver& instance = *new Driver;
  return instance;
}

bool Broken(std::string_view what) {
  static const char* const set = std::getenv("FAKE_CUDA_BROKEN");
  if (set == nullptr) return false;
  std::stringstream names(set);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == what) return true;
  }
  return false;
}

void Misuse(const std::string& what) { driver().misuses.push_back(what); }

Call::Call(const char* name, unsigned needs) : name_(name) {
  Driver& d = driver();
  if ((needs & kContext) == kContext) {
    admission_ = std::unique_lock(d.admission, std::try_to_lock);
    if (!admission_.owns_lock()) {
      if (d.queue_is_full) ++d.blocked_launches;
      admission_.lock();
    }
  }
  lock_ = Lock(d.mutex);
  result_ = Enter(needs);
}

CUresult Call::Enter(unsigned needs) {
  Driver& d = driver();
  ++d.calls[name_];
  if (const auto fault = d.faults.find(name_); fault != d.faults.end() && fault->second.after-- == 0) {
    const CUresult result = fault->second.result;
    d.faults.erase(fault);
    return result;
  }
  if ((needs & kStarted) != 0 && !d.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if ((needs & kContext) == kContext) {
    if (current_contexts.empty() || current_contexts.back()->retained == 0) {
      Misuse(std::string(name_) + ": no current context on this thread");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (current_contexts.back()->sticky != CUDA_SUCCESS) return current_contexts.back()->sticky;
  }
  return (needs & kUnsafeBesideCapture) != 0 ? CheckUnsafeCall() : CUDA_SUCCESS;
}

namespace {

std::uint64_t NextSeed() {
  static const char* const first = std::getenv("FAKE_CUDA_SEED");
  static std::uint64_t next = first == nullptr ? 0 : std::strtoull(first, nullptr, 10);
  return first == nullptr ? 0 : next++;
}

}  // namespace

void Reset() {
  Driver& d = driver();
  const Lock lock(d.mutex);
  d.is_tested = true;
  d.left = 0;
  d.version = 13000;
  d.gpus = 2;
  d.initialised = false;
  for (auto& [gpu, context] : d.contexts) context.sticky = CUDA_SUCCESS;
  d.faults.clear();
  d.calls.clear();
  d.hidden.clear();
  d.attributes.clear();
  d.misuses.clear();
  d.kernels.clear();
  d.images.clear();
  d.blocked_launches = 0;
  d.seed = NextSeed();
  d.random.seed(d.seed);
  d.work_is_held = false;
  d.waits_are_held = false;
  // What a failed context did not free.
  for (FakeEvent* event : d.events) delete event;
  d.events.clear();
  FreeAllMemory();
}

void SetDriverVersion(int version) {
  const Lock lock(driver().mutex);
  driver().version = version;
}

void SetGpus(int count) {
  const Lock lock(driver().mutex);
  driver().gpus = count;
}

void SetAttribute(CUdevice_attribute attribute, int value) {
  const Lock lock(driver().mutex);
  driver().attributes[attribute] = value;
}

void Hide(const std::string& function) {
  const Lock lock(driver().mutex);
  driver().hidden.insert(function);
}

void Fail(const std::string& function, CUresult result, int after) {
  const Lock lock(driver().mutex);
  driver().faults[function] = {result, after};
}

void SetSticky(CUresult result) {
  for (int gpu = 0; gpu < driver().gpus; ++gpu) SetSticky(result, gpu);
}

void SetSticky(CUresult result, int gpu) {
  const Lock lock(driver().mutex);
  SetStickyLocked(driver().contexts[gpu], result);
}

void SetSchedule(std::uint64_t seed) {
  Driver& d = driver();
  const Lock lock(d.mutex);
  d.seed = seed;
  d.random.seed(seed);
}

std::uint64_t Seed() {
  const Lock lock(driver().mutex);
  return driver().seed;
}

void HoldWork() {
  const Lock lock(driver().mutex);
  driver().work_is_held = true;
}

void ReleaseWork() {
  const Lock lock(driver().mutex);
  driver().work_is_held = false;
  driver().changed.notify_all();
}

void HoldWaits() {
  const Lock lock(driver().mutex);
  driver().waits_are_held = true;
}

void ReleaseWaits() {
  const Lock lock(driver().mutex);
  driver().waits_are_held = false;
  driver().changed.notify_all();
}

void DefineKernel(const std::string& name, Kernel kernel) {
  const Lock lock(driver().mutex);
  driver().kernels[name] = std::move(kernel);
}

int Calls(const std::string& function) {
  const Lock lock(driver().mutex);
  return driver().calls[function];
}

int BlockedLaunches() { return driver().blocked_launches; }

std::vector<std::string> Misuses() {
  const Lock lock(driver().mutex);
  return driver().misuses;
}

namespace {

std::map<std::string, std::size_t> CountLiveObjects() {
  Driver& d = driver();
  const Lock lock(d.mutex);
  const auto works = [&](int gpu) { return d.contexts[gpu].sticky == CUDA_SUCCESS; };
  std::map<std::string, std::size_t> live{{"left in contexts that are gone", d.left}};
  for (const FakeEvent* event : d.events) live["events"] += works(event->context->gpu) ? 1 : 0;
  for (const auto& [at, range] : d.allocations) live["allocations"] += works(range.gpu) ? 1 : 0;
  for (const auto& [at, range] : d.registered) live["registered ranges"] += works(range.gpu) ? 1 : 0;
  for (const auto& [gpu, context] : d.contexts) {
    live["retained contexts"] += static_cast<std::size_t>(context.retained);
    if (!works(gpu)) continue;
    live["streams"] += context.streams.size() - context.per_thread.size();
    live["modules"] += context.modules.size();
  }
  return live;
}

}  // namespace

int LiveObjects() {
  std::size_t all = 0;
  for (const auto& [kind, count] : CountLiveObjects()) all += count;
  return static_cast<int>(all);
}

std::string DescribeLiveObjects() {
  std::string text;
  for (const auto& [kind, count] : CountLiveObjects()) {
    if (count != 0) text += std::to_string(count) + " " + kind + "; ";
  }
  return text;
}

}  // namespace cairn::fake_cuda
