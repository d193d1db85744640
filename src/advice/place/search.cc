#include "advice/place/search.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace cairn {
namespace {

constexpr std::size_t kPopulation = 12;
constexpr std::size_t kCuts = 5;
/// Of a child's exchanges, in evaluations.
constexpr std::size_t kMovesPerChild = 1'500;

/// Groups with what their cost is made of.
struct Candidate {
  Groups groups;
  std::vector<double> data;   // Of each stage.
  std::vector<double> cross;  // Of each two stages.
  std::vector<double> near;   // The same, smooth.
  double total = 0;
  /// A smooth stand-in for the total, whose maxima are means instead: most exchanges change nothing in the total,
  /// because other devices are as slow.
  double smooth = 0;

  [[nodiscard]] bool Better(const Candidate& other) const {
    return total != other.total ? total < other.total : smooth < other.smooth;
  }
};

class Search {
 public:
  Search(const Network& network, const PlacementJob& job, const SearchOptions& options)
      : devices_(network.devices()),
        stages_(job.stages),
        model_(network, job),
        random_(options.seed),
        options_(options) {}

  Candidate Run(const std::optional<Groups>& current) {
    Populate(current);
    while (stages_ > 1 && devices_ > stages_ && evaluations_ < options_.evaluations) Breed();
    return *Best();
  }

 private:
  // The standard library's distributions differ between implementations.
  std::size_t Below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  void Shuffle(std::vector<std::size_t>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[Below(i)]);
  }

  void Update(Candidate& of, std::size_t p) {
    of.data[p] = model_.Data(of.groups[p]);
    for (std::size_t q = 0; q < stages_; ++q) {
      if (q == p) continue;
      of.near[p * stages_ + q] = of.near[q * stages_ + p] = model_.Near(of.groups[p], of.groups[q]);
    }
  }
  void UpdateCross(Candidate& of, std::size_t p) {
    for (std::size_t q = 0; q < stages_; ++q) {
      if (q != p) of.cross[p * stages_ + q] = of.cross[q * stages_ + p] = model_.Cross(of.groups[p], of.groups[q]);
    }
  }
  void Smooth(Candidate& of) {
    ++evaluations_;
    double squares = 0;
    for (const double one : of.data) squares += one * one;
    of.smooth = std::sqrt(squares / static_cast<double>(stages_)) + 2 * CheapestPath(of.near, stages_).seconds;
  }
  void Total(Candidate& of) {
    ++evaluations_;
    of.total = *std::ranges::max_element(of.data) + 2 * CheapestPath(of.cross, stages_).seconds;
  }

  Candidate Made(Groups groups) {
    Candidate made{.groups = std::move(groups)};
    made.data.resize(stages_);
    made.cross.resize(stages_ * stages_);
    made.near.resize(stages_ * stages_);
    for (std::size_t p = 0; p < stages_; ++p) {
      Update(made, p);
      UpdateCross(made, p);
    }
    Smooth(made);
    Total(made);
    return made;
  }

  /// From the device to the nearest that has not been visited, and so on.
  std::vector<std::size_t> Neighbourhoods(std::size_t from) const {
    std::vector<std::size_t> order{from};
    std::vector<bool> visited(devices_);
    visited[from] = true;
    while (order.size() < devices_) {
      std::size_t nearest = devices_;
      for (std::size_t to = 0; to < devices_; ++to) {
        if (visited[to]) continue;
        if (nearest == devices_ || model_.Send(order.back(), to) < model_.Send(order.back(), nearest)) nearest = to;
      }
      visited[nearest] = true;
      order.push_back(nearest);
    }
    return order;
  }

  static Groups Renamed(Groups groups, const std::vector<std::size_t>& order) {
    for (std::vector<std::size_t>& group : groups) {
      for (std::size_t& device : group) device = order[device];
    }
    return groups;
  }

  void Populate(const std::optional<Groups>& current) {
    const Groups contiguous = Contiguous(devices_, stages_);
    const Groups per_block = OnePerBlock(devices_, stages_);
    if (options_.simple_orders) {
      population_.push_back(Made(contiguous));
      population_.push_back(Made(per_block));
    }
    if (current) population_.push_back(Made(*current));
    for (int i = 0; i < 2; ++i) {
      const std::vector<std::size_t> order = Neighbourhoods(Below(devices_));
      population_.push_back(Made(Renamed(contiguous, order)));
      population_.push_back(Made(Renamed(per_block, order)));
    }
    std::vector<std::size_t> order(devices_);
    for (std::size_t i = 0; i < devices_; ++i) order[i] = i;
    while (population_.size() < kPopulation) {
      Shuffle(order);
      population_.push_back(Made(Renamed(contiguous, order)));
    }
  }

  std::vector<Candidate>::iterator Best() {
    return std::ranges::min_element(population_, [](const Candidate& a, const Candidate& b) { return a.Better(b); });
  }

  std::vector<std::size_t> StagesOf(const Groups& groups) const {
    std::vector<std::size_t> stages(devices_);
    for (std::size_t p = 0; p < stages_; ++p) {
      for (const std::size_t device : groups[p]) stages[device] = p;
    }
    return stages;
  }

