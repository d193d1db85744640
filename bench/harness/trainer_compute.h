#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "bench/emulation/device_state.h"
#include "bench/harness/training_loop.h"
#include "cairn/status.h"

namespace cairn::bench {

/// What the libtorch trainer is to train: a model of bench/trainer on synthetic data, with AdamW.
struct TrainerSettings {
  std::string model;
  std::map<std::string, std::int64_t> sizes;  ///< Those that differ from the published ones.
  std::uint64_t batch = 4;
  std::int64_t sequence = 64;  ///< Of text.
};

/// A real training: forward, backward and optimizer of a model, on the CPU. Its state is the model's and the
/// optimizer's. [interface]
class TrainerCompute : public Compute {
 public:
  [[nodiscard]] virtual DeviceState& state() = 0;
  /// Keeps a copy of the state as it is, that of `step`: what state().Is compares with.
  virtual Status Keep(std::uint64_t step) = 0;
};
/// InvalidArgument for an unknown model or size. Unsupported in a build without libtorch.
[[nodiscard]] Result<std::unique_ptr<TrainerCompute>> OpenTrainer(const TrainerSettings& settings);

}  // namespace cairn::bench
