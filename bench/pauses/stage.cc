#include "bench/pauses/stage.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "api/wiring.h"
#include "base/status_macros.h"
#include "testing/forwarding_device.h"

namespace cairn::bench {
namespace {

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr std::uint64_t kChunk = 1U << 20;
constexpr std::size_t kTensors = 16;
constexpr std::size_t kWordsPerBlock = 4096 / sizeof(std::uint64_t);
constexpr std::chrono::seconds kLongestPause{10};

/// The device without its last lane, which is for sends.
class EnginesLanes : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  [[nodiscard]] int lanes() const override { return inner_->lanes() - 1; }
};

}  // namespace

Stage::Stage(const PipelineModel& model, int index)
    : model_(model),
      index_(index),
      workers_("bench-gpu", 1),
      host_(HostDevice::Make(
          {.id = kGpu, .lanes = model.copy_streams + 1, .streams = true, .bytes_per_second = model.link}, workers_)),
      stream_(host_->MakeStream()),
      memory_(model.state_bytes / sizeof(std::uint64_t)),
      message_(model.message_bytes),
      staged_message_(model.message_bytes),
      message_layout_{.base = message_.data(), .row_bytes = message_.size(), .bytes = message_.size()} {}

Status Stage::Open(const std::string& root, std::shared_ptr<Group> group) {
  const std::size_t words = memory_.size() / kTensors;
  for (std::size_t t = 0; t < kTensors; ++t) {
    CAIRN_RETURN_IF_ERROR(state_.Add("stage." + std::to_string(index_) + "." + std::to_string(t),
                                     {.data = memory_.data() + t * words,
                                      .dtype = DType::kI64,
                                      .shape = {static_cast<std::int64_t>(words)},
                                      .device = kGpu}));
  }
  Options options{.root = root, .keep_last = 1, .group = std::move(group)};
  // Two saves fit: no copy waits for the disk.
  options.host_memory_bytes = 2 * AlignUp(model_.state_bytes, kChunk) + 16 * kChunk;
  options.chunk_bytes = kChunk;
  options.queue_depth = 8;
  options.worker_threads = 1;
  options.copy_streams = model_.copy_streams;
  options.cuda_devices = {0};
  Wiring wiring;
  wiring.devices = [this](WorkerPool&) -> Result<std::vector<std::shared_ptr<Device>>> {
    return std::vector<std::shared_ptr<Device>>{std::make_shared<EnginesLanes>(host_)};
  };
  CAIRN_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Open(options, std::move(wiring)));
  return {};
}

Status Stage::RunSchedule(Saving saving, std::uint64_t step) {
  if (saving != Saving::kNone) {
    {
      MutexLock lock(mutex_);
      saving_ = saving;
      UpdatePause();
    }
    CAIRN_RETURN_IF_ERROR(checkpointer_->Save(step, state_, {.streams = {stream_}}).status());
  }
  now_ = Clock::now();
  const int ahead = std::min(model_.stages - 1 - index_, model_.micro_batches);
  for (int i = 0; i < ahead; ++i) CAIRN_RETURN_IF_ERROR(Run(kForward));
  for (int i = ahead; i < model_.micro_batches; ++i) {
    CAIRN_RETURN_IF_ERROR(Run(kForward));
    AwaitSent();
    CAIRN_RETURN_IF_ERROR(Run(kBackward));
    AwaitSent();
  }
  for (int i = 0; i < ahead; ++i) CAIRN_RETURN_IF_ERROR(Run(kBackward));
  AwaitSent();
  SetWaiting(true);  // Until the last stage is done.
  return {};
}

Result<std::chrono::nanoseconds> Stage::Update(Saving saving, std::uint64_t step) {
  const auto begun = Clock::now();
  SetWaiting(false);
  if (saving != Saving::kNone) {
    CAIRN_RETURN_IF_ERROR(checkpointer_->Fence(stream_));
    host_->Synchronize(stream_);
    MutexLock lock(mutex_);
    saving_ = Saving::kNone;
    UpdatePause();
  }
  now_ = Clock::now();
  const std::chrono::nanoseconds fence = now_ - begun;
  WriteState(step + 1);
  Compute(model_.update);
  return fence;
}

Status Stage::CheckRestored(std::uint64_t step) {
  WriteState(step + 1);
  CAIRN_ASSIGN_OR_RETURN(const Restored restored, checkpointer_->Restore(Latest(), state_, {.streams = {stream_}}));
  host_->Synchronize(stream_);
  for (std::size_t i = 0; i < memory_.size(); i += kWordsPerBlock) {
    if (restored.step == step && memory_[i] == step) continue;
    return Error(StatusCode::kInternal, "stage {}: expected step {}, found {} in checkpoint {}", index_, step,
                 memory_[i], restored.step);
  }
  return {};
}

void Stage::WriteState(std::uint64_t step) {
  for (std::size_t i = 0; i < memory_.size(); i += kWordsPerBlock) memory_[i] = step;
}

Status Stage::Run(Direction direction) {
  const bool forward = direction == kForward;
  if ((forward ? before_ : after_) != nullptr) Await(direction);
  Compute(forward ? model_.forward : model_.backward);
  Stage* const to = forward ? after_ : before_;
  return to == nullptr ? Status() : Send(direction, *to);
}

Status Stage::Send(Direction direction, Stage& to) {
  {
    MutexLock lock(mutex_);
    ++sending_;
    UpdatePause();
  }
  CopyBatch batch{.direction = CopyDirection::kToHost, .lane = model_.copy_streams};
  batch.pieces.push_back({.tensor = &message_layout_, .end = message_.size(), .memory = staged_message_.data()});
  return host_->Copy(std::move(batch), [this, direction, &to](const Status&) {
    OnSent();
    to.OnArrived(direction);
  });
}

void Stage::Await(Direction direction) {
  SetWaiting(true);
  MutexLock lock(mutex_);
  Arrived& arrived = arrived_.at(direction);
  while (arrived.at.size() == arrived.taken) changed_.Wait(mutex_);
  now_ = std::max(now_, arrived.at[arrived.taken++]);
  waiting_ = false;
  UpdatePause();
}

void Stage::AwaitSent() {
  MutexLock lock(mutex_);
  while (sending_ > 0) changed_.Wait(mutex_);
  now_ = std::max(now_, sent_at_);
}

void Stage::Compute(std::chrono::nanoseconds span) {
  now_ += span;
  std::this_thread::sleep_until(now_);
}

void Stage::OnArrived(Direction direction) {
  MutexLock lock(mutex_);
  arrived_.at(direction).at.push_back(Clock::now());
  changed_.NotifyAll();
}

void Stage::OnSent() {
  MutexLock lock(mutex_);
  --sending_;
  sent_at_ = Clock::now();
  UpdatePause();
  changed_.NotifyAll();
}

void Stage::SetWaiting(bool waiting) {
  MutexLock lock(mutex_);
  waiting_ = waiting;
  UpdatePause();
}

void Stage::UpdatePause() {
  const bool pauses =
      (saving_ == Saving::kBubbles && (sending_ > 0 || !waiting_)) || (saving_ == Saving::kGaps && sending_ > 0);
  if (pauses == std::exchange(paused_, pauses)) return;
  pause_ = pauses ? checkpointer_->PauseCopies(kLongestPause) : CopyPause();
}

}  // namespace cairn::bench
