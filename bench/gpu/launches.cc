#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "api/wiring.h"
#include "base/status_macros.h"
#include "bench/gpu/commands.h"
#include "bench/gpu/launcher.h"
#include "cairn/cairn.h"
#include "device/cuda_device.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr int kLaunchesAtOnce = 32;
constexpr std::chrono::microseconds kBetween{100};
constexpr std::chrono::milliseconds kHeld{100};

double Seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

/// A thread that launches all the time, as a training does, and notes how long each launch takes.
class Launching {
 public:
  Launching() : thread_([this] { status_ = Run(); }) {}
  ~Launching() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;

  /// The seconds of each launch, sorted.
  Result<std::vector<double>> Stop() {
    stop_ = true;
    thread_.join();
    CAIRN_RETURN_IF_ERROR(status_);
    std::sort(seconds_.begin(), seconds_.end());
    return std::move(seconds_);
  }

 private:
  Status Run() {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Open());
    CAIRN_RETURN_IF_ERROR(launcher->Launch());  // The first one may load code.
    CAIRN_RETURN_IF_ERROR(launcher->Synchronize());
    while (!stop_) {
      for (int i = 0; i < kLaunchesAtOnce; ++i) {
        const auto began = Clock::now();
        CAIRN_RETURN_IF_ERROR(launcher->Launch());
        seconds_.push_back(Seconds(Clock::now() - began));
        std::this_thread::sleep_for(kBetween);
      }
      CAIRN_RETURN_IF_ERROR(launcher->Synchronize());
    }
    return Status::Ok();
  }

  std::atomic<bool> stop_{false};
  Status status_;
  std::vector<double> seconds_;
  std::thread thread_;
};

/// The caller's stream, which stands still when told to.
class CallersStream {
 public:
  /// The device must outlive this.
  static Result<std::unique_ptr<CallersStream>> Open(Device& device) {
    std::unique_ptr<CallersStream> opened(new CallersStream(device));
    CAIRN_RETURN_IF_ERROR(device.PinMemory(opened->page()));
    CAIRN_ASSIGN_OR_RETURN(opened->launcher_, Launcher::Open());
    return opened;
  }
  ~CallersStream() {
    GoOn();
    launcher_.reset();
    device_.UnpinMemory(page());
  }
  CallersStream(const CallersStream&) = delete;
  CallersStream& operator=(const CallersStream&) = delete;

  Status Hold() { return launcher_->Hold(&page_[0], ++value_); }
  void GoOn() { __atomic_store_n(&page_[0], value_, __ATOMIC_RELEASE); }
  [[nodiscard]] Stream stream() const { return {.device = kGpu, .handle = launcher_->stream()}; }

 private:
  explicit CallersStream(Device& device) : device_(device) {}
  MutableBytes page() { return {reinterpret_cast<std::byte*>(page_.data()), sizeof(page_)}; }

  // The flag, and nothing else that the driver would pin.
  alignas(4096) std::array<std::uint32_t, 1024> page_{};
  Device& device_;
  std::uint32_t value_ = 0;
  std::unique_ptr<Launcher> launcher_;
};

void Print(const char* what, const std::vector<double>& seconds) {
  const std::size_t last = seconds.size() - 1;
  PrintLine({{"what", what},
             {"count", seconds.size()},
             {"p50", seconds[last / 2]},
             {"p999", seconds[last * 999 / 1000]},
             {"max", seconds[last]}});
}

}  // namespace

Status MeasureLaunches(const LaunchesOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice({.index = 0, .lanes = 1}));
  CAIRN_ASSIGN_OR_RETURN(std::byte* const memory, device->AllocateStaging(options.tensors * options.tensor_bytes));
  State state;
  for (std::size_t i = 0; i < options.tensors; ++i) {
    CAIRN_RETURN_IF_ERROR(
        state.Add("tensor." + std::to_string(i), {.data = memory + i * options.tensor_bytes,
                                                  .dtype = DType::kU8,
                                                  .shape = {static_cast<std::int64_t>(options.tensor_bytes)},
                                                  .device = kGpu}));
  }
  std::atomic<int> full = 0;
  const auto had_no_room = std::make_shared<const std::function<void()>>([&full] { ++full; });
  Wiring wiring;
  wiring.cuda = [&](DeviceId id, WorkerPool& /*workers*/) -> Result<std::unique_ptr<Device>> {
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Device> made,
                           MakeCudaDevice({.index = id.index, .kernels = options.kernels}));
    made->WakeOnRoom(had_no_room);
    return made;
  };
  CAIRN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Checkpointer> checkpointer,
      Checkpointer::Open(
          {.root = options.root, .keep_last = 1, .host_memory_bytes = options.pool_bytes, .cuda_devices = {0}},
          wiring));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CallersStream> training, CallersStream::Open(*device));
  Launching alone;
  std::this_thread::sleep_for(options.time);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<double> quiet, alone.Stop());
  Print("launches alone", quiet);

  std::vector<double> fences;
  Launching beside;
  const auto began = Clock::now();
  for (std::uint64_t step = 1; step <= 2 || Clock::now() - began < options.time; ++step) {
    CAIRN_RETURN_IF_ERROR(training->Hold());
    CAIRN_ASSIGN_OR_RETURN(const SaveHandle save, checkpointer->Save(step, state, {.streams = {training->stream()}}));
    std::this_thread::sleep_for(kHeld);
    training->GoOn();
    const auto fenced = Clock::now();
    CAIRN_RETURN_IF_ERROR(checkpointer->Fence(training->stream()));
    fences.push_back(Seconds(Clock::now() - fenced));
    CAIRN_RETURN_IF_ERROR(save.WaitDurable());
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<double> busy, beside.Stop());
  Print("launches beside saves", busy);
  std::sort(fences.begin(), fences.end());
  Print("fences", fences);
  PrintLine({{"what", "full lanes"}, {"count", full.load()}});
  return checkpointer->Drain();
}

}  // namespace cairn::bench
