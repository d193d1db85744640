#include "bench/gpu/launcher.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

// As in cuda.h, which this build may lack. Handles are opaque, results are numbers, 0 is success.
using Handle = void*;
using Address = std::uint64_t;
constexpr std::uint64_t kLegacyStream = 1;  // CU_GET_PROC_ADDRESS_LEGACY_STREAM
constexpr unsigned int kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned int kAtLeast = 0;        // CU_STREAM_WAIT_VALUE_GEQ
constexpr std::size_t kBytes = 4;

struct Functions {
  int (*init)(unsigned int) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*retain)(Handle*, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*push)(Handle) = nullptr;
  int (*pop)(Handle*) = nullptr;
  int (*stream_create)(Handle*, unsigned int) = nullptr;
  int (*stream_destroy)(Handle) = nullptr;
  int (*stream_synchronize)(Handle) = nullptr;
  int (*alloc)(Address*, std::size_t) = nullptr;
  int (*free)(Address) = nullptr;
  int (*memcpy)(Address, Address, std::size_t, Handle) = nullptr;
  int (*memset)(Address, unsigned char, std::size_t, Handle) = nullptr;
  int (*wait_value)(Handle, Address, std::uint32_t, unsigned int) = nullptr;
};

Status Check(int result, const char* what) {
  return result == 0 ? Status::Ok() : Error(StatusCode::kDeviceError, "{}: the driver's error {}", what, result);
}

Result<Functions> Load() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return Status(StatusCode::kUnsupported, "no driver: libcuda.so.1 is not found");
  using Get = int (*)(const char*, void**, int, std::uint64_t);
  const auto get = reinterpret_cast<Get>(::dlsym(library, "cuGetProcAddress"));
  if (get == nullptr) return Status(StatusCode::kUnsupported, "the driver has no cuGetProcAddress");
  Status status;
  const auto find = [&](const char* name, int since, auto& function) {
    void* found = nullptr;
    if (get(name, &found, since, kLegacyStream) != 0 || found == nullptr) {
      status = Error(StatusCode::kUnsupported, "the driver has no {}", name);
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  Functions functions;
  find("cuInit", 2000, functions.init);
  find("cuDeviceGet", 2000, functions.device_get);
  find("cuDevicePrimaryCtxRetain", 7000, functions.retain);
  find("cuDevicePrimaryCtxRelease", 11000, functions.release);
  find("cuCtxPushCurrent", 4000, functions.push);
  find("cuCtxPopCurrent", 4000, functions.pop);
  find("cuStreamCreate", 2000, functions.stream_create);
  find("cuStreamDestroy", 4000, functions.stream_destroy);
  find("cuStreamSynchronize", 2000, functions.stream_synchronize);
  find("cuMemAlloc", 3020, functions.alloc);
  find("cuMemFree", 3020, functions.free);
  find("cuMemcpyAsync", 4000, functions.memcpy);
  find("cuMemsetD8Async", 3020, functions.memset);
  find("cuStreamWaitValue32", 11070, functions.wait_value);
  if (!status.ok()) return status;
  return functions;
}

class DriverLauncher : public Launcher {
 public:
  explicit DriverLauncher(const Functions& driver) : driver_(driver) {}
  DriverLauncher(const DriverLauncher&) = delete;
  DriverLauncher& operator=(const DriverLauncher&) = delete;
  ~DriverLauncher() override {
    if (stream_ != nullptr) (void)driver_.stream_synchronize(stream_);
    if (stream_ != nullptr) (void)driver_.stream_destroy(stream_);
    if (memory_ != 0) (void)driver_.free(memory_);
    Handle popped = nullptr;
    if (context_ != nullptr) (void)driver_.pop(&popped);
    if (context_ != nullptr) (void)driver_.release(device_);
  }

  Status SetUp() {
    CAIRN_RETURN_IF_ERROR(Check(driver_.init(0), "cuInit"));
    CAIRN_RETURN_IF_ERROR(Check(driver_.device_get(&device_, 0), "cuDeviceGet"));
    CAIRN_RETURN_IF_ERROR(Check(driver_.retain(&context_, device_), "cuDevicePrimaryCtxRetain"));
    CAIRN_RETURN_IF_ERROR(Check(driver_.push(context_), "cuCtxPushCurrent"));
    CAIRN_RETURN_IF_ERROR(Check(driver_.stream_create(&stream_, kNonBlocking), "cuStreamCreate"));
    return Check(driver_.alloc(&memory_, kBytes), "cuMemAlloc");
  }
  Status Launch() override { return Check(driver_.memset(memory_, 1, kBytes, stream_), "cuMemsetD8Async"); }
  Status Copy(const std::byte* from, std::byte* to, std::uint64_t bytes) override {
    const auto address = [](const std::byte* memory) { return reinterpret_cast<Address>(memory); };
    return Check(driver_.memcpy(address(to), address(from), bytes, stream_), "cuMemcpyAsync");
  }
  Status Synchronize() override { return Check(driver_.stream_synchronize(stream_), "cuStreamSynchronize"); }
  Status Hold(const std::uint32_t* flag, std::uint32_t value) override {
    return Check(driver_.wait_value(stream_, reinterpret_cast<Address>(flag), value, kAtLeast), "cuStreamWaitValue32");
  }
  [[nodiscard]] std::uintptr_t stream() const override { return reinterpret_cast<std::uintptr_t>(stream_); }

 private:
  const Functions driver_;
  int device_ = 0;
  Handle context_ = nullptr;
  Handle stream_ = nullptr;
  Address memory_ = 0;
};

}  // namespace

Result<std::unique_ptr<Launcher>> Launcher::Open() {
  CAIRN_ASSIGN_OR_RETURN(const Functions functions, Load());
  auto launcher = std::make_unique<DriverLauncher>(functions);
  CAIRN_RETURN_IF_ERROR(launcher->SetUp());
  return std::unique_ptr<Launcher>(std::move(launcher));
}

}  // namespace cairn::bench
