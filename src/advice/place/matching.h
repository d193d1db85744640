#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace cairn {

/// The cost of an edge that no matching may use.
inline constexpr double kNoEdge = std::numeric_limits<double>::infinity();

struct Matching {
  /// The cost of its most expensive edge.
  double bottleneck = 0;
  /// The column of each row.
  std::vector<std::size_t> columns;
};

/// Finds bottleneck perfect matchings: each row has a column of its own, and the most expensive edge is as cheap as it
/// can be. Keeps its memory from one call to the next.
class BottleneckMatcher {
 public:
  /// `costs`: size * size of them, row by row. None if every perfect matching needs a kNoEdge.
  [[nodiscard]] std::optional<Matching> Match(std::span<const double> costs, std::size_t size);
  /// The same; only the bottleneck, kNoEdge if there is no matching.
  [[nodiscard]] double Bottleneck(std::span<const double> costs, std::size_t size);

 private:
  /// No perfect matching is cheaper: each row and each column needs its cheapest edge.
  double LowerBound();
  /// Whether there is a perfect matching of edges up to `limit`; it is then in columns_. Hopcroft and Karp's algorithm.
  bool Perfect(double limit);
  bool FindLevels(double limit);
  bool Augment(std::size_t row, double limit);

  std::span<const double> costs_;
  std::size_t size_ = 0;
  std::vector<double> cheapest_;
  std::vector<double> limits_;
  std::vector<std::size_t> columns_;  // Of rows.
  std::vector<std::size_t> rows_;     // Of columns.
  std::vector<std::size_t> levels_;   // Of rows.
  std::vector<std::size_t> queue_;
};

}  // namespace cairn
