#include "advice/place/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cairn {

StagePath CheapestPath(std::span<const double> cross, std::size_t stages) {
  // Held and Karp: the cheapest path through a set of stages that ends at one of them, for each set and end.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const std::size_t sets = std::size_t{1} << stages;
  std::vector<double> cost(sets * stages, kNever);
  std::vector<std::size_t> before(sets * stages, stages);
  for (std::size_t end = 0; end < stages; ++end) cost[(std::size_t{1} << end) * stages + end] = 0;
  for (std::size_t set = 1; set < sets; ++set) {
    for (std::size_t end = 0; end < stages; ++end) {
      const double here = cost[set * stages + end];
      if (here == kNever) continue;
      for (std::size_t next = 0; next < stages; ++next) {
        if ((set >> next & 1) != 0) continue;
        const std::size_t at = (set | std::size_t{1} << next) * stages + next;
        const double there = here + cross[end * stages + next];
        if (there >= cost[at]) continue;
        cost[at] = there;
        before[at] = end;
      }
    }
  }
  const std::size_t all = sets - 1;
  const auto whole = cost.begin() + static_cast<std::ptrdiff_t>(all * stages);
  std::size_t end = static_cast<std::size_t>(std::min_element(whole, cost.end()) - whole);
  StagePath path{.seconds = cost[all * stages + end]};
  for (std::size_t set = all; set != 0;) {
    path.order.push_back(end);
    const std::size_t previous = before[set * stages + end];
    set &= ~(std::size_t{1} << end);
    end = previous;
  }
  std::reverse(path.order.begin(), path.order.end());
  return path;
}

PlacementModel::PlacementModel(const Network& network, const PlacementJob& job)
    : devices_(network.devices()), stages_(job.stages), reduce_(devices_ * devices_), send_(devices_ * devices_) {
  const double part = job.gradient_bytes * static_cast<double>(stages_) / static_cast<double>(devices_);
  for (std::size_t i = 0; i < devices_; ++i) {
    for (std::size_t j = 0; j < devices_; ++j) {
      reduce_[i * devices_ + j] = i == j ? 0 : 2 * network.Seconds(i, j, part);
      send_[i * devices_ + j] = network.Seconds(i, j, job.activation_bytes);
    }
  }
}

double PlacementModel::Data(std::span<const std::size_t> group) const {
  double most = 0;
  for (const std::size_t i : group) {
    double sum = 0;
    for (const std::size_t j : group) sum += reduce_[i * devices_ + j];
    most = std::max(most, sum);
  }
  return most;
}

std::span<const double> PlacementModel::Edges(std::span<const std::size_t> from, std::span<const std::size_t> to) {
  edges_.clear();
  for (const std::size_t i : from) {
    for (const std::size_t j : to) edges_.push_back(Send(i, j));
  }
  return edges_;
}

double PlacementModel::Cross(std::span<const std::size_t> from, std::span<const std::size_t> to) {
  return matcher_.Bottleneck(Edges(from, to), from.size());
}

double PlacementModel::Near(std::span<const std::size_t> from, std::span<const std::size_t> to) {
  double rows = 0;
  nearest_.assign(to.size(), kNoEdge);
  for (const std::size_t i : from) {
    double nearest = kNoEdge;
    for (std::size_t column = 0; column < to.size(); ++column) {
      const double cost = Send(i, to[column]);
      nearest = std::min(nearest, cost);
      nearest_[column] = std::min(nearest_[column], cost);
    }
    rows += nearest * nearest;
  }
  double columns = 0;
  for (const double nearest : nearest_) columns += nearest * nearest;
  return std::sqrt(std::max(rows, columns) / static_cast<double>(from.size()));
}

StagePath PlacementModel::Path(const Groups& groups) {
  std::vector<double> cross(stages_ * stages_);
  for (std::size_t p = 0; p < stages_; ++p) {
    for (std::size_t q = 0; q < p; ++q) cross[p * stages_ + q] = cross[q * stages_ + p] = Cross(groups[p], groups[q]);
  }
  return CheapestPath(cross, stages_);
}

PlacementCost PlacementModel::Cost(const Groups& groups) {
  PlacementCost cost{.pipeline = Path(groups).seconds};
  for (const std::vector<std::size_t>& group : groups) cost.data = std::max(cost.data, Data(group));
  return cost;
}

Groups PlacementModel::InOrder(const Groups& groups) {
  Groups ordered;
  for (const std::size_t stage : Path(groups).order) {
    if (ordered.empty()) {
      ordered.push_back(groups[stage]);
      continue;
    }
    const std::vector<std::size_t>& from = ordered.back();
    const Matching matching = matcher_.Match(Edges(from, groups[stage]), from.size()).value();
    std::vector<std::size_t> to;
    for (const std::size_t column : matching.columns) to.push_back(groups[stage][column]);
    ordered.push_back(std::move(to));
  }
  return ordered;
}

Groups Contiguous(std::size_t devices, std::size_t stages) {
  Groups groups(stages);
  for (std::size_t device = 0; device < devices; ++device) groups[device / (devices / stages)].push_back(device);
  return groups;
}

Groups OnePerBlock(std::size_t devices, std::size_t stages) {
  Groups groups(stages);
  for (std::size_t device = 0; device < devices; ++device) groups[device % stages].push_back(device);
  return groups;
}

}  // namespace cairn
