#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/crc32c.h"
#include "format/index.h"
#include "format/index_bytes.h"
#include "format/index_merge.h"

namespace cairn {
namespace {

// Pieces of a name that become one entry: [first, first + count) in their order.
struct Sequence {
  std::size_t first = 0;
  std::size_t count = 1;
  std::uint32_t shard_step = 0;
  std::uint32_t along = 0;
  std::int64_t offset_step = 0;
};

// The pieces of one name, in the order of the runs.
class NamePieces {
 public:
  void Begin(std::string_view name, std::size_t shared) {
    name_ = name;
    shared_ = shared;
    pieces_.clear();
    numbers_.clear();
  }
  void Add(std::uint32_t shard, std::span<const std::int64_t> box) {
    pieces_.push_back(
        {.shard = shard, .dimensions = static_cast<std::uint32_t>(box.size() / 2), .at = numbers_.size()});
    numbers_.insert(numbers_.end(), box.begin(), box.end());
  }

  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  // How many leading bytes the name shares with the previous one.
  [[nodiscard]] std::size_t shared() const { return shared_; }

  // The fewest sequences of two orders, by shard and by position; sorted by position, then shard.
  std::vector<Sequence>& MakeSequences() {
    sequences_ = SplitIntoSequences();
    if (sequences_.size() > 1) {
      // They are ordered by shard, which for the rows of a grid is not the order by position.
      std::vector<Piece> by_shard = pieces_;
      std::ranges::stable_sort(pieces_, [this](const Piece& a, const Piece& b) { return Before(a, b); });
      if (std::vector<Sequence> by_position = SplitIntoSequences(); by_position.size() <= sequences_.size()) {
        sequences_ = std::move(by_position);
      } else {
        pieces_ = std::move(by_shard);
      }
      std::ranges::stable_sort(sequences_, [this](const Sequence& a, const Sequence& b) {
        return Before(pieces_[a.first], pieces_[b.first]);
      });
    }
    return sequences_;
  }

  void Append(std::string& out, const Sequence& sequence) const {
    const Piece& piece = pieces_[sequence.first];
    const bool several = sequence.count > 1;
    AppendVarint(out, 2 * piece.dimensions + (several ? 1 : 0));
    AppendVarint(out, piece.shard);
    if (several) {
      AppendVarint(out, sequence.count);
      AppendVarint(out, sequence.shard_step);
      if (piece.dimensions != 0) {
        AppendVarint(out, sequence.along);
        AppendVarint(out, static_cast<std::uint64_t>(sequence.offset_step));
      }
    }
    for (const std::int64_t number : Box(piece)) AppendVarint(out, static_cast<std::uint64_t>(number));
  }

 private:
  struct Piece {
    std::uint32_t shard = 0;
    std::uint32_t dimensions = 0;
    // Index in numbers_: offset, then shape.
    std::size_t at = 0;
  };

  [[nodiscard]] std::span<const std::int64_t> Box(const Piece& piece) const {
    return std::span(numbers_).subspan(piece.at, std::size_t{2} * piece.dimensions);
  }
  [[nodiscard]] std::span<const std::int64_t> Offset(const Piece& piece) const {
    return Box(piece).first(piece.dimensions);
  }
  [[nodiscard]] std::span<const std::int64_t> Shape(const Piece& piece) const {
    return Box(piece).last(piece.dimensions);
  }

  [[nodiscard]] bool Before(const Piece& a, const Piece& b) const {
    const auto [x, y] = std::pair(Offset(a), Offset(b));
    const auto [i, j] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
    if (i == x.end() || j == y.end()) {
      return x.size() != y.size() ? x.size() < y.size() : a.shard < b.shard;
    }
    return *i < *j;
  }

  // Splits the pieces into sequences of equal distance.
  [[nodiscard]] std::vector<Sequence> SplitIntoSequences() const {
    std::vector<Sequence> sequences;
    for (std::size_t i = 0; i < pieces_.size(); i += sequences.back().count) {
      Sequence sequence{.first = i};
      while (i + sequence.count < pieces_.size() && Extends(sequence)) ++sequence.count;
      sequences.push_back(sequence);
    }
    return sequences;
  }

