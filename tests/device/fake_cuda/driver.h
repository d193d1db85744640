#pragma once

// What the files of the driver's test double share. See fake_cuda.h for what a test may do, README.md for who does
// what.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/fake_cuda.h"

namespace cairn::fake_cuda {

struct Context;
struct FakeStream;
using Lock = std::unique_lock<std::mutex>;

/// One sequence of captured work: of the stream where it began, and of those that joined through an event.
struct Capture {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  FakeStream* origin = nullptr;
  bool ended = false;
  /// The other streams, each with the number of operations that the origin does not wait for yet.
  std::map<FakeStream*, int> forks;
};

/// A place in a stream's order, of one cuEventRecord.
struct Point {
  bool reached = false;
  /// Where it was recorded while being captured. Never reached then.
  std::shared_ptr<Capture> capture;
  FakeStream* stream = nullptr;
  /// What a wait for it joins: of Capture::forks.
  int operations = 0;
};

struct FakeEvent {
  Context* context = nullptr;
  unsigned int flags = 0;
  /// Threads in cuEventSynchronize.
  int awaited = 0;
  /// Null until the first record.
  std::shared_ptr<Point> point;
};

struct Operation {
  /// Called under the lock, on any thread. Empty: always ready.
  std::function<bool()> ready;
  /// `ready` may change without a call of the driver: the host can write a flag.
  bool polls = false;
  /// Called without the lock, on the scheduler's thread. An error is sticky.
  std::function<CUresult()> run;
  /// Reached when the operation has run, or is dropped: whatever waits for it elsewhere goes on.
  std::shared_ptr<Point> reaches;
  /// Places in the stream's launch queue.
  int weight = 1;
  /// Turns that the schedule still lets pass once it is ready; -1: not chosen yet.
  int delay = -1;
};

struct FakeStream {
  Context* context = nullptr;
  bool blocking = false;
  std::shared_ptr<Capture> capture;
  std::deque<Operation> queue;
  /// Its first operation was taken from the queue, and has not ended.
  bool busy = false;
  int outstanding = 0;
  std::uint64_t enqueued = 0;
  std::shared_ptr<std::uint64_t> completed = std::make_shared<std::uint64_t>(0);
};

struct Context {
  int gpu = 0;
  int retained = 0;
  /// Until Reset: a process cannot revive a context.
  CUresult sticky = CUDA_SUCCESS;
  /// Includes the legacy stream and the per-thread ones.
  std::set<FakeStream*> streams;
  FakeStream* legacy = nullptr;
  std::map<std::thread::id, FakeStream*> per_thread;
  std::set<struct FakeModule*> modules;
};

struct FakeModule {
  Context* context = nullptr;
};
struct FakeFunction {
  Context* context = nullptr;
  FakeModule* module = nullptr;
  std::string name;
};

struct Range {
  std::size_t bytes = 0;
  int gpu = 0;
  /// Kernels may use it. Host memory that is registered may be unmapped.
  bool mapped = true;
  /// The host's code may touch it, although it is an allocation.
  bool managed = false;
};
using Ranges = std::map<CUdeviceptr, Range>;

struct Fault {
  CUresult result = CUDA_SUCCESS;
  int after = 0;
};

struct Driver {
  /// Held by a call from its start to its end, as a launch does on the real driver: also while it waits for a place in
  /// a full queue. Always locked before `mutex`.
  std::mutex admission;
  std::atomic<bool> queue_is_full = false;
  std::atomic<int> blocked_launches = 0;

  std::mutex mutex;
  std::condition_variable changed;
  int version = 13000;
  int gpus = 2;
  bool initialised = false;
  std::map<std::string, Fault> faults;
  std::map<std::string, int> calls;
  std::set<std::string> hidden;
  std::map<CUdevice_attribute, int> attributes;
  std::vector<std::string> misuses;

