#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "advice/layouts.h"
#include "cairn/status.h"

namespace cairn {

/// How fast a training was that PCcheck (ASPLOS 2025) was measured with on A100s.
struct PublishedPace {
  double iteration_seconds = 0;   ///< Without checkpoints.
  std::uint64_t state_bytes = 0;  ///< Of a checkpoint, as the paper gives it. 0: it does not.
  std::string source;             ///< Of the iteration time.
};

/// A model that the systems which Cairn is compared with were measured with.
struct PublishedModel {
  std::string name;
  /// In fp32, with the optimizer's moments, as torch.optim keeps them.
  Model model;
  /// How many it has, as published; 0: unknown. The model's own are those of its shapes.
  std::int64_t published_parameters = 0;
  std::optional<PublishedPace> pace;
};

/// The model of this name, or one that also goes by it. InvalidArgument names all.
[[nodiscard]] Result<PublishedModel> FindPublishedModel(std::string_view name);
/// In the order of models.json.
[[nodiscard]] std::vector<std::string> PublishedModelNames();

}  // namespace cairn
