#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::bench {

/// A training that PCcheck (ASPLOS 2025) was measured with on an A100: what a paced loop needs to imitate it.
struct Shape {
  std::string_view name;
  std::uint64_t state_bytes = 0;  ///< Of a checkpoint, as the paper gives it.
  double iteration_seconds = 0;   ///< Without checkpoints.
  int in_flight = 0;              ///< What the authors' artifact sets for PCcheck.
  std::uint64_t tensors = 0;      ///< Of the model and its optimizer.
  std::string_view source;        ///< Of the iteration time.
};

/// None if no shape has that name.
[[nodiscard]] std::optional<Shape> FindShape(std::string_view name);
/// All names, for messages.
[[nodiscard]] std::string ShapeNames();

}  // namespace cairn::bench