  std::map<int, Context> contexts;
  /// Destroyed, with work that still runs.
  std::set<FakeStream*> dying;
  std::set<FakeEvent*> events;
  std::map<std::string, Kernel> kernels;
  /// Streams and modules that contexts still had at their end.
  std::size_t left = 0;
  /// Some test has called Reset.
  bool is_tested = false;
  /// If not empty, the only ones that a module may have.
  std::vector<std::string_view> images;
  std::set<FakeFunction*> functions;

  Ranges allocations;
  /// Their addresses are not used again.
  Ranges freed;
  Ranges registered;

  /// The schedule. 0: in the order of the calls, as soon as possible.
  std::uint64_t seed = 0;
  std::mt19937_64 random;
  bool work_is_held = false;
  /// An operation runs, without the lock.
  bool runs = false;
  bool waits_are_held = false;
  bool stops = false;
  std::thread scheduler;
};

/// Never destroyed, like a real driver.
Driver& driver();

extern thread_local std::vector<Context*> current_contexts;
extern thread_local CUstreamCaptureMode thread_capture_mode;

/// Whether FAKE_CUDA_BROKEN names it.
bool Broken(std::string_view what);

enum Needs : unsigned { kNothing = 0, kStarted = 1, kContext = 3, kUnsafeBesideCapture = 4 };

/// Each entry point begins with one: counts the call, injects faults, checks what every call needs, and holds the
/// locks.
class Call {
 public:
  Call(const char* name, unsigned needs);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  [[nodiscard]] CUresult result() const { return result_; }
  [[nodiscard]] const char* name() const { return name_; }
  [[nodiscard]] Lock& lock() { return lock_; }
  /// Lets other calls go on while this one waits.
  void Admit() { admission_.unlock(); }

 private:
  CUresult Enter(unsigned needs);

  const char* const name_;
  std::unique_lock<std::mutex> admission_;
  Lock lock_;
  CUresult result_ = CUDA_SUCCESS;
};

#define FAKE_CUDA_ENTER(name, needs) \
  Call call(name, needs);            \
  if (call.result() != CUDA_SUCCESS) return call.result()

// All of the rest is called under the lock, unless it says otherwise.

void Misuse(const std::string& what);
/// Drops all work of the context; every later call within it returns the error.
void SetStickyLocked(Context& context, CUresult result);

// scheduler.cc
void StartThread();
/// Waits for the end of what can end, drops the rest, and frees the streams.
void DestroyStreams(Lock& lock, Context& context);
void StopThread(Lock& lock);
FakeStream* MakeStream(Context& context, bool blocking);
void RetireStream(FakeStream* stream);
/// Adds an operation to the stream, or to its capture. Waits for a place if the queue is full. Only the sticky error of
/// a context that is lost meanwhile is not CUDA_SUCCESS.
CUresult Enqueue(Call& call, FakeStream& stream, Operation operation);
/// Waits until the stream has completed what it has now.
CUresult AwaitStream(Call& call, FakeStream& stream);
/// Lets some turns pass, or none, as the schedule has it: who waits for something hears of it late.
void AwaitDelay(Lock& lock);
/// Waits until no operation runs, so that memory may go away.
void AwaitRunning(Lock& lock);

// capture.cc
/// The handle's stream in the current context; null if there is none.
FakeStream* FindStream(CUstream handle);
/// Refuses, and invalidates captures, if this thread may not make unsafe calls now.
CUresult CheckUnsafeCall();
/// The stream for enqueueing. While a blocking stream is being captured the legacy one cannot be used.
CUresult FindForWork(CUstream handle, FakeStream** stream);
/// The stream for a query or a wait, which a capture does not allow.
CUresult FindForWaiting(CUstream handle, FakeStream** stream);
void Invalidate(Capture& capture);
CUresult StreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status);
CUresult StreamBeginCapture(CUstream handle, CUstreamCaptureMode mode);
CUresult StreamEndCapture(CUstream handle, CUgraph* graph);
CUresult GraphDestroy(CUgraph graph);
CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode);

