#include "advice/place/matching.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr std::size_t kFree = std::numeric_limits<std::size_t>::max();

}  // namespace

double BottleneckMatcher::LowerBound() {
  double bound = 0;
  cheapest_.assign(size_, kNoEdge);
  for (std::size_t row = 0; row < size_; ++row) {
    double cheapest = kNoEdge;
    for (std::size_t column = 0; column < size_; ++column) {
      const double cost = costs_[row * size_ + column];
      cheapest = std::min(cheapest, cost);
      cheapest_[column] = std::min(cheapest_[column], cost);
    }
    bound = std::max(bound, cheapest);
  }
  return std::max(bound, *std::ranges::max_element(cheapest_));
}

double BottleneckMatcher::Bottleneck(std::span<const double> costs, std::size_t size) {
  costs_ = costs;
  size_ = size;
  if (size == 0) return 0;
  const double bound = LowerBound();
  if (bound == kNoEdge) return kNoEdge;
  if (Perfect(bound)) return bound;
  limits_.clear();
  for (const double cost : costs) {
    if (cost > bound && cost != kNoEdge) limits_.push_back(cost);
  }
  std::ranges::sort(limits_);
  limits_.erase(std::unique(limits_.begin(), limits_.end()), limits_.end());
  const auto found =
      std::partition_point(limits_.begin(), limits_.end(), [&](double limit) { return !Perfect(limit); });
  if (found == limits_.end()) return kNoEdge;
  return *found;
}

std::optional<Matching> BottleneckMatcher::Match(std::span<const double> costs, std::size_t size) {
  const double bottleneck = Bottleneck(costs, size);
  if (bottleneck == kNoEdge) return std::nullopt;
  columns_.resize(size);
  if (size != 0) Perfect(bottleneck);
  return Matching{.bottleneck = bottleneck, .columns = columns_};
}

bool BottleneckMatcher::Perfect(double limit) {
  columns_.assign(size_, kFree);
  rows_.assign(size_, kFree);
  std::size_t matched = 0;
  while (FindLevels(limit)) {
    const std::size_t before = matched;
    for (std::size_t row = 0; row < size_; ++row) {
      if (columns_[row] == kFree && Augment(row, limit)) ++matched;
    }
    if (matched == before) return false;
  }
  return matched == size_;
}

bool BottleneckMatcher::FindLevels(double limit) {
  levels_.assign(size_, kFree);
  queue_.clear();
  for (std::size_t row = 0; row < size_; ++row) {
    if (columns_[row] != kFree) continue;
    levels_[row] = 0;
    queue_.push_back(row);
  }
  bool augmentable = false;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const std::size_t row = queue_[i];
    for (std::size_t column = 0; column < size_; ++column) {
      if (costs_[row * size_ + column] > limit) continue;
      const std::size_t next = rows_[column];
      if (next == kFree) {
        augmentable = true;
      } else if (levels_[next] == kFree) {
        levels_[next] = levels_[row] + 1;
        queue_.push_back(next);
      }
    }
  }
  return augmentable;
}

bool BottleneckMatcher::Augment(std::size_t row, double limit) {
  for (std::size_t column = 0; column < size_; ++column) {
    if (costs_[row * size_ + column] > limit) continue;
    const std::size_t next = rows_[column];
    if (next != kFree && (levels_[next] != levels_[row] + 1 || !Augment(next, limit))) continue;
    columns_[row] = column;
    rows_[column] = row;
    return true;
  }
  levels_[row] = kFree;  // A dead end for the others, too.
  return false;
}

}  // namespace cairn
