#include "bench/harness/run.h"

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/emulation/disk_profile.h"
#include "bench/harness/accounting.h"
#include "bench/harness/journal.h"
#include "bench/harness/prepare.h"
#include "bench/harness/products.h"
#include "bench/harness/restore_check.h"
#include "bench/harness/trainer_compute.h"
#include "bench/harness/training_state.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

// A directory of the run's own, removed with all it holds. Null where it resumes in the given one.
Result<std::unique_ptr<TempDir>> MakeDirectory(const Flags& flags, const std::string& in) {
  try {
    return flags.resume ? nullptr : std::make_unique<TempDir>(in);
  } catch (const std::system_error& error) {
    return ErrnoStatus(error.code().value(), "making a directory in " + in);
  }
}

std::uint64_t PdSsdRate(const Flags& flags) {
  return static_cast<std::uint64_t>(static_cast<double>(kPdSsdBytesPerSecond) / flags.dilation);
}

Result<std::unique_ptr<Gpu>> MakeGpu(const Flags& flags) {
  if (flags.device == "emulated") return EmulateGpu(flags.pcie_bytes_per_second);
  Result<std::unique_ptr<Gpu>> opened = OpenCudaGpu();
  const bool emulate = flags.device == "auto" && opened.status().code() == StatusCode::kUnsupported;
  if (emulate) return EmulateGpu(flags.pcie_bytes_per_second);
  if (opened.ok() && flags.dilation != 1) {
    return Error(StatusCode::kInvalidArgument, "--dilation {}: expected 1, as a GPU's link keeps its rate",
                 flags.dilation);
  }
  return opened;
}

Status CheckRoom(const Flags& flags, const StrategyKind& kind) {
  CAIRN_ASSIGN_OR_RETURN(const Resources free, FreeResources(flags.directory));
  const auto copies = static_cast<std::uint64_t>(kind.checkpoints_on_disk(flags.in_flight));
  return CheckFits({.disk_bytes = copies * flags.state_bytes,
                    .memory_bytes = (flags.device == "cuda" ? 0 : flags.state_bytes) +
                                    kind.host_bytes(flags.state_bytes, flags.host_memory_bytes, flags.in_flight)},
                   free, flags.state_bytes, flags.scale);
}

// Measures an iteration of the trainer without saves, and its optimizer step.
Status MeasureTrainer(Run& run, TrainerCompute& trainer) {
  constexpr int kWarmup = 2;
  constexpr int kTimed = 5;
  std::vector<double> iterations;
  std::vector<double> updates;
  for (int i = 0; i < kWarmup + kTimed; ++i) {
    const LoopClock clock = RealClock();
    CAIRN_RETURN_IF_ERROR(trainer.Forward(0));
    const double updating = clock.now();
    CAIRN_RETURN_IF_ERROR(trainer.Update(0));
    if (i < kWarmup) continue;
    updates.push_back(clock.now() - updating);
    iterations.push_back(clock.now());
  }
  run.timed = kTimed;
  run.loop.iteration_seconds = run.flags.iteration_seconds = Quantile(iterations, 0.5);
  run.loop.update_seconds = Quantile(updates, 0.5);
  return {};
}

// Of Measure: either `trainer` or `paced`, the state of a paced training, is null.
struct Trained {
  TrainingState* paced = nullptr;
  TrainerCompute* trainer = nullptr;
  // Of a paced training; null if it waits instead.
  Products* products = nullptr;
};

std::unique_ptr<Compute> MakePace(const Trained& trained, const LoopSettings& settings, const LoopClock& clock) {
  if (trained.paced == nullptr) return nullptr;
  if (trained.products == nullptr) return std::make_unique<PacedCompute>(settings, clock, *trained.paced);
  return std::make_unique<ProductsCompute>(settings, clock, *trained.paced, *trained.products);
}

// Prepares what is not measured, then runs the loop.
Status Measure(Run& run, const Trained& trained, Workplace& workplace, const Journal* journal) {
  TrainingState* const paced = trained.paced;
  TrainerCompute* const trainer = trained.trainer;
  LoopClock clock = RealClock();
  SaveLog log;
  workplace.durable = [&](std::uint64_t step) {
    log.Durable(step, clock.now());
    if (journal != nullptr) journal->Durable(step);
  };
  CAIRN_ASSIGN_OR_RETURN(const auto strategy, run.kind.open(workplace));
  std::uint64_t begun = 0;
  if (trainer != nullptr) {
    CAIRN_RETURN_IF_ERROR(MeasureTrainer(run, *trainer));
  } else {
    CAIRN_ASSIGN_OR_RETURN(begun, Begin(*strategy, *paced, run.flags.resume));
    run.loop.first = begun + 1;
    if (run.loop.update_seconds == 0) {
      CAIRN_ASSIGN_OR_RETURN(run.loop.update_seconds, MeasureUpdate(*paced, begun, run.flags.iteration_seconds));
    }
  }
  if (begun == 0) {
    CAIRN_ASSIGN_OR_RETURN(run.copy_rate, MeasureCopies(workplace.state, workplace.gpu));
  }
  ResetPeak();
  const Usage before = UsageSoFar(strategy->process());
  clock = RealClock();
  const std::unique_ptr<Compute> pace = MakePace(trained, run.loop, clock);
  Compute& compute = trainer != nullptr ? *trainer : *pace;
  CAIRN_ASSIGN_OR_RETURN(run.record, RunLoop(run.loop, clock, compute, *strategy, log, journal));
  run.used = UsageSoFar(strategy->process());
  run.used.bytes_written -= before.bytes_written;
  run.used.cpu_seconds -= before.cpu_seconds;
  return {};
}

}  // namespace

