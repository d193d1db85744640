#include "device/cuda_under_test.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "device/cuda_device.h"

namespace cairn {
namespace {

constexpr std::uint64_t kFlagBytes = 65536;
constexpr std::uint64_t kSumBytes = 8U << 20;

template <typename Function>
bool Find(PFN_cuGetProcAddress_v11030 get, const char* name, int since, Function* function) {
  void* address = nullptr;
  if (get(name, &address, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM) != CUDA_SUCCESS) return false;
  *function = reinterpret_cast<Function>(address);
  return address != nullptr;
}

bool FindAll(CudaTestFunctions& functions) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return false;
  const auto get = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
  return Find(get, "cuCtxGetCurrent", 4000, &functions.ctx_get_current) &&
         Find(get, "cuStreamBeginCapture", 10010, &functions.stream_begin_capture) &&
         Find(get, "cuStreamEndCapture", 10000, &functions.stream_end_capture) &&
         Find(get, "cuGraphDestroy", 10000, &functions.graph_destroy) &&
         Find(get, "cuStreamWaitValue32", 11070, &functions.stream_wait_value) &&
         Find(get, "cuStreamWriteValue32", 11070, &functions.stream_write_value) &&
         Find(get, "cuMemsetD8Async", 3020, &functions.memset_async) &&
         Find(get, "cuMemAllocManaged", 6000, &functions.mem_alloc_managed);
}

CUdeviceptr Address(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

CudaUnderTest::CudaUnderTest(std::shared_ptr<const CudaDriver> driver, const CudaTestFunctions& functions, int gpu)
    : context_(std::move(driver), gpu), functions_(functions) {}

std::unique_ptr<CudaUnderTest> CudaUnderTest::Make(std::string& why_not, int gpu) {
  Result<std::shared_ptr<const CudaDriver>> driver = CudaDriver::Load();
  if (!driver.ok()) {
    why_not = driver.status().ToString();
    return nullptr;
  }
  CudaTestFunctions functions;
  if (!FindAll(functions)) {
    why_not = "the driver lacks functions that the tests need";
    return nullptr;
  }
  std::unique_ptr<CudaUnderTest> made(new CudaUnderTest(*driver, functions, gpu));
  const Status status = made->SetUp();
  EXPECT_EQ(status, Status::Ok());
  if (status.ok()) return made;
  why_not = status.ToString();
  return nullptr;
}

Status CudaUnderTest::SetUp() {
  CAIRN_RETURN_IF_ERROR(context_.Retain());
  CAIRN_ASSIGN_OR_RETURN(
      device_, MakeCudaDevice({.index = context_.index(), .lanes = 2, .sum_bytes = kSumBytes, .sum_batches = 8}));
  own_ = MakeStream(CU_STREAM_NON_BLOCKING);
  flags_ = MakeHostMemory(kFlagBytes);
  return Status::Ok();
}

// A failed context refuses most of this, but frees everything when it is released.
CudaUnderTest::~CudaUnderTest() {
  {
    const CudaContext::Scope scope(context_);
    for (const Stream& stream : streams_) (void)context_.driver().stream_synchronize(Handle(stream));
  }
  for (std::thread& launch : launches_) launch.join();
  DestroyDevice();
  {
    const CudaContext::Scope scope(context_);
    for (CUevent event : events_) (void)context_.driver().event_destroy(event);
    for (const Stream& stream : streams_) (void)context_.driver().stream_destroy(Handle(stream));
    for (const CUdeviceptr tensor : tensors_) (void)context_.driver().mem_free(tensor);
  }
  for (const MutableBytes memory : mapped_) ::munmap(memory.data(), memory.size());
}

void CudaUnderTest::DestroyDevice() {
  if (device_ == nullptr) return;
  for (const MutableBytes memory : pinned_) device_->UnpinMemory(memory);
  device_.reset();
}

// Through pinned memory: a copy of any other is not one that Cairn makes.
std::byte* CudaUnderTest::MakeTensor(Bytes contents) {
  CUdeviceptr at = 0;
  EXPECT_EQ(context_.Run([&] {
    return context_.Check(context_.driver().mem_alloc(&at, std::max<std::size_t>(contents.size(), 1)), "a tensor");
  }),
            Status::Ok());
  tensors_.push_back(at);
  if (!contents.empty()) {
    const MutableBytes source = Scratch(contents.size());
    std::copy(contents.begin(), contents.end(), source.begin());
    EXPECT_EQ(CopyAndSynchronize(at, Address(source.data()), contents.size()), Status::Ok());
  }
  return reinterpret_cast<std::byte*>(at);
}

std::vector<std::byte> CudaUnderTest::ReadTensor(const std::byte* at, std::uint64_t bytes) {
  const MutableBytes target = Scratch(bytes);
  EXPECT_EQ(CopyAndSynchronize(Address(target.data()), Address(at), bytes), Status::Ok());
  return {target.begin(), target.end()};
}

MutableBytes CudaUnderTest::Scratch(std::uint64_t bytes) {
  if (scratch_.size() < bytes) scratch_ = MakeHostMemory(bytes);
  return scratch_.first(bytes);
}

Status CudaUnderTest::CopyAndSynchronize(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return context_.Run([&]() -> Status {
    const CudaDriver& driver = context_.driver();
    CAIRN_RETURN_IF_ERROR(context_.Check(driver.memcpy_async(to, from, bytes, Handle(own_)), "copying"));
    return context_.Check(driver.stream_synchronize(Handle(own_)), "copying");
  });
}

MutableBytes CudaUnderTest::MakePlainMemory(std::uint64_t bytes) {
  bytes = std::max<std::uint64_t>(bytes, 1);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mapped_.emplace_back(static_cast<std::byte*>(at), bytes);
  return mapped_.back();
}

MutableBytes CudaUnderTest::MakeHostMemory(std::uint64_t bytes) {
  const MutableBytes memory = MakePlainMemory(bytes);
  EXPECT_EQ(device_->PinMemory(memory), Status::Ok());
  pinned_.push_back(memory);
  return memory.first(bytes);
}

MutableBytes CudaUnderTest::MakeManagedMemory(std::uint64_t bytes) {
  CUdeviceptr at = 0;
  EXPECT_EQ(context_.Run([&] {
    return context_.Check(functions_.mem_alloc_managed(&at, bytes, kMemAttachGlobal), "managed memory");
  }),
            Status::Ok());
  tensors_.push_back(at);
  return {reinterpret_cast<std::byte*>(at), bytes};
}

Stream CudaUnderTest::MakeStream(unsigned int flags) {
  CUstream stream = nullptr;
  EXPECT_EQ(context_.Run([&] { return context_.Check(context_.driver().stream_create(&stream, flags), "a stream"); }),
            Status::Ok());
  streams_.push_back({{DeviceKind::kCuda, context_.index()}, reinterpret_cast<std::uintptr_t>(stream)});
  return streams_.back();
}

void CudaUnderTest::LaunchOnHost(Stream stream, std::function<void()> work) {
  const std::size_t slot = launches_.size();
  ASSERT_LT(slot, kFlagBytes / sizeof(cuuint32_t));
  const CUdeviceptr flag = Address(flags_.data()) + slot * sizeof(cuuint32_t);
  const CudaDriver& driver = context_.driver();
  CUevent reached = nullptr;
  ASSERT_EQ(context_.Run([&]() -> Status {
    const unsigned int flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    CAIRN_RETURN_IF_ERROR(context_.Check(driver.event_create(&reached, flags), "launching"));
    events_.push_back(reached);
    CAIRN_RETURN_IF_ERROR(context_.Check(driver.event_record(reached, Handle(stream)), "launching"));
    return context_.Check(functions_.stream_wait_value(Handle(stream), flag, 1, CU_STREAM_WAIT_VALUE_GEQ), "launching");
  }),
            Status::Ok());
  launches_.emplace_back([this, flag, reached, work = std::move(work)]() mutable {
    const CudaContext::Scope scope(context_);
    if (context_.driver().event_synchronize(reached) != CUDA_SUCCESS) return;
    work();
    work = nullptr;
    (void)functions_.stream_write_value(Handle(own_), flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  });
}

void CudaUnderTest::LaunchWrite(Stream stream, std::byte* at, std::vector<std::byte> contents) {
  // Pinned, or the call itself would wait for the stream.
  const MutableBytes source = MakeHostMemory(contents.size());
  std::copy(contents.begin(), contents.end(), source.begin());
  EXPECT_EQ(context_.Run([&] {
    return context_.Check(
        context_.driver().memcpy_async(Address(at), Address(source.data()), source.size(), Handle(stream)), "writing");
  }),
            Status::Ok());
}

void CudaUnderTest::Synchronize(Stream stream) {
  EXPECT_EQ(context_.Run([&] {
    return context_.Check(context_.driver().stream_synchronize(Handle(stream)), "waiting for a stream");
  }),
            Status::Ok());
}

}  // namespace cairn
