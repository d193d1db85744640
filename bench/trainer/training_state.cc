#include "training_state.h"

#include <array>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <variant>

#include "cairn/torch.h"
#include "device.h"

namespace cairn::trainer {
namespace {

constexpr std::array kMustAgree = {"model", "sizes", "data", "optimizer", "precision"};
constexpr std::array kShouldAgree = {"device", "threads", "batch", "accumulate", "learning_rate", "schedule", "clip"};

constexpr const char* kInexact = ": the resumed run will not be bit-exact";

void Check(const cairn::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

std::string ToText(const cairn::Value& value) {
  std::ostringstream text;
  std::visit(
      [&](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::nullptr_t>) {
          text << "null";
        } else if constexpr (std::is_same_v<T, cairn::Json>) {
          text << held.text;
        } else {
          text << std::boolalpha << held;
        }
      },
      value);
  return text.str();
}

const cairn::Value& Find(const cairn::Values& values, const std::string& name) {
  const auto at = values.find(name);
  if (at == values.end())
    throw std::runtime_error("the checkpoint has no value \"" + name + "\": was it written by cairn_train?");
  return at->second;
}

std::uint64_t FindCount(const cairn::Values& values, const std::string& name) {
  const cairn::Value& value = Find(values, name);
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr)
    throw std::runtime_error("checkpoint value \"" + name + "\": expected a number, found " + ToText(value));
  return static_cast<std::uint64_t>(*number);
}

/// Describes how the checkpoint's value differs from the run's; nullopt if they are equal.
std::optional<std::string> Difference(const char* name, const cairn::Values& checkpoint, const cairn::Values& run) {
  const std::string theirs = ToText(Find(checkpoint, name));
  const std::string ours = ToText(Find(run, name));
  if (theirs == ours) return std::nullopt;
  return std::string("the checkpoint's ") + name + " is \"" + theirs + "\", this run's \"" + ours + "\"";
}

std::string SizesText(const Flags& flags) {
  std::string text;
  for (const auto& [name, size] : flags.sizes) text += (text.empty() ? "" : " ") + name + "=" + std::to_string(size);
  return text;
}

}  // namespace

TrainingState::TrainingState(const Flags& flags, int ranks, const std::string& data, const Model& model,
                             const std::vector<NamedTensor>& optimizer) {
  for (const auto* group : {&model.parameters, &model.buffers, &optimizer}) {
    for (const NamedTensor& item : *group) Check(cairn::Add(state_, item.name, item.tensor));
  }
  Check(state_.Set("model", flags.model));
  Check(state_.Set("sizes", SizesText(flags)));
  Check(state_.Set("data", data));
  Check(state_.Set("optimizer", flags.optimizer));
  Check(state_.Set("precision", flags.precision));
  Check(state_.Set("device", flags.device));
  Check(state_.Set("threads", std::int64_t{IntraOpThreads()}));
  Check(state_.Set("batch", static_cast<std::int64_t>(flags.batch)));
  // Of all ranks: the samples of a step are then the same.
  Check(state_.Set("accumulate", static_cast<std::int64_t>(flags.accumulate) * ranks));
  Check(state_.Set("ranks", std::int64_t{ranks}));
  Check(state_.Set("learning_rate", flags.learning_rate.value()));
  Check(state_.Set("schedule", flags.schedule.ToText()));
  Check(state_.Set("clip", flags.clip_norm));
}

const cairn::State& TrainingState::Capture(const RunPosition& progress) {
  Check(state_.Set("step", static_cast<std::int64_t>(progress.step)));
  Check(state_.Set("epoch", static_cast<std::int64_t>(progress.data.epoch)));
  Check(state_.Set("position", static_cast<std::int64_t>(progress.data.position)));
  Check(state_.Set("shuffle_seed", static_cast<std::int64_t>(progress.data.shuffle_seed)));
  return state_;
}

RunPosition TrainingState::PositionIn(const cairn::Values& values) {
  return {.step = FindCount(values, "step"),
          .data = {.shuffle_seed = FindCount(values, "shuffle_seed"),
                   .epoch = FindCount(values, "epoch"),
                   .position = FindCount(values, "position")}};
}

std::vector<std::string> TrainingState::Compare(const cairn::Values& values) const {
  for (const char* name : kMustAgree) {
    if (const auto difference = Difference(name, values, state_.values())) throw std::runtime_error(*difference);
  }
  std::vector<std::string> warnings;
  for (const char* name : kShouldAgree) {
    if (auto difference = Difference(name, values, state_.values())) {
      warnings.push_back(*std::move(difference) += kInexact);
    }
  }
  // The order of summation: two gradients have only one.
  const bool ranks_known = values.contains("ranks");
  if (ranks_known && FindCount(state_.values(), "accumulate") > 2) {
    if (auto difference = Difference("ranks", values, state_.values())) {
      warnings.push_back(*std::move(difference) += kInexact);
    }
  }
  return warnings;
}

cairn::Replicated TrainingState::Replicated() const {
  cairn::Replicated all{.tensors = cairn::TensorNames(state_), .rank0_tensors = {}, .identical_values = {}};
  for (const char* name : kMustAgree) all.identical_values.emplace_back(name, ToText(Find(state_.values(), name)));
  for (const char* name : kShouldAgree) all.identical_values.emplace_back(name, ToText(Find(state_.values(), name)));
  return all;
}

}  // namespace cairn::trainer
