#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/index_bytes.h"

namespace cairn {

/// Iterates over a run's pieces. A run is a version byte, then for each piece its name for ReadNextName, the number of
/// dimensions, and that many numbers each for offset and shape. It comes from another rank and may be hostile.
class IndexRun {
 public:
  /// Starts at the first piece.
  explicit IndexRun(const std::string& run);
  void Next();

  /// Whether there are no more pieces; and whether that is because the bytes are invalid.
  [[nodiscard]] bool at_end() const { return at_end_; }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// How many leading bytes the name shares with the previous one.
  [[nodiscard]] std::size_t shared() const { return shared_; }
  /// Offset, then shape.
  [[nodiscard]] std::span<const std::int64_t> box() const { return box_; }

 private:
  [[nodiscard]] bool Read();

  IndexByteReader bytes_;
  bool at_end_ = false;
  bool broken_ = false;
  std::string name_;
  std::size_t shared_ = 0;
  std::vector<std::int64_t> box_;
};

/// Iterates over all runs' pieces by name, then by run.
///
/// A loser tree in which each loser stores how many bytes its name shares with the winner's, so that these are not
/// compared again: T. Bingmann, A. Eberle and P. Sanders, Engineering Parallel String Sorting (2015). The runs'
/// compression provides these counts.
class IndexMerge {
 public:
  explicit IndexMerge(std::span<const std::string> runs);
  void Next();

  /// Whether there are no more pieces, or a run is broken.
  [[nodiscard]] bool at_end() const { return broken_ || runs_.empty() || runs_[winner().run].at_end(); }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] std::uint32_t run() const { return winner().run; }
  [[nodiscard]] const std::string& name() const { return runs_[winner().run].name(); }
  [[nodiscard]] std::span<const std::int64_t> box() const { return runs_[winner().run].box(); }
  /// How many leading bytes the name shares with the previous one; and whether it is the same name.
  [[nodiscard]] std::size_t shared() const { return winner().shared; }
  [[nodiscard]] bool same_name() const { return shared() == length_before_ && shared() == name().size(); }

 private:
  struct Player {
    std::uint32_t run = 0;
    // With the name taken last; for a loser, with that of its winner.
    std::size_t shared = 0;
  };

  [[nodiscard]] const Player& winner() const { return players_[0]; }
  void Play(Player& winner, Player& loser) const;

  std::vector<IndexRun> runs_;
  // The winner, then the losers: of the games [2n] and [2n + 1], or runs, in [n].
  std::vector<Player> players_;
  std::size_t length_before_ = 0;
  bool broken_ = false;
};

}  // namespace cairn