Status CheckRoom(const Flags& flags) {
  CAIRN_ASSIGN_OR_RETURN(const StrategyKind kind, FindStrategy(flags.strategy));
  return CheckRoom(flags, kind);
}

Result<Run> Train(const Flags& flags) {
  Run run;
  run.flags = flags;
  CAIRN_ASSIGN_OR_RETURN(run.kind, FindStrategy(flags.strategy));
  std::unique_ptr<TrainerCompute> trainer;
  if (flags.compute == "trainer") {
    CAIRN_ASSIGN_OR_RETURN(
        trainer,
        OpenTrainer({.model = flags.model, .sizes = flags.sizes, .batch = flags.batch, .sequence = flags.sequence}));
    run.flags.state_bytes = trainer->state().bytes();
    run.flags.tensors = trainer->state().tensors().size();
    if (flags.host_memory_bytes == 0) run.flags.host_memory_bytes = 2 * AlignUp(run.flags.state_bytes, kBlock);
  }
  if (!flags.resume) CAIRN_RETURN_IF_ERROR(CheckRoom(run.flags, run.kind));
  std::unique_ptr<Journal> journal;
  if (!flags.journal.empty()) {
    CAIRN_ASSIGN_OR_RETURN(journal, Journal::Open(flags.journal));
  }
  std::unique_ptr<DiskLimit> limit;
  if (flags.disk == "pd-ssd") {
    CAIRN_ASSIGN_OR_RETURN(limit, DiskLimit::Make(flags.directory, PdSsdRate(flags)));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto directory, MakeDirectory(flags, flags.directory));
  std::unique_ptr<TempDir> memory;
  if (flags.strategy == "cairn-memory") {
    CAIRN_ASSIGN_OR_RETURN(memory, MakeDirectory(flags, flags.memory));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, MakeGpu(flags));
  run.flags.device = gpu->emulated() ? "emulated" : "cuda";
  std::unique_ptr<Products> products;
  if (flags.compute == "products") {
    CAIRN_ASSIGN_OR_RETURN(products, OpenProducts(!gpu->emulated()));
  }
  std::unique_ptr<TrainingState> paced;
  if (trainer == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(paced, flags.state.empty() ? TrainingState::Make(*gpu, flags.state_bytes, flags.tensors)
                                                      : TrainingState::Make(*gpu, flags.state));
  }
  run.loop = {.iteration_seconds = flags.iteration_seconds,
              .update_seconds = flags.update_seconds,
              .every = flags.strategy == "none" ? 0 : flags.every,
              .again = flags.again,
              .iterations = flags.iterations,
              .warmup = flags.warmup};
  Workplace workplace{.directory = flags.resume ? flags.directory : directory->path(),
                      .memory = memory != nullptr ? memory->path() : flags.memory,
                      .state = trainer != nullptr ? trainer->state() : *paced,
                      .gpu = *gpu,
                      .in_flight = flags.in_flight,
                      .host_memory_bytes = run.flags.host_memory_bytes,
                      .chunk_bytes = flags.chunk_bytes,
                      .writers = flags.writers,
                      .queue_depth = flags.queue_depth,
                      .disk = nullptr,
                      .network_bytes_per_second = flags.network_bytes_per_second,
                      .durable = {}};
  if (flags.disk_bytes_per_second > 0) {
    // Of writes, as DiskPace is.
    workplace.disk = RateLimitedDisk::Make(flags.disk_bytes_per_second, RateLimitedDisk::Limits::kWrites);
  }
  CAIRN_RETURN_IF_ERROR(Measure(run, {.paced = paced.get(), .trainer = trainer.get(), .products = products.get()},
                                workplace, journal.get()));
  // The last step was saved: the state is still as it was then.
  if (trainer != nullptr) CAIRN_RETURN_IF_ERROR(trainer->Keep(flags.iterations));

  limit = nullptr;
  workplace.disk = nullptr;
  workplace.durable = [](std::uint64_t) {};
  if (!run.record.saves.empty()) {
    run.restored = run.record.saves.back().step;
    CAIRN_RETURN_IF_ERROR(CheckRestored(run.kind, workplace, run.restored));
  }
  return run;
}

}  // namespace cairn::bench
