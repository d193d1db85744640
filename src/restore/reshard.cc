#include "restore/reshard.h"

#include <algorithm>
#include <tuple>

#include "restore/overlap.h"

namespace cairn {
namespace {

std::uint64_t Extent(const Box& box, std::size_t d) { return static_cast<std::uint64_t>(box.end[d] - box.begin[d]); }

bool Share(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    if (std::max(a.begin[d], b.begin[d]) >= std::min(a.end[d], b.end[d])) return false;
  }
  return true;
}

// The number of different begins along a dimension.
std::size_t CountCuts(const std::vector<SavedPiece>& pieces, std::size_t d) {
  std::vector<std::int64_t> begins;
  begins.reserve(pieces.size());
  for (const SavedPiece& piece : pieces) begins.push_back(piece.box.begin[d]);
  std::ranges::sort(begins);
  return static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
}

}  // namespace

bool Box::empty() const {
  for (std::size_t d = 0; d < begin.size(); ++d) {
    if (begin[d] >= end[d]) return true;
  }
  return false;
}

std::uint64_t Box::elements() const {
  if (empty()) return 0;
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < begin.size(); ++d) count *= Extent(*this, d);
  return count;
}

Box BoxOf(const std::vector<std::int64_t>& shape, const std::optional<TensorPart>& part) {
  Box box{.begin = part ? part->offset : std::vector<std::int64_t>(shape.size(), 0), .end = shape};
  for (std::size_t d = 0; d < shape.size(); ++d) box.end[d] += box.begin[d];
  return box;
}

Box Intersect(const Box& a, const Box& b) {
  Box box = a;
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    box.begin[d] = std::max(a.begin[d], b.begin[d]);
    box.end[d] = std::max(box.begin[d], std::min(a.end[d], b.end[d]));
  }
  return box;
}

std::uint64_t RowShape::Reach(std::size_t level) const {
  std::uint64_t reach = size;
  for (; level < levels.size(); ++level) reach += (levels[level].count - 1) * levels[level].from;
  return reach;
}

SharedRows FindSharedRows(const Box& from, const Box& to) {
  const Box shared = Intersect(from, to);
  if (shared.empty()) return {};
  SharedRows rows{.shape = {.size = 1, .levels = {}}};
  std::vector<RowShape::Level> levels;  // Innermost first.
  RowShape::Level step{.count = 1, .from = 1, .to = 1};
  for (std::size_t d = shared.begin.size(); d-- > 0;) {
    const std::uint64_t count = Extent(shared, d);
    rows.from += step.from * static_cast<std::uint64_t>(shared.begin[d] - from.begin[d]);
    rows.to += step.to * static_cast<std::uint64_t>(shared.begin[d] - to.begin[d]);
    // A contiguous continuation extends the row or the inner level.
    if (levels.empty() && step.from == rows.shape.size && step.to == rows.shape.size) {
      rows.shape.size *= count;
    } else if (!levels.empty() && step.from == levels.back().count * levels.back().from &&
               step.to == levels.back().count * levels.back().to) {
      levels.back().count *= count;
    } else if (count > 1) {
      levels.push_back({.count = count, .from = step.from, .to = step.to});
    }
    step.from *= Extent(from, d);
    step.to *= Extent(to, d);
  }
  rows.shape.levels.assign(levels.rbegin(), levels.rend());
  return rows;
}

PieceSet::PieceSet(std::vector<SavedPiece> pieces) : pieces_(std::move(pieces)) {
  std::erase_if(pieces_, [](const SavedPiece& piece) { return piece.box.empty(); });
  if (pieces_.empty()) return;
  std::ranges::stable_sort(pieces_, [](const SavedPiece& a, const SavedPiece& b) {
    return std::tie(a.box.begin, a.box.end) < std::tie(b.box.begin, b.box.end);
  });
  pieces_.erase(std::unique(pieces_.begin(), pieces_.end(),
                            [](const SavedPiece& a, const SavedPiece& b) { return a.box == b.box; }),
                pieces_.end());
  const std::size_t dimensions = pieces_.front().box.begin.size();
  if (dimensions == 0) return;

  std::size_t most = 0;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::size_t cuts = CountCuts(pieces_, d);
    if (cuts > most) std::tie(most, along_) = std::pair(cuts, d);
  }
  std::ranges::stable_sort(
      pieces_, [this](const SavedPiece& a, const SavedPiece& b) { return a.box.begin[along_] < b.box.begin[along_]; });
  for (const SavedPiece& piece : pieces_) {
    const std::int64_t end = piece.box.end[along_];
    reach_.push_back(reach_.empty() ? end : std::max(reach_.back(), end));
  }
  if (const auto overlap = FindOverlap(pieces_)) overlap_.emplace(pieces_[overlap->first], pieces_[overlap->second]);
}

std::vector<const SavedPiece*> PieceSet::Touching(const Box& box) const {
  std::vector<const SavedPiece*> touching;
  if (box.empty()) return touching;
  if (reach_.empty()) {  // A scalar: at most one piece.
    for (const SavedPiece& piece : pieces_) touching.push_back(&piece);
    return touching;
  }
  const auto first = std::upper_bound(reach_.begin(), reach_.end(), box.begin[along_]) - reach_.begin();
  for (auto it = pieces_.begin() + first; it != pieces_.end() && it->box.begin[along_] < box.end[along_]; ++it) {
    if (Share(it->box, box)) touching.push_back(&*it);
  }
  return touching;
}

}  // namespace cairn
