#include "train.h"

#include <ATen/Context.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "cairn/cairn.h"
#include "console.h"
#include "data/dataset.h"
#include "device.h"
#include "models/model.h"
#include "optimizer.h"
#include "report.h"
#include "sampler.h"
#include "training_state.h"
#include "weights.h"

namespace cairn::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <typename T>
T Take(cairn::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(result).value();
}

/// Comes from the engine's thread.
void Tell(const cairn::Event& event) {
  const std::string step = " step=" + std::to_string(event.step);
  if (event.kind == EventKind::kSaveDurable) Say("durable" + step);
  if (event.kind == EventKind::kSaveFailed) Complain("save failed" + step + ": " + event.status.ToString());
  if (event.kind == EventKind::kLog && event.severity != Severity::kInfo) Complain(event.message);
}

std::unique_ptr<cairn::Checkpointer> OpenCheckpointer(const Flags& flags) {
  if (flags.checkpoint_dir.empty()) return nullptr;
  return Take(cairn::Checkpointer::Open({.root = flags.checkpoint_dir,
                                         .keep_last = flags.keep,
                                         .max_in_flight = flags.in_flight,
                                         .on_event = Tell,
                                         .host_memory_bytes = flags.host_memory_bytes}));
}

Batch ToDevice(Batch batch, at::Device device) {
  if (device.is_cpu()) return batch;
  for (auto& [name, tensor] : batch) tensor = tensor.to(device);
  return batch;
}

class Run {
 public:
  explicit Run(Flags given)
      : flags_(WithDefaults(std::move(given))),
        device_(PrepareDevice(flags_.device, flags_.threads)),
        data_(OpenDataset(flags_.data, flags_.sequence)),
        model_(SeedAndMake()),
        optimizer_(OptimizerConfigOf(flags_), model_.parameters),
        state_(flags_, data_.name, device_, model_, optimizer_.state()),
        stream_(CurrentStream(device_)),
        checkpointer_(OpenCheckpointer(flags_)) {}

  bool Go();

 private:
  static Flags WithDefaults(Flags flags);
  static OptimizerConfig OptimizerConfigOf(const Flags& flags);
  Model SeedAndMake();
  /// Where training starts: at the newest checkpoint with --resume, else at nothing.
  RunPosition Begin();
  StepRecord Step(Sampler& sampler, std::uint64_t step);
  void Save(const RunPosition& progress);
  void RecordEndedSaves();

  const Flags flags_;
  const at::Device device_;
  const Dataset data_;
  const Model model_;
  Optimizer optimizer_;
  TrainingState state_;
  const cairn::Stream stream_;
  Report report_;
  bool all_saved_ = true;
  // Last, so that it drains before anything that it reads goes.
  std::unique_ptr<cairn::Checkpointer> checkpointer_;
  std::deque<cairn::SaveHandle> saves_;
};

Flags Run::WithDefaults(Flags flags) {
  if (!flags.learning_rate) flags.learning_rate = flags.optimizer == "sgd" ? 0.01 : 1e-4;
  if (!flags.init_from.empty()) flags.sizes = SizesFrom(flags.init_from, flags.model, flags.sizes);
  return flags;
}

OptimizerConfig Run::OptimizerConfigOf(const Flags& flags) {
  return {.kind = flags.optimizer == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
          .learning_rate = flags.learning_rate.value()};
}

Model Run::SeedAndMake() {
  at::manual_seed(flags_.seed);
  Model model = MakeModel({.name = flags_.model, .data = data_.shape, .sizes = flags_.sizes, .device = device_});
  if (!flags_.init_from.empty()) LoadWeights(flags_.init_from, model);
  return model;
}

