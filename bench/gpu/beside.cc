#include "bench/gpu/beside.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "device/cuda_kernel_plan.h"

namespace cairn::bench {
namespace {

constexpr char kCopyPtx[] =
#include "device/copy_kernels.ptx.inc"
    ;
// As many chunks are staged in one batch.
constexpr std::size_t kChunksOfARun = 32;
// An element of a convolution's weight in channels_last: what its rows of the file consist of.
constexpr std::uint64_t kElement = 4;
constexpr std::int64_t kChannels = 256;
constexpr std::int64_t kTaps = 9;

}  // namespace

template <typename Function>
Status Beside::Find(const char* name, int since, Function* function) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const auto get = library == nullptr
                       ? nullptr
                       : reinterpret_cast<PFN_cuGetProcAddress_v11030>(::dlsym(library, "cuGetProcAddress"));
  void* found = nullptr;
  if (get == nullptr || get(name, &found, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM) != CUDA_SUCCESS) {
    return Error(StatusCode::kUnsupported, "the driver has no {}", name);
  }
  *function = reinterpret_cast<Function>(found);
  return Status::Ok();
}

Status Beside::Open(std::uint64_t host_bytes, std::uint64_t gpu_bytes) {
  CAIRN_RETURN_IF_ERROR(context_.Retain());
  const CudaContext::Scope scope(context_);
  open_ = true;
  CAIRN_RETURN_IF_ERROR(Find("cuLaunchHostFunc", 10000, &launch_host_));
  CAIRN_RETURN_IF_ERROR(Find("cuStreamWaitValue32", 11070, &wait_value_));
  CAIRN_RETURN_IF_ERROR(Find("cuMemsetD8Async", 3020, &memset_));
  if (driver_.memcpy_batch_async == nullptr || !driver_.loads_kernels()) {
    return Error(StatusCode::kUnsupported, "the driver has no batches or no kernels");
  }
  void* const host =
      ::mmap(nullptr, host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (host == MAP_FAILED) return Error(StatusCode::kResourceExhausted, "no {} bytes of memory", host_bytes);
  host_ = static_cast<std::byte*>(host);
  host_bytes_ = host_bytes;
  gpu_bytes_ = gpu_bytes;
  CAIRN_RETURN_IF_ERROR(Check(
      driver_.mem_host_register(host_, host_bytes_, kMemHostRegisterPortable | kMemHostRegisterDeviceMap), "pinning"));
  for (CUdeviceptr* const memory : {&from_, &staging_}) {
    CAIRN_RETURN_IF_ERROR(Check(driver_.mem_alloc(memory, gpu_bytes_), "allocating"));
  }
  for (CUstream* const stream : {&copies_, &second_, &training_}) {
    CAIRN_RETURN_IF_ERROR(Check(driver_.stream_create(stream, CU_STREAM_NON_BLOCKING), "creating a stream"));
  }
  const auto create = [&](CUevent* event) {
    return Check(driver_.event_create(event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), "creating an event");
  };
  for (CUevent& event : events_) CAIRN_RETURN_IF_ERROR(create(&event));
  for (CUevent& event : pace_) {
    CAIRN_RETURN_IF_ERROR(create(&event));
    CAIRN_RETURN_IF_ERROR(Check(driver_.event_record(event, copies_), "recording"));
  }
  CAIRN_RETURN_IF_ERROR(Check(driver_.module_load_data(&module_, kCopyPtx), "loading the kernels"));
  CAIRN_RETURN_IF_ERROR(
      Check(driver_.module_get_function(&strided_, module_, "cairn_copy_strided"), "finding a kernel"));
  return waiter_.Start(2 * kChunksOfARun);
}

Beside::~Beside() {
  waiter_.Close();
  if (!open_) return;
  const CudaContext::Scope scope(context_);
  waiter_.DestroyEvents();
  for (CUstream stream : {copies_, second_, training_}) {
    if (stream != nullptr) (void)driver_.stream_synchronize(stream);
    if (stream != nullptr) (void)driver_.stream_destroy(stream);
  }
  for (CUevent event : events_) {
    if (event != nullptr) (void)driver_.event_destroy(event);
  }
  for (CUevent event : pace_) {
    if (event != nullptr) (void)driver_.event_destroy(event);
  }
  if (module_ != nullptr) (void)driver_.module_unload(module_);
  for (const CUdeviceptr memory : {from_, staging_}) {
    if (memory != 0) (void)driver_.mem_free(memory);
  }
  if (host_ != nullptr) (void)driver_.mem_host_unregister(host_);
  if (host_ != nullptr) ::munmap(host_, host_bytes_);
}

Status Beside::Pace(std::size_t chunks) {
  if (chunks % kChunksOfARun != 0) return Status::Ok();
  CUevent event = pace_[chunks / kChunksOfARun % pace_.size()];
  CAIRN_RETURN_IF_ERROR(Check(driver_.event_synchronize(event), "waiting for copies"));
  return Check(driver_.event_record(event, copies_), "recording");
}

Status Beside::EndCopies() {
  CAIRN_RETURN_IF_ERROR(Check(driver_.stream_synchronize(copies_), "waiting for copies"));
  return Check(driver_.stream_synchronize(second_), "waiting for what follows copies");
}

Status Beside::ToHost(std::string_view then, std::uint64_t chunk, std::size_t count) {
  const CudaContext::Scope scope(context_);
  const bool counts = then == "host functions" || then == "threads";
  for (std::size_t i = 0; i < count; ++i) {
    CAIRN_RETURN_IF_ERROR(
        Check(driver_.memcpy_async(Host(i * chunk % host_bytes_), from_ + i * chunk % gpu_bytes_, chunk, copies_),
              "copying"));
    if (then == "threads") {
      CAIRN_RETURN_IF_ERROR(waiter_.Record(copies_, [this](const Status&) { ended_.Add(); }));
    } else if (then != "nothing") {
      CUevent event = events_[i % events_.size()];
      CAIRN_RETURN_IF_ERROR(Check(driver_.event_record(event, copies_), "recording"));
      CAIRN_RETURN_IF_ERROR(Check(driver_.stream_wait_event(second_, event, CU_EVENT_WAIT_DEFAULT), "waiting"));
    }
    if (then == "host functions") {
      const auto add = [](void* counter) { static_cast<Counter*>(counter)->Add(); };
      CAIRN_RETURN_IF_ERROR(Check(launch_host_(second_, add, &ended_), "launching a host function"));
    }
    CAIRN_RETURN_IF_ERROR(Pace(i + 1));
  }
  CAIRN_RETURN_IF_ERROR(EndCopies());
  if (counts) ended_.Await(count);
  return Status::Ok();
}

Status Beside::Stage(std::string_view way, std::uint64_t chunk, std::size_t count) {
  const CudaContext::Scope scope(context_);
  if (chunk * count > gpu_bytes_) return Error(StatusCode::kInvalidArgument, "more than there is memory for");
  const std::size_t run = way == "one copy" ? count : way == "chunks" ? 1 : kChunksOfARun;
  for (std::size_t first = 0; first < count; first += run) {
    const std::size_t n = std::min(run, count - first);
    if (run == 1 || run == count) {
      CAIRN_RETURN_IF_ERROR(
          Check(driver_.memcpy_async(staging_ + first * chunk, from_ + first * chunk, n * chunk, copies_), "copying"));
      continue;
    }
    std::vector<CUdeviceptr> to;
    std::vector<CUdeviceptr> from;
    for (std::size_t i = first; i < first + n; ++i) {
      to.push_back(staging_ + i * chunk);
      from.push_back(from_ + i * chunk);
    }
    std::vector<std::size_t> sizes(n, chunk);
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    if (way == "overlapping batches") attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    std::size_t of_all = 0;
    std::size_t failed = 0;
    CAIRN_RETURN_IF_ERROR(Check(
        driver_.memcpy_batch_async(to.data(), from.data(), sizes.data(), n, &attributes, &of_all, 1, &failed, copies_),
        "copying a batch"));
  }
  return EndCopies();
}

Status Beside::Strided(unsigned int blocks, std::uint64_t chunk, std::size_t count) {
  const CudaContext::Scope scope(context_);
  constexpr std::uint64_t kRow = kChannels * kTaps * kElement;
  const std::uint64_t bytes = chunk / kRow * kRow;
  if (bytes == 0 || bytes > host_bytes_ || bytes > gpu_bytes_) {
    return Error(StatusCode::kInvalidArgument, "chunks of {} bytes do not fit", chunk);
  }
  const auto element = static_cast<std::int64_t>(kElement);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's addresses are numbers.
  const StridedLayout layout{.base = reinterpret_cast<std::byte*>(from_),
                             .row_bytes = kElement,
                             .outer = {{static_cast<std::int64_t>(bytes / kRow), kTaps * kChannels * element},
                                       {kChannels, element},
                                       {kTaps, kChannels * element}},
                             .bytes = bytes};
  const CopyPiece piece{.tensor = &layout, .begin = 0, .end = bytes, .memory = host_};
  kernels::StridedCopy copy = KernelCopyOf(piece, CopyDirection::kToHost);
  for (std::size_t i = 0; i < count; ++i) {
    std::array<void*, 1> parameters = {&copy};
    CAIRN_RETURN_IF_ERROR(Check(driver_.launch_kernel(strided_, blocks, 1, 1, kernels::kThreadsPerBlock, 1, 1, 0,
                                                      copies_, parameters.data(), nullptr),
                                "launching a kernel"));
    CAIRN_RETURN_IF_ERROR(Pace(i + 1));
  }
  return EndCopies();
}

}  // namespace cairn::bench
