#include "cairn/cairn.h"

#include <chrono>
#include <utility>
#include <vector>

#include "api/wiring.h"
#include "base/status_macros.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

// A node whose coordinator was killed looks so long for its commit; bench_pipeline gives it 30 s to notice.
constexpr std::chrono::seconds kGroupTimeout{20};

/// Cairn, by its public API; only the run's GPU and emulated disk replace the usual ones.
class Cairn : public Strategy {
 public:
  Cairn(const Workplace& workplace, State state, std::unique_ptr<Checkpointer> checkpointer)
      : gpu_(workplace.gpu), state_(std::move(state)), checkpointer_(std::move(checkpointer)) {}

  Status Save(std::uint64_t step) override {
    saved_ = true;
    return checkpointer_->Save(step, state_, {.streams = {gpu_.stream()}, .replicated = {}}).status();
  }
  Status BeforeUpdate() override {
    CAIRN_RETURN_IF_ERROR(checkpointer_->Fence(gpu_.stream()));
    // The host makes the update, so it waits for what the stream waits for: nothing if the last fence already waited
    // for every save.
    if (!std::exchange(saved_, false)) return {};
    return gpu_.Synchronize();
  }
  Status Drain() override { return checkpointer_->Drain(); }
  Result<std::uint64_t> Restore() override {
    CAIRN_ASSIGN_OR_RETURN(const Restored restored,
                           checkpointer_->Restore(Latest(), state_, {.names = {}, .streams = {gpu_.stream()}}));
    CAIRN_RETURN_IF_ERROR(gpu_.Synchronize());
    return restored.step;
  }

 private:
  Gpu& gpu_;
  const State state_;
  const std::unique_ptr<Checkpointer> checkpointer_;
  bool saved_ = false;  // Since the last fence.
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace, bool in_memory) {
  if (in_memory && workplace.memory.empty()) {
    return Error(StatusCode::kInvalidArgument, "cairn-memory: expected a directory on tmpfs, found none");
  }
  Options options{.root = workplace.directory,
                  .keep_last = 1,
                  .max_in_flight = workplace.in_flight,
                  .host_memory_bytes = workplace.host_memory_bytes};
  if (workplace.chunk_bytes > 0) options.chunk_bytes = workplace.chunk_bytes;
  options.queue_depth = workplace.queue_depth;
  options.group = workplace.group;
  options.group_timeout = kGroupTimeout;
  options.cuda_devices = {0};  // Set up at Open, as the other strategies' memory is.
  if (in_memory) options.memory_root = workplace.memory;
  const EventKind safe = in_memory ? EventKind::kSaveKept : EventKind::kSaveDurable;
  options.on_event = [durable = workplace.durable, safe](const Event& event) {
    if (event.kind == safe) durable(*event.step);
  };
  Wiring wiring;
  wiring.devices = [device = workplace.gpu.device()](WorkerPool&) -> Result<std::vector<std::shared_ptr<Device>>> {
    return std::vector<std::shared_ptr<Device>>{device};
  };
  if (workplace.disk != nullptr) {
    wiring.wrap_queue = [disk = workplace.disk](IoQueueFactory inner) { return disk->Wrap(std::move(inner)); };
  }
  State state;
  for (const DeviceState::Tensor& tensor : workplace.state.tensors()) {
    CAIRN_RETURN_IF_ERROR(
        state.Add(tensor.name, {.data = tensor.layout.base,
                                .shape = {static_cast<std::int64_t>(tensor.layout.bytes / sizeof(float))},
                                .strides = {},
                                .device = {DeviceKind::kCuda, 0},
                                .bytes = tensor.layout.bytes,
                                .part = {}}));
  }
  CAIRN_ASSIGN_OR_RETURN(auto checkpointer, Checkpointer::Open(options, std::move(wiring)));
  return std::unique_ptr<Strategy>(std::make_unique<Cairn>(workplace, std::move(state), std::move(checkpointer)));
}

}  // namespace

StrategyKind CairnKind() {
  return {.name = "cairn",
          .tuning =
              "default options but keep_last 1, max_in_flight, host_memory_bytes, chunk_bytes and queue_depth as "
              "given; checksums on",
          // The one that is kept, and one more for the next saves to be written over.
          .checkpoints_on_disk = [](int in_flight) { return in_flight + 2; },
          .host_bytes = [](std::uint64_t, std::uint64_t host_memory_bytes, int) { return host_memory_bytes; },
          .open = [](const Workplace& workplace) { return Open(workplace, /*in_memory=*/false); }};
}

StrategyKind CairnMemoryKind() {
  return {.name = "cairn-memory",
          .tuning =
              "as cairn, with memory_root on this machine's tmpfs: each save is kept there, and the disk gets the "
              "newest whenever it is free; slots of the state's size for in_flight saves and two more",
          .durable_means = "kept in the host's memory: lost with the machine, not with the process",
          .checkpoints_on_disk = [](int in_flight) { return in_flight + 2; },
          .host_bytes =
              [](std::uint64_t state_bytes, std::uint64_t host_memory_bytes, int in_flight) {
                return host_memory_bytes + static_cast<std::uint64_t>(in_flight + 2) * state_bytes;
              },
          .open = [](const Workplace& workplace) { return Open(workplace, /*in_memory=*/true); }};
}

}  // namespace cairn::bench