RunPosition Run::Begin() {
  const RunPosition fresh{.data = {.shuffle_seed = flags_.seed}};
  if (checkpointer_ == nullptr) return fresh;
  if (!flags_.resume) {
    if (const auto existing = Take(checkpointer_->List()); !existing.empty()) {
      throw std::runtime_error(flags_.checkpoint_dir + " holds " + std::to_string(existing.size()) +
                               " checkpoints already, the newest of step " + std::to_string(existing.back().step) +
                               ": give --resume, or another --checkpoint-dir");
    }
    return fresh;
  }
  const auto details = checkpointer_->Inspect(cairn::Latest());
  if (details.status().code() == StatusCode::kNotFound) {
    Say("fresh start: no checkpoint under " + flags_.checkpoint_dir);
    return fresh;
  }
  const cairn::CheckpointDetails found = Take(details);
  for (const std::string& warning : state_.Compare(found.values.at(0))) Complain("warning: " + warning);
  cairn::RestoreOptions options;
  options.streams = {stream_};
  const cairn::Restored restored = Take(checkpointer_->Restore(cairn::Latest(), state_.target(), options));
  report_.resumed_from = restored.step;
  Say("resumed step=" + std::to_string(restored.step));
  return state_.Resume(restored.values);
}

StepRecord Run::Step(Sampler& sampler, std::uint64_t step) {
  StepRecord record{.step = step};
  const Batch batch = ToDevice(data_.read(sampler.Next(flags_.batch)), device_);
  const at::Tensor loss = model_.loss(batch);
  loss.backward();
  if (checkpointer_ != nullptr) {
    // The save of an earlier step may still be reading what the optimizer is about to write.
    const auto start = Clock::now();
    if (const cairn::Status status = checkpointer_->Fence(stream_); !status.ok()) {
      throw std::runtime_error(status.ToString());
    }
    record.stall_seconds += SecondsSince(start);
  }
  optimizer_.Step();
  record.loss = loss.item<double>();
  return record;
}

void Run::Save(const RunPosition& progress) {
  cairn::SaveOptions options;
  options.streams = {stream_};
  auto save = checkpointer_->Save(progress.step, state_.Capture(progress), options);
  if (save.ok()) {
    saves_.push_back(*save);
    return;
  }
  all_saved_ = false;
  Complain("save refused step=" + std::to_string(progress.step) + ": " + save.status().ToString());
}

void Run::RecordEndedSaves() {
  while (!saves_.empty()) {
    const cairn::SaveHandle& oldest = saves_.front();
    const cairn::SaveStats stats = oldest.stats();
    if (stats.phase != SavePhase::kDurable && stats.phase != SavePhase::kFailed) return;
    all_saved_ = all_saved_ && stats.phase == SavePhase::kDurable;
    report_.saves.push_back({stats, oldest.status()});
    saves_.pop_front();
  }
}

bool Run::Go() {
  report_.samples = data_.size;
  report_.threads = IntraOpThreads();
  RunPosition progress = Begin();
  Sampler sampler(data_.size, progress.data);
  while (progress.step < flags_.steps) {
    const auto start = Clock::now();
    StepRecord record = Step(sampler, progress.step + 1);
    progress = {.step = record.step, .data = sampler.position()};
    if (checkpointer_ != nullptr && (progress.step % flags_.every == 0 || progress.step == flags_.steps)) {
      const auto before = Clock::now();
      Save(progress);
      record.stall_seconds += SecondsSince(before);
    }
    RecordEndedSaves();
    record.seconds = SecondsSince(start);
    report_.steps.push_back(record);
    std::ostringstream line;
    line.precision(9);  // Enough to tell any two floats apart.
    line << "step=" << record.step << " loss=" << record.loss;
    line.precision(4);
    line << " seconds=" << record.seconds << " stall=" << record.stall_seconds;
    Say(line.str());
    if (!std::isfinite(record.loss)) throw std::runtime_error("the loss is no number any more: training has diverged");
  }
  if (checkpointer_ != nullptr) {
    // Its status is the first failed save's, which the event callback has told of already.
    all_saved_ = checkpointer_->Drain().ok() && all_saved_;
    RecordEndedSaves();
    report_.checkpointer = checkpointer_->stats();
  }
  report_.weights_digest = Digest(model_.parameters);
  Say("done step=" + std::to_string(progress.step) + " weights_crc64=" + report_.weights_digest);
  if (!flags_.report.empty()) WriteReport(flags_, report_);
  return all_saved_;
}

}  // namespace

bool Train(Flags flags) { return Run(std::move(flags)).Go(); }

}  // namespace cairn::trainer
