#include "bench/harness/shapes.h"

#include <array>

namespace cairn::bench {
namespace {

constexpr std::array kShapes{
    Shape{.name = "vgg16",
          .state_bytes = 1'100'000'000,
          .iteration_seconds = 0.0634,
          .in_flight = 4,
          .tensors = 64,
          .source = "the artifact's fig8_vgg16.csv: 15.77 iterations a second"},
    Shape{.name = "transformer-xl",
          .state_bytes = 2'700'000'000,
          .iteration_seconds = 0.45,
          .in_flight = 4,
          .tensors = 660,
          .source = "estimated: batch 64, sequence 192, at 27,000 tokens a second"},
    Shape{.name = "bert",
          .state_bytes = 4'000'000'000,
          .iteration_seconds = 0.2,
          .in_flight = 4,
          .tensors = 1170,
          .source = "estimated: BERT-large on SQuAD, batch 3, at 15 sequences a second"},
    Shape{.name = "opt-1.3b",
          .state_bytes = 16'200'000'000,
          .iteration_seconds = 0.85,
          .in_flight = 2,
          .tensors = 1170,
          .source = "derived: 50 iterations take 1.17 times as long with CheckFreq, 1.9 times with GPM, on 0.4 GB/s"},
};

}  // namespace

std::optional<Shape> FindShape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape;
  }
  return std::nullopt;
}

std::string ShapeNames() {
  std::string names;
  for (const Shape& shape : kShapes) names += (names.empty() ? "" : ", ") + std::string(shape.name);
  return names;
}

}  // namespace cairn::bench
