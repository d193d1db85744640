#include "bench/harness/trainer_compute.h"

#include <ATen/Context.h>

#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/guarded.h"
#include "data/dataset.h"
#include "device.h"
#include "models/model.h"
#include "optimizer.h"
#include "sampler.h"

namespace cairn::bench {
namespace {

constexpr double kLearningRate = 1e-4;

class LibtorchTraining : public TrainerCompute, private DeviceState {
 public:
  explicit LibtorchTraining(const TrainerSettings& settings)
      : batch_(settings.batch),
        device_(trainer::PrepareDevice("cpu", 0)),
        data_(trainer::OpenDataset({.what = "synthetic",
                                    .kinds = trainer::LearnsFrom(settings.model),
                                    .sequence = settings.sequence,
                                    .batch = settings.batch})),
        model_(Make(settings, data_, device_)),
        optimizer_({.kind = trainer::OptimizerKind::kAdamW}, model_.parameters),
        sampler_(data_.size, {.shuffle_seed = 1}, data_.order) {
    for (const auto* group : {&model_.parameters, &model_.buffers, &optimizer_.state()}) {
      for (const trainer::NamedTensor& item : *group) {
        Add(item.name, {static_cast<std::byte*>(item.tensor.data_ptr()), item.tensor.nbytes()});
      }
    }
  }

  [[nodiscard]] DeviceState& state() override { return *this; }
  Status Forward(double /*began*/) override {
    return Guarded("trainer", StatusCode::kInternal, [this] {
      model_.loss(data_.read(sampler_.Next(batch_))).backward();
      optimizer_.Accumulate();
    });
  }
  Status Update(std::uint64_t /*step*/) override {
    return Guarded("trainer", StatusCode::kInternal, [this] {
      optimizer_.Step(kLearningRate);
      if (model_.advance) model_.advance();
    });
  }
  Status Keep(std::uint64_t step) override {
    return Guarded("trainer", StatusCode::kResourceExhausted, [this, step] {
      kept_.resize(bytes());
      for (const Tensor& tensor : tensors()) {
        std::memcpy(kept_.data() + tensor.begin, tensor.layout.base, tensor.layout.bytes);
      }
      kept_step_ = step;
    });
  }
  [[nodiscard]] Result<bool> Is(std::uint64_t step) const override {
    if (kept_step_ != step) return false;
    for (const Tensor& tensor : tensors()) {
      if (std::memcmp(kept_.data() + tensor.begin, tensor.layout.base, tensor.layout.bytes) != 0) return false;
    }
    return true;
  }

  [[nodiscard]] Status Clear() const override {
    for (const Tensor& tensor : tensors()) std::memset(tensor.layout.base, 0, tensor.layout.bytes);
    return {};
  }

 private:
  static trainer::Model Make(const TrainerSettings& settings, const trainer::Dataset& data, at::Device device) {
    at::manual_seed(1);
    return trainer::MakeModel({.name = settings.model, .data = data.shape, .sizes = settings.sizes, .device = device});
  }

  const std::uint64_t batch_;
  const at::Device device_;
  const trainer::Dataset data_;
  const trainer::Model model_;
  trainer::Optimizer optimizer_;
  trainer::Sampler sampler_;
  std::vector<std::byte> kept_;
  std::optional<std::uint64_t> kept_step_;
};

}  // namespace

Result<std::unique_ptr<TrainerCompute>> OpenTrainer(const TrainerSettings& settings) {
  std::unique_ptr<TrainerCompute> opened;
  Status status =
      Guarded("trainer", StatusCode::kInvalidArgument, [&] { opened = std::make_unique<LibtorchTraining>(settings); });
  if (!status.ok()) return status;
  return opened;
}

}  // namespace cairn::bench
