#include "restore/overlap.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace cairn {
namespace {

using Ids = std::vector<std::uint32_t>;
using Pair = std::pair<std::uint32_t, std::uint32_t>;

constexpr std::size_t kFew = 8;  // So few boxes are compared in pairs.

// A box along one dimension: its rank among all begins, and how many boxes begin before its end. No two boxes have the
// same rank, so of two that overlap here exactly one begins within the other.
struct Interval {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

// The boxes along one dimension, and the order of their begins.
struct Dimension {
  std::vector<Interval> intervals;
  Ids order;
  // The number of pairs that overlap here.
  std::uint64_t overlaps = 0;
};

// A box's begin in one dimension, and its index among the boxes considered.
using Begin = std::pair<std::int64_t, std::uint32_t>;

std::vector<Begin> SortedBegins(std::span<const SavedPiece> pieces, const Ids& ids, std::size_t d) {
  std::vector<Begin> begins;
  begins.reserve(ids.size());
  for (const std::uint32_t i : ids) {
    begins.emplace_back(pieces[i].box.begin[d], static_cast<std::uint32_t>(begins.size()));
  }
  std::ranges::sort(begins);
  return begins;
}

// Streamed segment trees, nested, one for each dimension: A. Zomorodian and H. Edelsbrunner, Fast Software for Box
// Intersections (2002). Boxes are numbered by their begin in dimension 0.
class Search {
 public:
  explicit Search(std::vector<std::vector<Interval>> dimensions)
      : dimensions_(std::move(dimensions)), count_(static_cast<std::uint32_t>(dimensions_[0].size())) {}

  std::optional<Pair> Run() {
    Ids all(count_);
    std::iota(all.begin(), all.end(), 0U);
    return Find(all, all, {0, count_}, dimensions_.size() - 1);
  }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

 private:
  // Finds a box of `outer` and one of `inner` that begins within it in dimension d, at a begin in `range`, and that
  // overlaps it in the dimensions before d. In the dimensions after d all boxes overlap.
  std::optional<Pair> Find(const Ids& outer, const Ids& inner, Interval range, std::size_t d) {
    if (outer.empty() || inner.empty()) return {};
    if (d == 0) return Scan(outer, inner);
    if (std::min(outer.size(), inner.size()) <= kFew) return CompareAll(outer, inner, d);
    steps_ += outer.size() + inner.size();
    const std::vector<Interval>& intervals = dimensions_[d];
    Ids across;  // Spans the whole range.
    Ids within;  // Spans part of it.
    for (const std::uint32_t i : outer) {
      const auto [begin, end] = intervals[i];
      if (begin < range.begin && end >= range.end) {
        across.push_back(i);
      } else if (begin + 1 < range.end && end > range.begin) {
        within.push_back(i);
      }
    }
    if (auto found = Find(across, inner, {0, count_}, d - 1)) return found;
    if (auto found = Find(inner, across, {0, count_}, d - 1)) return found;
    if (within.empty()) return {};

    std::vector<std::uint32_t> begins;
    begins.reserve(inner.size());
    for (const std::uint32_t i : inner) begins.push_back(intervals[i].begin);
    const auto middle = begins.begin() + static_cast<std::ptrdiff_t>(begins.size() / 2);
    std::nth_element(begins.begin(), middle, begins.end());
    for (const Interval half : {Interval{range.begin, *middle}, Interval{*middle, range.end}}) {
      Ids there;
      std::ranges::copy_if(inner, std::back_inserter(there), [&](std::uint32_t i) {
        return intervals[i].begin >= half.begin && intervals[i].begin < half.end;
      });
      if (auto found = Find(within, there, half, d)) return found;
    }
    return {};
  }

  std::optional<Pair> Scan(const Ids& outer, const Ids& inner) {
    steps_ += outer.size() + inner.size();
    auto next = inner.begin();
    for (const std::uint32_t i : outer) {
      while (next != inner.end() && *next <= i) ++next;
      if (next == inner.end()) return {};
      if (*next < dimensions_[0][i].end) return Pair(i, *next);
    }
    return {};
  }

  std::optional<Pair> CompareAll(const Ids& outer, const Ids& inner, std::size_t d) {
    steps_ += outer.size() * inner.size();
    for (const std::uint32_t a : outer) {
      for (const std::uint32_t b : inner) {
        if (a != b && Overlap(a, b, d)) return Pair(a, b);
      }
    }
    return {};
  }

  [[nodiscard]] bool Overlap(std::uint32_t a, std::uint32_t b, std::size_t d) const {
    for (std::size_t k = 0; k <= d; ++k) {
      const Interval x = dimensions_[k][a];
      const Interval y = dimensions_[k][b];
      if (x.begin >= y.end || y.begin >= x.end) return false;
    }
    return true;
  }

