// A test double of the CUDA driver, libcuda.so.1: the entry points that Cairn calls, on host memory, with one thread
// for each stream. It checks what the driver's documentation requires of arguments, order, contexts and captures, so
// that CudaDevice's code (batches, events, completions, error paths) runs without a GPU. Only the same tests on a GPU
// show how a real driver treats that code.
#include "device/fake_cuda.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace cairn::fake_cuda {
namespace {

constexpr std::size_t kGpuBytes = 256U << 20;
constexpr int kMaxPitch = 0x7fffffff;

struct Operation {
  // Called under the lock.
  std::function<bool()> ready;
  // Called without the lock.
  std::function<void()> run;
  void* host_argument = nullptr;
};

struct Context;

struct FakeStream {
  Context* context = nullptr;
  bool blocking = false;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::deque<Operation> queue;
  std::uint64_t enqueued = 0;
  std::shared_ptr<std::uint64_t> completed = std::make_shared<std::uint64_t>(0);
  bool stop = false;
  std::thread thread;
};

// A point in a stream: reached when the stream has completed this many operations.
struct FakeEvent {
  std::shared_ptr<std::uint64_t> completed;
  std::uint64_t at = 0;
};

struct Context {
  int gpu = 0;
  int retained = 0;
  // Includes the legacy stream.
  std::set<FakeStream*> streams;
  FakeStream* legacy = nullptr;
};

struct Range {
  std::size_t bytes = 0;
  int gpu = 0;
};

struct Fault {
  CUresult result = CUDA_SUCCESS;
  int after = 0;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;
  int version = 13000;
  int gpus = 2;
  CUresult sticky = CUDA_SUCCESS;
  std::map<std::string, Fault> faults;
  std::map<std::string, int> calls;
  std::set<std::string> hidden;
  std::map<int, Context> contexts;
  std::set<FakeEvent*> events;
  std::map<CUdeviceptr, Range> allocations;
  std::map<CUdeviceptr, Range> registered;
  // Arguments of host functions that are never called. A driver keeps them too.
  std::vector<void*> dropped;
};

Driver& driver() {
  // Never destroyed, like a real driver, so that a leak checker still reaches what it holds.
  static Driver& instance = *new Driver;
  return instance;
}

thread_local std::vector<Context*> current_contexts;
thread_local CUstreamCaptureMode thread_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

using Lock = std::unique_lock<std::mutex>;

void DropQueued(FakeStream& stream) {
  for (const Operation& operation : stream.queue) {
    if (operation.host_argument != nullptr) driver().dropped.push_back(operation.host_argument);
  }
  *stream.completed += stream.queue.size();
  stream.queue.clear();
}

void SetStickyLocked(CUresult result) {
  Driver& d = driver();
  if (d.sticky == CUDA_SUCCESS) d.sticky = result;
  for (auto& [gpu, context] : d.contexts) {
    for (FakeStream* stream : context.streams) DropQueued(*stream);
  }
  d.changed.notify_all();
}

void ServeStream(FakeStream* stream) {
  Driver& d = driver();
  Lock lock(d.mutex);
  while (true) {
    d.changed.wait(lock, [&] { return stream->stop || (!stream->queue.empty() && stream->queue.front().ready()); });
    if (stream->queue.empty() || !stream->queue.front().ready()) return;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    operation.run();
    lock.lock();
    ++*stream->completed;
    d.changed.notify_all();
  }
}

FakeStream* MakeStream(Context& context, bool blocking) {
  auto* stream = new FakeStream{.context = &context, .blocking = blocking};
  stream->thread = std::thread([stream] { ServeStream(stream); });
  context.streams.insert(stream);
  return stream;
}

void JoinStream(Lock& lock, FakeStream* stream) {
  stream->context->streams.erase(stream);
  stream->stop = true;
  driver().changed.notify_all();
  lock.unlock();
  stream->thread.join();
  lock.lock();
  delete stream;
}

void Enqueue(
    FakeStream& stream, std::function<void()> run, std::function<bool()> ready = [] { return true; },
    void* host_argument = nullptr) {
  stream.queue.push_back({std::move(ready), std::move(run), host_argument});
  ++stream.enqueued;
  driver().changed.notify_all();
}

enum Needs : unsigned { kNothing = 0, kContext = 1, kUnsafeBesideCapture = 2 };

bool GlobalCaptureUnderWay(CUstreamCaptureStatus becomes) {
  bool found = false;
  for (auto& [gpu, context] : driver().contexts) {
    for (FakeStream* stream : context.streams) {
      if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) continue;
      if (stream->capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL) continue;
      stream->capture = becomes;
      found = true;
    }
  }
  return found;
}

