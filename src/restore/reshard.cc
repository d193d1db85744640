#include "restore/reshard.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cairn {
namespace {

std::uint64_t Extent(const Box& box, std::size_t d) { return static_cast<std::uint64_t>(box.end[d] - box.begin[d]); }

bool Share(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    if (std::max(a.begin[d], b.begin[d]) >= std::min(a.end[d], b.end[d])) return false;
  }
  return true;
}

// In how many places along a dimension pieces begin.
std::size_t CountCuts(const std::vector<SavedPiece>& pieces, std::size_t d) {
  std::vector<std::int64_t> begins;
  begins.reserve(pieces.size());
  for (const SavedPiece& piece : pieces) begins.push_back(piece.box.begin[d]);
  std::sort(begins.begin(), begins.end());
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

std::vector<ElementRun> SharedRuns(const Box& from, const Box& to) {
  const Box shared = Intersect(from, to);
  if (shared.empty()) return {};
  const std::size_t dimensions = shared.begin.size();
  // Dimension k is the outermost whose inner ones are full in both boxes: up to there a run goes on without a gap.
  ElementRun run{.count = 1};
  std::size_t k = dimensions;
  while (k > 0) {
    --k;
    run.count *= Extent(shared, k);
    if (Extent(from, k) != Extent(shared, k) || Extent(to, k) != Extent(shared, k)) break;
  }
  // Elements from one index to the next, and where the first shared element is.
  std::vector<ElementRun> steps(dimensions);
  ElementRun step{.from = 1, .to = 1};
  for (std::size_t d = dimensions; d-- > 0;) {
    steps[d] = step;
    run.from += step.from * static_cast<std::uint64_t>(shared.begin[d] - from.begin[d]);
    run.to += step.to * static_cast<std::uint64_t>(shared.begin[d] - to.begin[d]);
    step.from *= Extent(from, d);
    step.to *= Extent(to, d);
  }
  std::vector<ElementRun> runs;
  runs.reserve(shared.elements() / run.count);
  std::vector<std::uint64_t> index(k, 0);
  while (true) {
    runs.push_back(run);
    std::size_t d = k;
    for (; d > 0; --d) {
      run.from += steps[d - 1].from;
      run.to += steps[d - 1].to;
      if (++index[d - 1] < Extent(shared, d - 1)) break;
      run.from -= steps[d - 1].from * Extent(shared, d - 1);
      run.to -= steps[d - 1].to * Extent(shared, d - 1);
      index[d - 1] = 0;
    }
    if (d == 0) return runs;
  }
}

PieceSet::PieceSet(std::vector<SavedPiece> pieces) : pieces_(std::move(pieces)) {
  std::erase_if(pieces_, [](const SavedPiece& piece) { return piece.box.empty(); });
  if (pieces_.empty()) return;
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const SavedPiece& a, const SavedPiece& b) {
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
  std::stable_sort(pieces_.begin(), pieces_.end(), [this](const SavedPiece& a, const SavedPiece& b) {
    return a.box.begin[along_] < b.box.begin[along_];
  });
  for (const SavedPiece& piece : pieces_) {
    const std::int64_t end = piece.box.end[along_];
    reach_.push_back(reach_.empty() ? end : std::max(reach_.back(), end));
  }
  FindOverlap();
}

// A sweep along the dimension with the most cuts: each piece meets those that have not ended where it begins.
void PieceSet::FindOverlap() {
  std::vector<const SavedPiece*> open;
  for (const SavedPiece& piece : pieces_) {
    std::erase_if(open, [&](const SavedPiece* p) { return p->box.end[along_] <= piece.box.begin[along_]; });
    for (const SavedPiece* other : open) {
      if (!Share(other->box, piece.box)) continue;
      overlap_.emplace(*other, piece);
      return;
    }
    open.push_back(&piece);
  }
}

std::vector<const SavedPiece*> PieceSet::Touching(const Box& box) const {
  std::vector<const SavedPiece*> touching;
  if (box.empty()) return touching;
  if (reach_.empty()) {  // No dimensions: at most one piece, the whole.
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
