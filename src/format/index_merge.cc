#include "format/index_merge.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "format/index.h"

namespace cairn {
namespace {

constexpr char kRunVersion = 1;

// The contents of a run's entry.
struct RunPiece {
  std::string_view name;
  std::span<const std::int64_t> offset, shape;

  RunPiece(std::string_view of, const ShardTensor& tensor) : name(of) {
    if (!tensor.part) return;
    offset = tensor.part->offset;
    shape = tensor.shape;
  }
  [[nodiscard]] bool fits() const { return name.size() <= kMaxIndexNameBytes && BoxProblem(offset, shape).empty(); }
};

bool Precedes(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

bool Precedes(const RunPiece& a, const RunPiece& b) {
  if (const int order = a.name.compare(b.name); order != 0) return order < 0;
  return Precedes(a.offset, b.offset) || (!Precedes(b.offset, a.offset) && Precedes(a.shape, b.shape));
}

std::vector<RunPiece> PiecesOf(const ShardHeader& header) {
  std::vector<RunPiece> pieces;
  pieces.reserve(header.tensors.size() + header.aliases.size());
  std::unordered_map<std::string_view, const ShardTensor*> holders;
  for (const ShardTensor& tensor : header.tensors) {
    pieces.emplace_back(tensor.part ? tensor.part->logical_name : tensor.name, tensor);
    if (!header.aliases.empty()) holders.emplace(tensor.name, &tensor);
  }
  for (const auto& [alias, holder] : header.aliases) pieces.emplace_back(alias, *holders.at(holder));
  return pieces;
}

}  // namespace

std::string EncodeIndexRun(const ShardHeader& header) {
  std::vector<RunPiece> pieces = PiecesOf(header);
  std::ranges::sort(pieces, [](const RunPiece& a, const RunPiece& b) { return Precedes(a, b); });
  std::string run(1, kRunVersion);
  const RunPiece* before = nullptr;
  for (const RunPiece& piece : pieces) {
    if (!piece.fits()) return {};
    if (before != nullptr && !Precedes(*before, piece))
      continue;  // A duplicate: the same piece under two stored names.
    const std::string_view previous = before == nullptr ? std::string_view() : before->name;
    const auto differs = std::mismatch(previous.begin(), previous.end(), piece.name.begin(), piece.name.end()).first;
    AppendNextName(run, piece.name, static_cast<std::size_t>(differs - previous.begin()));
    AppendVarint(run, piece.shape.size());
    for (const auto list : {piece.offset, piece.shape}) {
      for (const std::int64_t number : list) AppendVarint(run, static_cast<std::uint64_t>(number));
    }
    before = &piece;
  }
  return run;
}

IndexRun::IndexRun(const std::string& run) : bytes_(std::as_bytes(std::span(run))) {
  broken_ = at_end_ = bytes_.Number() != static_cast<std::uint64_t>(kRunVersion);
  Next();
}

void IndexRun::Next() {
  if (at_end_) return;
  at_end_ = bytes_.empty();
  if (at_end_) return;
  broken_ = at_end_ = !Read();
}

bool IndexRun::Read() {
  const auto shared = ReadNextName(bytes_, name_);
  const auto dimensions = bytes_.Number();
  if (!shared || !dimensions || *dimensions > kMaxIndexDimensions) return false;
  shared_ = *shared;
  box_.clear();
  for (std::uint64_t i = 0; i < 2 * *dimensions; ++i) {
    const auto number = bytes_.Number();
    if (!number || *number > kMaxIndexExtent) return false;
    box_.push_back(static_cast<std::int64_t>(*number));
  }
  const std::span<const std::int64_t> box = box_;
  return BoxProblem(box.first(*dimensions), box.last(*dimensions)).empty();
}

IndexMerge::IndexMerge(std::span<const std::string> runs) {
  runs_.reserve(runs.size());
  for (const std::string& run : runs) {
    runs_.emplace_back(run);
    broken_ = broken_ || runs_.back().broken();
  }
  if (runs_.empty()) return;
  std::vector<Player> winners(2 * runs.size());
  for (std::uint32_t i = 0; i < runs.size(); ++i) winners[runs.size() + i] = {.run = i};
  players_.resize(runs.size());
  for (std::size_t n = runs.size() - 1; n > 0; --n) {
    winners[n] = winners[2 * n];
    players_[n] = winners[2 * n + 1];
    Play(winners[n], players_[n]);
  }
  players_[0] = winners[1];
}

void IndexMerge::Next() {
  Player player = players_[0];
  IndexRun& run = runs_[player.run];
  length_before_ = run.name().size();
  run.Next();
  broken_ = run.broken();
  player.shared = run.shared();
  for (std::size_t n = (runs_.size() + player.run) / 2; n > 0; n /= 2) Play(player, players_[n]);
  players_[0] = player;
}

void IndexMerge::Play(Player& winner, Player& loser) const {
  const IndexRun& a = runs_[winner.run];
  const IndexRun& b = runs_[loser.run];
  if (b.at_end()) return;
  if (a.at_end()) return std::swap(winner, loser);
  // Both names sort after the last one taken, so the one that shares more bytes with it comes first.
  if (winner.shared != loser.shared) {
    if (loser.shared > winner.shared) std::swap(winner, loser);
    return;
  }
  const std::string_view x = a.name();
  const std::string_view y = b.name();
  std::size_t at = winner.shared;
  const std::size_t end = std::min(x.size(), y.size());
  while (at < end && x[at] == y[at]) ++at;
  const bool second_first = at < end ? static_cast<unsigned char>(y[at]) < static_cast<unsigned char>(x[at])
                                     : std::pair(y.size(), loser.run) < std::pair(x.size(), winner.run);
  if (second_first) std::swap(winner, loser);
  loser.shared = at;
}

}  // namespace cairn