// memory.cc
enum class Place : std::uint8_t { kGpu, kPinned, kPageable, kFreed, kCut };
/// Where the bytes are. kCut: only partly in an allocation or a registered range.
Place PlaceOf(CUdeviceptr at, std::size_t bytes);
/// The GPU's allocations, and what host memory its kernels reach.
Ranges RangesForKernels(int gpu);
/// Whether the bytes are all in one of the ranges.
bool Holds(const Ranges& ranges, CUdeviceptr at, std::size_t bytes);
/// Opens GPU memory to the scheduler's thread for the duration of one operation: the host's code may never touch it,
/// unless it is managed.
/// Called without the lock.
class GpuAccess {
 public:
  /// All memory of all GPUs.
  GpuAccess();
  /// The allocations that these addresses are in; others are left out.
  explicit GpuAccess(const std::vector<CUdeviceptr>& addresses);
  ~GpuAccess();
  GpuAccess(const GpuAccess&) = delete;
  GpuAccess& operator=(const GpuAccess&) = delete;

 private:
  void Open() const;
  std::map<CUdeviceptr, std::size_t> ranges_;
};
CUresult MemGetInfo(std::size_t* free, std::size_t* total);
CUresult MemAlloc(CUdeviceptr* at, std::size_t bytes);
CUresult MemAllocManaged(CUdeviceptr* at, std::size_t bytes, unsigned int flags);
CUresult MemFree(CUdeviceptr at);
CUresult MemHostRegister(void* memory, std::size_t bytes, unsigned int flags);
CUresult MemHostUnregister(void* memory);
CUresult PointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values, CUdeviceptr at);
void FreeAllMemory();

// copies.cc
constexpr int kMaxPitch = 0x7fffffff;
CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle);
CUresult MemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                          CUmemcpyAttributes* attributes, std::size_t* first, std::size_t attribute_count,
                          std::size_t* failed, CUstream handle);
CUresult Memcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream handle);
CUresult MemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream handle);

// streams.cc
CUresult StreamCreate(CUstream* handle, unsigned int flags);
CUresult StreamDestroy(CUstream handle);
CUresult StreamQuery(CUstream handle);
CUresult StreamSynchronize(CUstream handle);
CUresult StreamWaitEvent(CUstream handle, CUevent handle_of_event, unsigned int flags);
CUresult StreamWaitValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned int flags);
CUresult StreamWriteValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned int flags);
CUresult LaunchHostFunc(CUstream handle, CUhostFn function, void* argument);
CUresult EventCreate(CUevent* handle, unsigned int flags);
CUresult EventDestroy(CUevent handle);
CUresult EventRecord(CUevent handle, CUstream handle_of_stream);
CUresult EventQuery(CUevent handle);
CUresult EventSynchronize(CUevent handle);

// kernels.cc
CUresult ModuleLoadData(CUmodule* handle, const void* image);
CUresult ModuleUnload(CUmodule handle);
/// With its functions.
void UnloadModule(Context& context, FakeModule* loaded);
CUresult ModuleGetFunction(CUfunction* handle, CUmodule module, const char* name);
CUresult LaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                      CUstream stream, void** arguments, void** extra);

// devices.cc
CUresult GetErrorName(CUresult error, const char** text);
CUresult GetErrorString(CUresult error, const char** text);
CUresult Init(unsigned int flags);
CUresult DeviceGetCount(int* count);
CUresult DeviceGet(CUdevice* device, int ordinal);
CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device);
CUresult DeviceGetPciBusId(char* bus_id, int size, CUdevice device);
CUresult PrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult PrimaryCtxRelease(CUdevice device);
CUresult CtxPushCurrent(CUcontext context);
CUresult CtxPopCurrent(CUcontext* context);
CUresult CtxGetCurrent(CUcontext* context);

}  // namespace cairn::fake_cuda
