#include "train.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "cairn/cairn.h"
#include "cairn/torch.h"
#include "console.h"
#include "data/dataset.h"
#include "device.h"
#include "models/model.h"
#include "optimizer.h"
#include "pace.h"
#include "ranks/local_device.h"
#include "ranks/ranks.h"
#include "ranks/share.h"
#include "report.h"
#include "sampler.h"
#include "stop_request.h"
#include "training_state.h"
#include "weights.h"

namespace cairn::trainer {
namespace {

// For saves in flight, once training has failed.
constexpr std::chrono::seconds kLastWrites{2};

template <typename T>
T Take(cairn::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(result).value();
}

/// Called on the engine's thread.
void PrintEvent(const cairn::Event& event) {
  const std::string step = " step=" + std::to_string(event.step.value_or(0));
  if (event.kind == EventKind::kSaveKept) PrintLine("kept" + step);
  if (event.kind == EventKind::kSaveDurable) PrintLine("durable" + step);
  if (event.kind == EventKind::kSaveFailed) PrintError("save failed" + step + ": " + event.status.ToString());
  if (event.kind == EventKind::kLog && event.severity != Severity::kInfo) PrintError(event.message);
}

std::unique_ptr<cairn::Checkpointer> OpenCheckpointer(const Flags& flags, const Ranks* ranks) {
  if (flags.checkpoint_dir.empty()) return nullptr;
  cairn::Options options{.root = flags.checkpoint_dir,
                         .memory_root = flags.memory_root,
                         .disk_every = flags.disk_every,
                         .keep_last = flags.keep,
                         .max_in_flight = flags.in_flight,
                         .on_event = PrintEvent,
                         .restore_from = flags.restore_from,
                         .host_memory_bytes = flags.host_memory_bytes};
  if (!flags.mirror.empty()) {
    options.mirrors = {{.target = flags.mirror, .every = flags.mirror_every, .keep_last = flags.mirror_keep}};
  }
  if (ranks != nullptr) {
    options.group = ranks->MakeGroup(flags.checkpoint_dir);
    options.group_timeout = ranks->patience();
  }
  return Take(cairn::Checkpointer::Open(options));
}

/// Null for a process alone.
std::unique_ptr<Ranks> MeetRanks(const Flags& flags, const RankEnvironment& environment, at::Device device) {
  if (environment.world == 1 && !flags.prove_backend) return nullptr;
  if (environment.master_address.empty()) {
    throw std::runtime_error("--prove-backend: expected the environment of torchrun, found no WORLD_SIZE");
  }
  const std::string backend = !flags.backend.empty() ? flags.backend : device.is_cpu() ? "gloo" : "nccl";
  return std::make_unique<Ranks>(environment, backend, device, std::chrono::seconds(flags.peer_timeout_seconds));
}

at::ScalarType TypeOf(const Flags& flags) { return flags.precision == "bf16" ? at::kBFloat16 : at::kFloat; }

/// Integer tensors keep their type.
at::Tensor Converted(const at::Tensor& tensor, at::Device device, at::ScalarType type) {
  return tensor.to(device, tensor.is_floating_point() ? type : tensor.scalar_type());
}

std::chrono::nanoseconds InNanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

std::string Rounded(double seconds) {
  std::ostringstream text;
  text.precision(3);
  text << seconds << " s";
  return text.str();
}

class Run {
 public:
  Run(Flags given, const RankEnvironment& environment)
      : flags_(WithDefaults(std::move(given))),
        stop_(InNanoseconds(flags_.grace_seconds), [this](const char* signal) { return Announce(signal); }),
        device_(UseLocalDevice(PrepareDevice(flags_.device, flags_.threads), environment.local_rank)),
        ranks_(MeetRanks(flags_, environment, device_)),
        rank_(environment.rank),
        world_(environment.world),
        data_(OpenDataset({.what = flags_.data,
                           .kinds = LearnsFrom(flags_.model),
                           .sequence = flags_.sequence,
                           .batch = flags_.batch})),
        model_(SeedAndMake()),
        optimizer_(OptimizerConfigOf(flags_), model_.parameters),
        state_(flags_, world_, data_.name, model_, optimizer_.state()),
        stream_(CurrentStream(device_)),
        checkpointer_(OpenCheckpointer(flags_, ranks_.get())) {}

  /// Runs until the end. An error of one of several ranks ends the process.
  Outcome Go();