// Every entry point begins with this: counts the call, injects faults, checks the sticky error, context and captures.
CUresult Enter(const std::string& name, unsigned needs) {
  Driver& d = driver();
  ++d.calls[name];
  if (const auto fault = d.faults.find(name); fault != d.faults.end() && fault->second.after-- == 0) {
    const CUresult result = fault->second.result;
    d.faults.erase(fault);
    return result;
  }
  if ((needs & kContext) != 0) {
    if (current_contexts.empty() || current_contexts.back()->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (d.sticky != CUDA_SUCCESS) return d.sticky;
  }
  if ((needs & kUnsafeBesideCapture) != 0 && thread_capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      GlobalCaptureUnderWay(CU_STREAM_CAPTURE_STATUS_INVALIDATED)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

#define ENTER(name, needs) \
  Driver& d = driver();    \
  Lock lock(d.mutex);      \
  if (const CUresult entered = Enter(name, needs); entered != CUDA_SUCCESS) return entered

// The handle's stream in the current context; null if there is none.
FakeStream* FindStream(CUstream handle) {
  Context& context = *current_contexts.back();
  if (handle == nullptr || handle == kLegacyStream || handle == kPerThreadStream) return context.legacy;
  auto* stream = reinterpret_cast<FakeStream*>(handle);
  return context.streams.contains(stream) ? stream : nullptr;
}

bool LegacyIsBlocked(const FakeStream& stream) {
  if (&stream != stream.context->legacy) return false;
  return std::any_of(stream.context->streams.begin(), stream.context->streams.end(), [](const FakeStream* other) {
    return other->blocking && other->capture != CU_STREAM_CAPTURE_STATUS_NONE;
  });
}

// As FindStream, for enqueueing: anything but a kernel in a captured stream invalidates the capture.
CUresult FindForWork(CUstream handle, FakeStream** found) {
  *found = FindStream(handle);
  if (*found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (LegacyIsBlocked(**found)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if ((*found)->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    (*found)->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

#define FIND_FOR_WORK(stream, handle) \
  FakeStream* stream = nullptr;       \
  if (const CUresult found = FindForWork(handle, &(stream)); found != CUDA_SUCCESS) return found

// The registered or allocated range that holds the address.
const Range* FindRange(const std::map<CUdeviceptr, Range>& ranges, CUdeviceptr at, std::size_t bytes, bool* cut) {
  auto after = ranges.upper_bound(at);
  if (cut != nullptr) *cut = after != ranges.end() && after->first < at + bytes;
  if (after == ranges.begin()) return nullptr;
  const auto& [start, range] = *std::prev(after);
  if (at >= start + range.bytes) return nullptr;
  if (cut != nullptr && at + bytes > start + range.bytes) *cut = true;
  return &range;
}

bool LeavesAllocation(CUdeviceptr at, std::size_t bytes, bool must_be_gpu) {
  bool cut = false;
  const Range* range = FindRange(driver().allocations, at, bytes, &cut);
  return cut || (must_be_gpu && range == nullptr);
}

void CopyBytes(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  {
    const Lock lock(driver().mutex);
    if (LeavesAllocation(to, bytes, false) || LeavesAllocation(from, bytes, false)) {
      SetStickyLocked(CUDA_ERROR_ILLEGAL_ADDRESS);
      return;
    }
  }
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
}

CUresult GetErrorName(CUresult error, const char** text) {
  static const std::map<CUresult, const char*> names = {
      {CUDA_SUCCESS, "CUDA_SUCCESS"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
      {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}};
  const auto found = names.find(error);
  *text = found == names.end() ? nullptr : found->second;
  return found == names.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult GetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "as the fake driver says";
  return CUDA_SUCCESS;
}

CUresult Init(unsigned int flags) {
  ENTER("cuInit", kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return d.gpus == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult DeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount", kNothing);
  *count = d.gpus;
  return CUDA_SUCCESS;
}

CUresult DeviceGet(CUdevice* device, int ordinal) {
  ENTER("cuDeviceGet", kNothing);
  *device = ordinal;
  return ordinal >= 0 && ordinal < d.gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice /*device*/) {
  ENTER("cuDeviceGetAttribute", kNothing);
  if (attribute != CU_DEVICE_ATTRIBUTE_MAX_PITCH) return CUDA_ERROR_INVALID_VALUE;
  *value = kMaxPitch;
  return CUDA_SUCCESS;
}

CUresult PrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER("cuDevicePrimaryCtxRetain", kNothing);
  Context& mine = d.contexts[device];
  mine.gpu = device;
  if (mine.retained++ == 0) mine.legacy = MakeStream(mine, true);
  *context = reinterpret_cast<CUcontext>(&mine);
  return CUDA_SUCCESS;
}

CUresult PrimaryCtxRelease(CUdevice device) {
  ENTER("cuDevicePrimaryCtxRelease", kNothing);
  Context& mine = d.contexts[device];
  if (mine.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--mine.retained == 0) {
    while (!mine.streams.empty()) JoinStream(lock, *mine.streams.begin());
    mine.legacy = nullptr;
  }
  return CUDA_SUCCESS;
}

CUresult CtxPushCurrent(CUcontext context) {
  ENTER("cuCtxPushCurrent", kNothing);
  current_contexts.push_back(reinterpret_cast<Context*>(context));
  return CUDA_SUCCESS;
}

CUresult CtxPopCurrent(CUcontext* context) {
  ENTER("cuCtxPopCurrent", kNothing);
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(current_contexts.back());
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult CtxGetCurrent(CUcontext* context) {
  *context = current_contexts.empty() ? nullptr : reinterpret_cast<CUcontext>(current_contexts.back());
  return CUDA_SUCCESS;
}

CUresult MemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream handle) {
  ENTER("cuMemsetD8Async", kContext);
  FIND_FOR_WORK(stream, handle);
  Enqueue(*stream, [=] { std::memset(reinterpret_cast<void*>(at), value, bytes); });
  return CUDA_SUCCESS;
}

CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode) {
  ENTER("cuThreadExchangeStreamCaptureMode", kNothing);
  std::swap(*mode, thread_capture_mode);
  return CUDA_SUCCESS;
}

CUresult MemGetInfo(std::size_t* free, std::size_t* total) {
  ENTER("cuMemGetInfo", kContext);
  *total = kGpuBytes;
  *free = kGpuBytes;
  for (const auto& [at, range] : d.allocations) {
    if (range.gpu == current_contexts.back()->gpu) *free -= range.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult MemAlloc(CUdeviceptr* at, std::size_t bytes) {
  ENTER("cuMemAlloc", kContext | kUnsafeBesideCapture);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::size_t used = 0;
  for (const auto& [start, range] : d.allocations) used += range.bytes;
  if (bytes > kGpuBytes - std::min(used, kGpuBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
  d.allocations[*at] = {bytes, current_contexts.back()->gpu};
  return CUDA_SUCCESS;
}

CUresult MemFree(CUdeviceptr at) {
  ENTER("cuMemFree", kContext | kUnsafeBesideCapture);
  if (d.allocations.erase(at) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(reinterpret_cast<void*>(at));
  return CUDA_SUCCESS;
}

CUresult MemHostRegister(void* memory, std::size_t bytes, unsigned int flags) {
  ENTER("cuMemHostRegister", kContext | kUnsafeBesideCapture);
  if (bytes == 0 || (flags & kMemHostRegisterPortable) == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  bool cut = false;
  if (FindRange(d.registered, at, bytes, &cut) != nullptr || cut) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  d.registered[at] = {bytes, current_contexts.back()->gpu};
  return CUDA_SUCCESS;
}

CUresult MemHostUnregister(void* memory) {
  ENTER("cuMemHostUnregister", kContext | kUnsafeBesideCapture);
  return d.registered.erase(reinterpret_cast<CUdeviceptr>(memory)) == 0 ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
                                                                        : CUDA_SUCCESS;
}

CUresult PointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values, CUdeviceptr at) {
  ENTER("cuPointerGetAttributes", kContext);
  const Range* gpu = FindRange(d.allocations, at, 1, nullptr);
  const Range* host = FindRange(d.registered, at, 1, nullptr);
  for (unsigned int i = 0; i < count; ++i) {
    auto* value = static_cast<unsigned int*>(values[i]);
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *value = 0;
      if (gpu != nullptr) *value = CU_MEMORYTYPE_DEVICE;
      if (host != nullptr) *value = CU_MEMORYTYPE_HOST;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
      *value = 0;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      int ordinal = -2;
      if (gpu != nullptr) ordinal = gpu->gpu;
      if (host != nullptr) ordinal = host->gpu;
      std::memcpy(value, &ordinal, sizeof(ordinal));
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle) {
  ENTER("cuMemcpyAsync", kContext);
  FIND_FOR_WORK(stream, handle);
  Enqueue(*stream, [=] { CopyBytes(to, from, bytes); });
  return CUDA_SUCCESS;
}

// The signature of CUDA 12.8. That of 13.0, without `failed`, is not supported.
CUresult MemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                          CUmemcpyAttributes* attributes, std::size_t* first, std::size_t attribute_count,
                          std::size_t* failed, CUstream handle) {
  ENTER("cuMemcpyBatchAsync", kContext);
  if (failed != nullptr) *failed = SIZE_MAX;
  if (handle == nullptr || handle == kLegacyStream || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute_count != 1 || *first != 0 || attributes->flags != CU_MEMCPY_FLAG_DEFAULT ||
      attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FIND_FOR_WORK(stream, handle);
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] != 0) continue;
    if (failed != nullptr) *failed = i;
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Copies the arrays, which the caller may free after the call. Runs in reverse, as no order is guaranteed.
  std::vector<CUdeviceptr> all_to(to, to + count);
  std::vector<CUdeviceptr> all_from(from, from + count);
  std::vector<std::size_t> all_sizes(sizes, sizes + count);
  Enqueue(*stream, [all_to = std::move(all_to), all_from = std::move(all_from), all_sizes = std::move(all_sizes)] {
    for (std::size_t i = all_to.size(); i-- > 0;) CopyBytes(all_to[i], all_from[i], all_sizes[i]);
  });
  return CUDA_SUCCESS;
}

CUresult Memcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream handle) {
  ENTER("cuMemcpy2DAsync", kContext);
  const CUDA_MEMCPY2D copy = *given;
  if (copy.srcPitch < copy.WidthInBytes || copy.dstPitch < copy.WidthInBytes || copy.srcPitch > kMaxPitch ||
      copy.dstPitch > kMaxPitch || copy.WidthInBytes == 0 || copy.Height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (copy.srcXInBytes != 0 || copy.srcY != 0 || copy.dstXInBytes != 0 || copy.dstY != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool from_gpu = copy.srcMemoryType == CU_MEMORYTYPE_DEVICE;
  const bool to_gpu = copy.dstMemoryType == CU_MEMORYTYPE_DEVICE;
  if ((!from_gpu && copy.srcMemoryType != CU_MEMORYTYPE_HOST) ||
      (!to_gpu && copy.dstMemoryType != CU_MEMORYTYPE_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FIND_FOR_WORK(stream, handle);
  const CUdeviceptr from = from_gpu ? copy.srcDevice : reinterpret_cast<CUdeviceptr>(copy.srcHost);
  const CUdeviceptr to = to_gpu ? copy.dstDevice : reinterpret_cast<CUdeviceptr>(copy.dstHost);
  Enqueue(*stream, [=] {
    for (std::size_t row = 0; row < copy.Height; ++row) {
      const CUdeviceptr row_from = from + row * copy.srcPitch;
      const CUdeviceptr row_to = to + row * copy.dstPitch;
      {
        const Lock execution(driver().mutex);
        if (LeavesAllocation(row_from, copy.WidthInBytes, from_gpu) ||
            LeavesAllocation(row_to, copy.WidthInBytes, to_gpu)) {
          SetStickyLocked(CUDA_ERROR_ILLEGAL_ADDRESS);
          return;
        }
      }
      CopyBytes(row_to, row_from, copy.WidthInBytes);
    }
  });
  return CUDA_SUCCESS;
}

CUresult StreamCreate(CUstream* handle, unsigned int flags) {
  ENTER("cuStreamCreate", kContext);
  *handle = reinterpret_cast<CUstream>(MakeStream(*current_contexts.back(), (flags & CU_STREAM_NON_BLOCKING) == 0));
  return CUDA_SUCCESS;
}

CUresult StreamDestroy(CUstream handle) {
  ENTER("cuStreamDestroy", kContext);
  FakeStream* stream = FindStream(handle);
  if (stream == nullptr || stream == stream->context->legacy) return CUDA_ERROR_INVALID_HANDLE;
  JoinStream(lock, stream);
  return CUDA_SUCCESS;
}

CUresult StreamQuery(CUstream handle) {
  ENTER("cuStreamQuery", kContext | kUnsafeBesideCapture);
  FIND_FOR_WORK(stream, handle);
  return *stream->completed == stream->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult StreamSynchronize(CUstream handle) {
  ENTER("cuStreamSynchronize", kContext | kUnsafeBesideCapture);
  FIND_FOR_WORK(stream, handle);
  const std::uint64_t at = stream->enqueued;
  d.changed.wait(lock, [&] { return d.sticky != CUDA_SUCCESS || *stream->completed >= at; });
  return d.sticky;
}

CUresult StreamWaitEvent(CUstream handle, CUevent handle_of_event, unsigned int flags) {
  ENTER("cuStreamWaitEvent", kContext);
  FIND_FOR_WORK(stream, handle);
  auto* event = reinterpret_cast<FakeEvent*>(handle_of_event);
  if (!d.events.contains(event) || flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_HANDLE;
  if (event->completed == nullptr) return CUDA_SUCCESS;
  Enqueue(
      *stream, [] {}, [completed = event->completed, at = event->at] { return *completed >= at; });
  return CUDA_SUCCESS;
}

CUresult StreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  ENTER("cuStreamIsCapturing", kContext);
  const FakeStream* stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (LegacyIsBlocked(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = stream->capture;
  return CUDA_SUCCESS;
}

CUresult StreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  ENTER("cuStreamBeginCapture", kContext);
  FIND_FOR_WORK(stream, handle);
  if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  stream->capture_mode = mode;
  return CUDA_SUCCESS;
}

CUresult StreamEndCapture(CUstream handle, CUgraph* graph) {
  ENTER("cuStreamEndCapture", kContext);
  FakeStream* stream = FindStream(handle);
  if (stream == nullptr || stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  const bool good = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
  *graph = nullptr;
  return good ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult GraphDestroy(CUgraph /*graph*/) { return CUDA_SUCCESS; }

std::uint32_t& ValueAt(CUdeviceptr at) { return *reinterpret_cast<std::uint32_t*>(at); }

CUresult StreamWaitValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
  ENTER("cuStreamWaitValue32", kContext);
  FIND_FOR_WORK(stream, handle);
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  Enqueue(
      *stream, [] {}, [at, value] { return ValueAt(at) >= value; });
  return CUDA_SUCCESS;
}

CUresult StreamWriteValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned int /*flags*/) {
  ENTER("cuStreamWriteValue32", kContext);
  FIND_FOR_WORK(stream, handle);
  Enqueue(*stream, [at, value] {
    const Lock execution(driver().mutex);
    ValueAt(at) = value;
  });
  return CUDA_SUCCESS;
}

CUresult LaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  ENTER("cuLaunchHostFunc", kContext);
  FIND_FOR_WORK(stream, handle);
  Enqueue(
      *stream, [=] { function(argument); }, [] { return true; }, argument);
  return CUDA_SUCCESS;
}

CUresult EventCreate(CUevent* handle, unsigned int /*flags*/) {
  ENTER("cuEventCreate", kContext);
  auto* event = new FakeEvent;
  d.events.insert(event);
  *handle = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

CUresult EventDestroy(CUevent handle) {
  ENTER("cuEventDestroy", kContext);
  auto* event = reinterpret_cast<FakeEvent*>(handle);
  if (d.events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

CUresult EventRecord(CUevent handle, CUstream handle_of_stream) {
  ENTER("cuEventRecord", kContext);
  FIND_FOR_WORK(stream, handle_of_stream);
  auto* event = reinterpret_cast<FakeEvent*>(handle);
  if (!d.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  event->completed = stream->completed;
  event->at = stream->enqueued;
  return CUDA_SUCCESS;
}

struct Entry {
  int since = 0;
  // The version that changed this name's signature; 0 for none.
  int until = 0;
  void* function = nullptr;
};

template <typename Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

const std::map<std::string, Entry>& Entries() {
  static const std::map<std::string, Entry> entries = {
      {"cuGetErrorName", {6000, 0, Address(GetErrorName)}},
      {"cuGetErrorString", {6000, 0, Address(GetErrorString)}},
      {"cuInit", {2000, 0, Address(Init)}},
      {"cuDeviceGetCount", {2000, 0, Address(DeviceGetCount)}},
      {"cuDeviceGet", {2000, 0, Address(DeviceGet)}},
      {"cuDeviceGetAttribute", {2000, 0, Address(DeviceGetAttribute)}},
      {"cuDevicePrimaryCtxRetain", {7000, 0, Address(PrimaryCtxRetain)}},
      {"cuDevicePrimaryCtxRelease", {11000, 0, Address(PrimaryCtxRelease)}},
      {"cuCtxPushCurrent", {4000, 0, Address(CtxPushCurrent)}},
      {"cuCtxPopCurrent", {4000, 0, Address(CtxPopCurrent)}},
      {"cuThreadExchangeStreamCaptureMode", {10010, 0, Address(ExchangeCaptureMode)}},
      {"cuCtxGetCurrent", {4000, 0, Address(CtxGetCurrent)}},
      {"cuMemsetD8Async", {3020, 0, Address(MemsetD8Async)}},
      {"cuMemGetInfo", {3020, 0, Address(MemGetInfo)}},
      {"cuMemAlloc", {3020, 0, Address(MemAlloc)}},
      {"cuMemFree", {3020, 0, Address(MemFree)}},
      {"cuMemHostRegister", {6050, 0, Address(MemHostRegister)}},
      {"cuMemHostUnregister", {4000, 0, Address(MemHostUnregister)}},
      {"cuPointerGetAttributes", {7000, 0, Address(PointerGetAttributes)}},
      {"cuMemcpyAsync", {4000, 0, Address(MemcpyAsync)}},
      {"cuMemcpy2DAsync", {3020, 0, Address(Memcpy2DAsync)}},
      {"cuMemcpyBatchAsync", {12080, 13000, Address(MemcpyBatchAsync)}},
      {"cuStreamCreate", {2000, 0, Address(StreamCreate)}},
      {"cuStreamDestroy", {4000, 0, Address(StreamDestroy)}},
      {"cuStreamQuery", {2000, 0, Address(StreamQuery)}},
      {"cuStreamSynchronize", {2000, 0, Address(StreamSynchronize)}},
      {"cuStreamWaitEvent", {3020, 0, Address(StreamWaitEvent)}},
      {"cuStreamIsCapturing", {10000, 0, Address(StreamIsCapturing)}},
      {"cuStreamBeginCapture", {10010, 0, Address(StreamBeginCapture)}},
      {"cuStreamEndCapture", {10000, 0, Address(StreamEndCapture)}},
      {"cuGraphDestroy", {10000, 0, Address(GraphDestroy)}},
      {"cuStreamWaitValue32", {11070, 0, Address(StreamWaitValue32)}},
      {"cuStreamWriteValue32", {11070, 0, Address(StreamWriteValue32)}},
      {"cuLaunchHostFunc", {10000, 0, Address(LaunchHostFunc)}},
      {"cuEventCreate", {2000, 0, Address(EventCreate)}},
      {"cuEventDestroy", {4000, 0, Address(EventDestroy)}},
      {"cuEventRecord", {2000, 0, Address(EventRecord)}},
  };
  return entries;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) CUresult cuDriverGetVersion(int* version);
__attribute__((visibility("default"))) CUresult cuGetProcAddress(const char* name, void** function, int version,
                                                                 cuuint64_t flags);

CUresult cuDriverGetVersion(int* version) {
  ENTER("cuDriverGetVersion", kNothing);
  *version = d.version;
  return CUDA_SUCCESS;
}

// The signature of CUDA 11.3.
CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  ENTER("cuGetProcAddress", kNothing);
  *function = nullptr;
  if (version > d.version || flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Entries().find(name);
  if (found == Entries().end() || d.hidden.contains(name) || found->second.since > d.version) {
    return CUDA_ERROR_NOT_FOUND;
  }
  const bool served = version >= found->second.since && (found->second.until == 0 || version < found->second.until);
  if (served) *function = found->second.function;
  return CUDA_SUCCESS;
}

}  // extern "C"

void Reset() {
  Driver& d = driver();
  const Lock lock(d.mutex);
  d.version = 13000;
  d.gpus = 2;
  d.sticky = CUDA_SUCCESS;
  d.faults.clear();
  d.calls.clear();
  d.hidden.clear();
  // What a failed context did not free.
  for (FakeEvent* event : d.events) delete event;
  d.events.clear();
  for (const auto& [at, range] : d.allocations) std::free(reinterpret_cast<void*>(at));
  d.allocations.clear();
  d.registered.clear();
}

void SetDriverVersion(int version) {
  const Lock lock(driver().mutex);
  driver().version = version;
}

void SetGpus(int count) {
  const Lock lock(driver().mutex);
  driver().gpus = count;
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
  const Lock lock(driver().mutex);
  SetStickyLocked(result);
}

int Calls(const std::string& function) {
  const Lock lock(driver().mutex);
  return driver().calls[function];
}

int LiveObjects() {
  Driver& d = driver();
  const Lock lock(d.mutex);
  std::size_t live = d.events.size() + d.allocations.size() + d.registered.size();
  for (const auto& [gpu, context] : d.contexts) {
    live += context.streams.size() + static_cast<std::size_t>(context.retained);
  }
  return static_cast<int>(live);
}

}  // namespace cairn::fake_cuda