  // By dimension, then by box.
  const std::vector<std::vector<Interval>> dimensions_;
  const std::uint32_t count_;
  std::uint64_t steps_ = 0;
};

class Finder {
 public:
  explicit Finder(std::span<const SavedPiece> pieces)
      : pieces_(pieces), splits_left_(kSplits * pieces.size() * (pieces[0].box.begin.size() + 1)) {}

  // Splits the boxes recursively at cuts that go through none of them: boxes of real checkpoints fall apart. Searches
  // those that do not.
  std::optional<Pair> Find(const Ids& ids) {
    if (ids.size() <= kFew) return CompareAll(ids);
    for (std::size_t d = 0; d < pieces_[0].box.begin.size() && splits_left_ >= ids.size(); ++d) {
      splits_left_ -= ids.size();
      steps_ += ids.size();
      const std::vector<Ids> groups = Split(ids, d);
      if (groups.size() < 2) continue;
      for (const Ids& group : groups) {
        if (auto found = Find(group)) return found;
      }
      return {};
    }
    return SearchAmong(ids);
  }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

 private:
  // How often, on average, a box may take part in a split in each dimension. A few levels are enough if halves fall
  // apart; hostile boxes split off one at a time.
  static constexpr std::uint64_t kSplits = 32;

  [[nodiscard]] std::vector<Ids> Split(const Ids& ids, std::size_t d) const {
    std::vector<Ids> groups;
    std::int64_t reach = std::numeric_limits<std::int64_t>::min();  // The largest end so far.
    for (const auto& [begin, k] : SortedBegins(pieces_, ids, d)) {
      if (begin >= reach) groups.emplace_back();
      groups.back().push_back(ids[k]);
      reach = std::max(reach, pieces_[ids[k]].box.end[d]);
    }
    return groups;
  }

  std::optional<Pair> CompareAll(const Ids& ids) {
    steps_ += ids.size() * ids.size();
    for (auto a = ids.begin(); a != ids.end(); ++a) {
      for (auto b = ids.begin(); b != a; ++b) {
        if (!Intersect(pieces_[*a].box, pieces_[*b].box).empty()) return Pair(*b, *a);
      }
    }
    return {};
  }

  std::optional<Pair> SearchAmong(const Ids& ids) {
    const std::uint64_t pairs = std::uint64_t{ids.size()} * (ids.size() - 1) / 2;
    std::vector<Dimension> cut;  // Dimensions in which all boxes overlap are useless.
    for (std::size_t d = 0; d < pieces_[0].box.begin.size(); ++d) {
      Dimension dimension = RankAlong(ids, d);
      if (dimension.overlaps < pairs) cut.push_back(std::move(dimension));
    }
    if (cut.empty()) return Pair(ids[0], ids[1]);
    // The search begins with the last: it has the fewest overlaps and leaves the least for the others.
    std::ranges::sort(cut, [](const Dimension& a, const Dimension& b) { return a.overlaps > b.overlaps; });
    const Ids numbered = std::move(cut[0].order);
    std::vector<std::vector<Interval>> dimensions(cut.size());
    for (std::size_t d = 0; d < cut.size(); ++d) {
      for (const std::uint32_t i : numbered) dimensions[d].push_back(cut[d].intervals[i]);
    }
    Search search(std::move(dimensions));
    const std::optional<Pair> found = search.Run();
    steps_ += search.steps();
    if (!found) return {};
    return Pair(ids[numbered[found->first]], ids[numbered[found->second]]);
  }

  [[nodiscard]] Dimension RankAlong(const Ids& ids, std::size_t d) const {
    const std::vector<Begin> begins = SortedBegins(pieces_, ids, d);
    Dimension dimension{.intervals = std::vector<Interval>(ids.size()), .order = {}};
    for (const auto& [begin, k] : begins) {
      const Begin behind(pieces_[ids[k]].box.end[d], 0);
      const auto end = std::lower_bound(begins.begin(), begins.end(), behind) - begins.begin();
      const auto rank = static_cast<std::uint32_t>(dimension.order.size());
      dimension.order.push_back(k);
      dimension.intervals[k] = {rank, static_cast<std::uint32_t>(end)};
      dimension.overlaps += static_cast<std::uint64_t>(end) - rank - 1;
    }
    return dimension;
  }

  const std::span<const SavedPiece> pieces_;
  std::uint64_t splits_left_;
  std::uint64_t steps_ = 0;
};

}  // namespace

std::optional<std::pair<std::size_t, std::size_t>> FindOverlap(std::span<const SavedPiece> pieces,
                                                               std::uint64_t* steps) {
  if (steps != nullptr) *steps = 0;
  if (pieces.empty()) return {};
  Ids all(pieces.size());
  std::iota(all.begin(), all.end(), 0U);
  Finder finder(pieces);
  const std::optional<Pair> found = finder.Find(all);
  if (steps != nullptr) *steps = finder.steps();
  if (!found) return {};
  return std::minmax({std::size_t{found->first}, std::size_t{found->second}});
}

}  // namespace cairn