  /// The stages of `other` with the names of the stages of `one` with which they share most devices.
  std::vector<std::size_t> Aligned(const std::vector<std::size_t>& one, std::vector<std::size_t> other) const {
    std::vector<std::size_t> shared(stages_ * stages_);
    for (std::size_t device = 0; device < devices_; ++device) ++shared[other[device] * stages_ + one[device]];
    std::vector<std::size_t> names(stages_, stages_);
    std::vector<bool> used(stages_);
    for (std::size_t round = 0; round < stages_; ++round) {
      std::size_t best = stages_ * stages_;
      for (std::size_t at = 0; at < stages_ * stages_; ++at) {
        if (names[at / stages_] != stages_ || used[at % stages_]) continue;
        if (best == stages_ * stages_ || shared[at] > shared[best]) best = at;
      }
      names[best / stages_] = best % stages_;
      used[best % stages_] = true;
    }
    for (std::size_t& stage : other) stage = names[stage];
    return other;
  }

  Groups Child(const Candidate& mother, const Candidate& father) {
    std::vector<std::size_t> stages = StagesOf(mother.groups);
    const std::vector<std::size_t> others = Aligned(stages, StagesOf(father.groups));
    std::vector<std::size_t> cuts;
    for (std::size_t i = 0; i < kCuts; ++i) cuts.push_back(Below(devices_ + 1));
    std::ranges::sort(cuts);
    for (std::size_t device = 0; device < devices_; ++device) {
      const auto before = std::upper_bound(cuts.begin(), cuts.end(), device) - cuts.begin();
      if (before % 2 != 0) stages[device] = others[device];
    }
    return Balanced(stages);
  }

  Groups Balanced(const std::vector<std::size_t>& stages) {
    Groups groups(stages_);
    for (std::size_t device = 0; device < devices_; ++device) groups[stages[device]].push_back(device);
    const std::size_t size = devices_ / stages_;
    std::vector<std::size_t> surplus;
    for (std::vector<std::size_t>& group : groups) {
      while (group.size() > size) {
        std::swap(group[Below(group.size())], group.back());
        surplus.push_back(group.back());
        group.pop_back();
      }
    }
    Shuffle(surplus);
    for (std::vector<std::size_t>& group : groups) {
      while (group.size() < size) {
        group.push_back(surplus.back());
        surplus.pop_back();
      }
    }
    return groups;
  }

  struct Move {
    std::size_t p = 0, q = 0;        // Two stages,
    std::size_t in_p = 0, in_q = 0;  // and a device of each.
  };

  /// Exchanges the two devices if that makes the smooth cost less.
  bool ExchangeSmooth(Candidate& of, const Move& move) {
    Candidate next = of;
    std::swap(next.groups[move.p][move.in_p], next.groups[move.q][move.in_q]);
    Update(next, move.p);
    Update(next, move.q);
    Smooth(next);
    if (next.smooth >= of.smooth * (1 - 1e-12)) return false;  // Rounding is no progress.
    of = std::move(next);
    return true;
  }

  /// Exchanges the two devices if that is better.
  bool Exchange(Candidate& of, const Move& move) {
    Candidate next = of;
    std::swap(next.groups[move.p][move.in_p], next.groups[move.q][move.in_q]);
    // Many exchanges end here: what a stage costs alone is already too much.
    if (std::max(model_.Data(next.groups[move.p]), model_.Data(next.groups[move.q])) > of.total) return false;
    for (const std::size_t stage : {move.p, move.q}) {
      Update(next, stage);
      UpdateCross(next, stage);
    }
    Smooth(next);
    Total(next);
    if (!next.Better(of)) return false;
    of = std::move(next);
    return true;
  }

  /// Tries all exchanges in a random order, again and again until none helps, or many have been tried.
  void Improve(Candidate& of, bool (Search::*exchange)(Candidate&, const Move&)) {
    const std::size_t size = devices_ / stages_;
    const std::size_t end = std::min(evaluations_ + kMovesPerChild, options_.evaluations);
    std::vector<std::size_t> moves;  // A place in one stage, and one in a later stage.
    for (std::size_t a = 0; a < devices_; ++a) {
      for (std::size_t b = (a / size + 1) * size; b < devices_; ++b) moves.push_back(a * devices_ + b);
    }
    for (bool helped = true; helped;) {
      helped = false;
      Shuffle(moves);
      for (const std::size_t move : moves) {
        if (evaluations_ >= end) return;
        const std::size_t a = move / devices_;
        const std::size_t b = move % devices_;
        helped = (this->*exchange)(of, {a / size, b / size, a % size, b % size}) || helped;
      }
    }
  }

  void Breed() {
    const std::size_t mother = Below(population_.size());
    const std::size_t father = (mother + 1 + Below(population_.size() - 1)) % population_.size();
    Candidate child = Made(Child(population_[mother], population_[father]));
    Improve(child, &Search::ExchangeSmooth);
    child = Made(child.groups);
    Improve(child, &Search::Exchange);
    for (const Candidate& one : population_) {
      if (one.total == child.total && one.smooth == child.smooth) return;
    }
    // The greatest in the order in which the better one is less.
    const auto worst =
        std::ranges::max_element(population_, [](const Candidate& a, const Candidate& b) { return a.Better(b); });
    if (child.Better(*worst)) *worst = std::move(child);
  }

  const std::size_t devices_;
  const std::size_t stages_;
  PlacementModel model_;
  std::mt19937_64 random_;
  const SearchOptions options_;
  std::size_t evaluations_ = 0;
  std::vector<Candidate> population_;
};

}  // namespace

FoundPlacement SearchPlacement(const Network& network, const PlacementJob& job, const SearchOptions& options,
                               const std::optional<Groups>& current) {
  Candidate best = Search(network, job, options).Run(current);
  PlacementCost cost = PlacementModel(network, job).Cost(best.groups);
  return {.groups = std::move(best.groups), .cost = cost};
}

}  // namespace cairn