 private:
  static Flags WithDefaults(Flags flags);
  static OptimizerConfig OptimizerConfigOf(const Flags& flags);
  Outcome Train();
  /// Ends the process, after an error with which this rank cannot go on.
  [[noreturn]] void EndWithOthers(const std::exception& error);
  Model SeedAndMake();
  /// Called at the first signal, on the thread that handles it: prints how the run will end. Returns false if it ends
  /// at once.
  bool Announce(const char* signal) const;
  /// Restores the newest checkpoint with --resume; otherwise starts anew.
  RunPosition Begin();
  StepRecord Step(Sampler& sampler, std::uint64_t step);
  /// Adds up what the ranks have: the gradients, and the loss, which is returned. Learns whether any rank is to stop.
  at::Tensor SumOverRanks(const at::Tensor& loss);
  void Save(const RunPosition& progress);
  void RecordEndedSaves();
  /// Returns whether a durable checkpoint of the current step exists. Makes one, if necessary, within the grace period.
  bool SaveLast(const RunPosition& progress);

  const Flags flags_;
  Pace pace_;
  StopRequest stop_;  // Must come before every member that starts threads.
  const at::Device device_;
  const std::unique_ptr<Ranks> ranks_;  // Null for a process alone.
  const int rank_;
  const int world_;
  const Dataset data_;
  const Model model_;
  Optimizer optimizer_;
  TrainingState state_;
  const cairn::Stream stream_;
  Report report_;
  bool all_saved_ = true;
  bool stopping_ = false;  // After the current step, on all ranks.
  // Last, so that it drains before anything that it reads is destroyed.
  std::unique_ptr<cairn::Checkpointer> checkpointer_;
  std::deque<cairn::SaveHandle> saves_;
  std::optional<cairn::SaveHandle> last_save_;
};

Flags Run::WithDefaults(Flags flags) {
  if (!flags.learning_rate) flags.learning_rate = flags.optimizer == "sgd" ? 0.01 : 1e-4;
  if (!flags.init_from.empty()) flags.sizes = SizesFrom(flags.init_from, flags.model, flags.sizes);
  return flags;
}

OptimizerConfig Run::OptimizerConfigOf(const Flags& flags) {
  return {.kind = flags.optimizer == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
          .clip_norm = flags.clip_norm,
          .weights = TypeOf(flags)};
}

Model Run::SeedAndMake() {
  if (ranks_ != nullptr) {
    Settings settings = SharedFlags(flags_);
    settings.emplace_back("--data", data_.name);
    ranks_->ExpectAlike(settings);
  }
  at::manual_seed(flags_.seed);
  Model model = MakeModel({.name = flags_.model, .data = data_.shape, .sizes = flags_.sizes, .device = device_});
  if (!flags_.init_from.empty()) LoadWeights(flags_.init_from, model);
  if (ranks_ != nullptr) {
    if (world_ > 1 && !model.buffers.empty()) {
      throw std::runtime_error("--model " + flags_.model +
                               ": its memory follows the batches of one process: expected 1 rank, found " +
                               std::to_string(world_));
    }
    std::vector<at::Tensor> weights;
    for (const NamedTensor& parameter : model.parameters) weights.push_back(parameter.tensor);
    ranks_->Broadcast(weights);
  }
  // The optimizer converts the parameters itself, because it keeps them in fp32.
  for (const NamedTensor& buffer : model.buffers) {
    const at::Tensor converted = Converted(buffer.tensor, device_, TypeOf(flags_));
    if (!converted.is_same(buffer.tensor)) buffer.tensor.set_data(converted);
  }
  CheckMemory(device_, "gradients and optimizer of " + flags_.model,
              Optimizer::BytesFor(OptimizerConfigOf(flags_), model.parameters));
  return model;
}

bool Run::Announce(const char* signal) const {
  const std::string begin = std::string(signal) + ": ";
  const std::string grace = Rounded(flags_.grace_seconds);
  const Phase phase = pace_.phase;
  if (phase == Phase::kNoStep) {
    PrintLine(begin + "ending at once: no step is running");
    return false;
  }
  if (phase == Phase::kDraining) {
    PrintLine(begin + "ending once all saves are durable, within --grace " + grace);
    return true;
  }
  if (flags_.checkpoint_dir.empty()) {
    PrintLine(begin + "ending after this step; nothing is saved without --checkpoint-dir");
    return true;
  }
  const double step = pace_.StepSecondsLeft();
  if (step + pace_.save_seconds > flags_.grace_seconds) {
    PrintLine(begin + "ending at once: no checkpoint is possible within --grace " + grace + ": this step needs about " +
              Rounded(step) + " more and a save " + Rounded(pace_.save_seconds));
    return false;
  }
  PrintLine(begin + "ending after a checkpoint of this step, within --grace " + grace);
  return true;
}

RunPosition Run::Begin() {
  const RunPosition fresh{.data = {.shuffle_seed = flags_.seed}};
  if (checkpointer_ == nullptr) return fresh;
  if (!flags_.resume) {
    if (const auto existing = Take(checkpointer_->List()); !existing.empty()) {
      throw std::runtime_error(flags_.checkpoint_dir + " already holds " + std::to_string(existing.size()) +
                               " checkpoints, the newest of step " + std::to_string(existing.back().step) +
                               ": use --resume or another --checkpoint-dir");
    }
    return fresh;
  }
  const auto details = checkpointer_->Inspect(cairn::Latest());
  if (details.status().code() == StatusCode::kNotFound) {
    PrintLine("fresh start: no checkpoint under " + flags_.checkpoint_dir);
    return fresh;
  }
  const cairn::CheckpointDetails found = Take(details);
  for (const std::string& warning : state_.Compare(found.values.at(0))) PrintError("warning: " + warning);
  cairn::RestoreOptions options;
  options.streams = {stream_};
  const cairn::Restored restored = Take(checkpointer_->Restore(cairn::Latest(), state_.target(), options));
  report_.resumed_from = restored.step;
  PrintLine("resumed step=" + std::to_string(restored.step));
  return TrainingState::PositionIn(found.values.at(0));  // Which a rank that was not there then has, too.
}

StepRecord Run::Step(Sampler& sampler, std::uint64_t step) {
  StepRecord record{.step = step,
                    .learning_rate = flags_.learning_rate.value() * flags_.schedule.Factor(step),
                    .saves_in_flight = saves_.size()};
  const auto start = Clock::now();
  const auto batches = static_cast<double>(flags_.accumulate) * world_;
  at::Tensor loss;  // The mean over the batches.
  for (std::uint64_t i = 0; i < flags_.accumulate; ++i) {
    const Share share_of_data = NextShare(sampler, flags_.batch, rank_, world_);
    Batch batch = data_.read(share_of_data.samples);
    SeedGenerators(device_, SeedOf(share_of_data.from));
    for (auto& [name, tensor] : batch) tensor = Converted(tensor, device_, TypeOf(flags_));
    const at::Tensor share = model_.loss(batch).div(batches);
    share.backward();
    optimizer_.Accumulate();
    loss = loss.defined() ? loss.add(share.detach()) : share.detach();
  }
  record.model_seconds = SecondsSince(start);
  stopping_ = stop_.at().has_value();
  if (ranks_ != nullptr) {
    loss = SumOverRanks(loss);
    record.reduce_seconds = SecondsSince(start) - record.model_seconds;
  }
  if (checkpointer_ != nullptr) {
    // The save of an earlier step may still be reading what the step overwrites.
    const auto before = Clock::now();
    if (const cairn::Status status = checkpointer_->Fence(stream_); !status.ok()) {
      throw std::runtime_error(status.ToString());
    }
    record.fence_seconds = SecondsSince(before);
    record.stall_seconds = record.fence_seconds;
  }
  optimizer_.Step(record.learning_rate);
  if (model_.advance) model_.advance();
  record.loss = loss.item<double>();
  return record;
}

at::Tensor Run::SumOverRanks(const at::Tensor& loss) {
  std::vector<at::Tensor> sums = optimizer_.Gradients();
  const at::Tensor total = loss.to(at::kFloat).reshape({1});
  const at::Tensor stops = at::full({1}, stopping_ ? 1 : 0, total.options());
  sums.insert(sums.end(), {total, stops});
  ranks_->Sum(sums);
  stopping_ = stops.item<float>() > 0;
  return total.to(loss.scalar_type()).reshape({});
}

void Run::Save(const RunPosition& progress) {
  cairn::SaveOptions options;
  options.streams = {stream_};
  if (world_ > 1) options.replicated = state_.Replicated();
  auto save = checkpointer_->Save(progress.step, state_.Capture(progress), options);
  if (save.ok()) {
    saves_.push_back(*save);
    last_save_ = *save;
    return;
  }
  all_saved_ = false;
  if (world_ > 1) static_cast<void>(checkpointer_->GiveUp(progress.step, save.status()));
  PrintError("save refused step=" + std::to_string(progress.step) + ": " + save.status().ToString());
}

void Run::RecordEndedSaves() {
  while (!saves_.empty()) {
    const cairn::SaveHandle& oldest = saves_.front();
    const cairn::SaveStats stats = oldest.stats();
    const cairn::Status status = oldest.status();
    // One that is kept, and left out of the disk, has ended as it should.
    const bool left_out = stats.phase == SavePhase::kKept && status.code() == StatusCode::kCancelled;
    if (stats.phase != SavePhase::kDurable && status.ok()) return;
    const bool durable = stats.phase == SavePhase::kDurable;
    all_saved_ = all_saved_ && (durable || left_out);
    report_.saves.push_back({stats, status});
    if (durable) pace_.save_seconds = std::chrono::duration<double>(stats.durable).count();
    saves_.pop_front();
  }
}

bool Run::SaveLast(const RunPosition& progress) {
  if (checkpointer_ == nullptr) return false;
  const Deadline grace = Deadline::At(stop_.at().value_or(Clock::now()) + InNanoseconds(flags_.grace_seconds));
  const auto saved = [&] { return last_save_ && last_save_->step() == progress.step; };
  cairn::Status status = checkpointer_->WaitForPlace(grace);
  if (status.ok() && !saved()) Save(progress);
  if (!status.ok() && !saved() && world_ > 1) static_cast<void>(checkpointer_->GiveUp(progress.step, status));
  if (status.ok() && saved()) status = last_save_->WaitDurable(grace);
  if (status.ok() && saved()) return true;
  if (!status.ok()) PrintError("no last checkpoint: " + status.ToString());
  for (const cairn::SaveHandle& save : saves_) save.Cancel();  // The process ends without waiting for them.
  return false;
}

Outcome Run::Go() {
  try {
    if (flags_.prove_backend) {
      ranks_->Prove();
      PrintLine("backend ok: " + std::to_string(world_) + (world_ > 1 ? " ranks" : " rank"));
      return Outcome::kTrained;
    }
    const Outcome outcome = Train();
    checkpointer_.reset();
    if (ranks_ != nullptr) ranks_->Barrier();  // Rank 0 may have the store that others still need.
    return outcome;
  } catch (const std::exception& error) {
    if (ranks_ != nullptr) EndWithOthers(error);
    throw;
  }
}

void Run::EndWithOthers(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string why = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  ranks_->Leave(why);
  PrintError(why);
  if (checkpointer_ != nullptr) static_cast<void>(checkpointer_->Drain(Deadline::In(kLastWrites)));
  // A save that needs a dead rank, and an operation of the backend, would go on until --peer-timeout. Neither is
  // missed: a process may be killed at any moment.
  ::_exit(1);
}

Outcome Run::Train() {
  report_.samples = data_.size;
  report_.sequence = data_.shape.sequence;
  report_.threads = IntraOpThreads();
  report_.ranks = world_;
  RunPosition progress = Begin();
  Sampler sampler(data_.size, progress.data, data_.order);
  const PhaseGuard phase(pace_);
  while (progress.step < flags_.steps && !stopping_) {
    const auto start = Clock::now();
    pace_.step_begun = start.time_since_epoch().count();
    pace_.phase = Phase::kStepping;
    StepRecord record = Step(sampler, progress.step + 1);
    // Checked before a save, so that no run resumes from a diverged state.
    if (!std::isfinite(record.loss)) {
      throw std::runtime_error("step " + std::to_string(record.step) +
                               ": the loss is not finite: training has diverged");
    }
    progress = {.step = record.step, .data = sampler.position()};
    if (checkpointer_ != nullptr && (progress.step % flags_.every == 0 || progress.step == flags_.steps)) {
      const auto before = Clock::now();
      Save(progress);
      record.stall_seconds += SecondsSince(before);
    }
    RecordEndedSaves();
    record.seconds = SecondsSince(start);
    pace_.step_seconds = record.seconds;
    report_.steps.push_back(record);
    std::ostringstream line;
    line.precision(9);  // Enough to tell any two floats apart.
    line << "step=" << record.step << " loss=" << record.loss;
    line.precision(4);
    line << " seconds=" << record.seconds << " stall=" << record.stall_seconds;
    PrintProgress(line.str());
  }
  pace_.phase = Phase::kDraining;
  const bool stopped = progress.step < flags_.steps;
  if (stopped) all_saved_ = SaveLast(progress) && all_saved_;
  if (checkpointer_ != nullptr) {
    // Its status is the first failed save's, which PrintEvent has already reported.
    all_saved_ = checkpointer_->Drain().ok() && all_saved_;
    RecordEndedSaves();
    report_.checkpointer = checkpointer_->stats();
  }
  report_.stopped_by = !stopped ? nullptr : stop_.at() ? stop_.signal() : "another rank";
  report_.weights_digest = Digest(model_.parameters);
  PrintLine((stopped ? "stopped step=" : "done step=") + std::to_string(progress.step) +
            " weights_crc64=" + report_.weights_digest);
  if (!flags_.report.empty() && rank_ == 0) WriteReport(flags_, report_);
  if (!all_saved_) return Outcome::kSaveFailed;
  return stopped ? Outcome::kStopped : Outcome::kTrained;
}

}  // namespace

Outcome Train(Flags flags) {
  const RankEnvironment environment = ReadRankEnvironment();
  if (environment.world > 1) PrintAsRank(environment.rank);
  return Run(std::move(flags), environment).Go();
}

}  // namespace cairn::trainer