  // Whether the piece after the sequence extends it. The second piece sets the steps.
  bool Extends(Sequence& sequence) const {
    const Piece& a = pieces_[sequence.first + sequence.count - 1];
    const Piece& b = pieces_[sequence.first + sequence.count];
    if (a.dimensions != b.dimensions || b.shard <= a.shard) return false;
    const auto [shape, next_shape] = std::pair(Shape(a), Shape(b));
    if (!std::equal(shape.begin(), shape.end(), next_shape.begin())) return false;
    Sequence steps{.shard_step = b.shard - a.shard};
    const auto [from, to] = std::pair(Offset(a), Offset(b));
    for (std::uint32_t d = 0; d < a.dimensions; ++d) {
      if (from[d] == to[d]) continue;
      if (to[d] < from[d] || steps.offset_step != 0) return false;
      steps.along = d;
      steps.offset_step = to[d] - from[d];
    }
    if (sequence.count == 1) {
      sequence.shard_step = steps.shard_step;
      sequence.along = steps.along;
      sequence.offset_step = steps.offset_step;
      return true;
    }
    return std::tie(sequence.shard_step, sequence.along, sequence.offset_step) ==
           std::tie(steps.shard_step, steps.along, steps.offset_step);
  }

  std::string name_;
  std::size_t shared_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> numbers_;
  std::vector<Sequence> sequences_;
};

// The file so far: closed blocks, the open one, and the head's entries for the closed ones.
class FileWriter {
 public:
  // False if the file would be too long.
  bool Add(NamePieces& pieces) {
    std::size_t shared = pieces.shared();
    for (const Sequence& sequence : pieces.MakeSequences()) {
      if (bytes_.size() == block_begin_) {
        first_name_ = pieces.name();
        shared = 0;
      }
      AppendNextName(bytes_, pieces.name(), shared);
      pieces.Append(bytes_, sequence);
      shared = pieces.name().size();
      if (bytes_.size() - block_begin_ >= kIndexBlockBytes) CloseBlock();
    }
    return bytes_.size() <= kMaxIndexBytes;
  }

  std::optional<BuiltIndex> Finish(std::size_t shards) && {
    if (bytes_.size() != block_begin_) CloseBlock();
    std::string head;
    AppendVarint(head, kIndexVersion);
    AppendVarint(head, shards);
    AppendVarint(head, blocks_);
    head += entries_;
    if (head.size() > kMaxIndexHeadBytes || bytes_.size() + head.size() > kMaxIndexBytes) return std::nullopt;
    bytes_ += head;
    return BuiltIndex{
        .bytes = std::move(bytes_), .head_bytes = head.size(), .head_digest = Crc32c(std::as_bytes(std::span(head)))};
  }

 private:
  void CloseBlock() {
    const auto block = std::as_bytes(std::span(bytes_)).subspan(block_begin_);
    AppendVarint(entries_, first_name_.size());
    entries_ += first_name_;
    AppendVarint(entries_, block.size());
    const std::uint32_t digest = Crc32c(block);
    for (int shift = 0; shift < 32; shift += 8) entries_ += static_cast<char>(digest >> shift & 0xff);
    block_begin_ = bytes_.size();
    ++blocks_;
  }

  std::string bytes_;
  std::size_t block_begin_ = 0;
  std::string first_name_;
  std::uint64_t blocks_ = 0;
  // The head's.
  std::string entries_;
};

}  // namespace

std::optional<BuiltIndex> BuildIndex(std::span<const std::string> runs) {
  if (runs.size() > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  FileWriter file;
  NamePieces pieces;
  IndexMerge merge(runs);
  for (; !merge.at_end(); merge.Next()) {
    if (pieces.empty() || !merge.same_name()) {
      if (!pieces.empty() && !file.Add(pieces)) return std::nullopt;
      pieces.Begin(merge.name(), merge.shared());
    }
    pieces.Add(merge.run(), merge.box());
  }
  if (merge.broken() || (!pieces.empty() && !file.Add(pieces))) return std::nullopt;
  return std::move(file).Finish(runs.size());
}

}  // namespace cairn
