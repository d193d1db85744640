#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/index_bytes.h"

namespace cairn {

/// A run's pieces one by one. A run is a version byte, then for each piece its name as ReadNextName takes it, the
/// number of dimensions, and that many numbers each for offset and shape. It is another rank's word: anything may stand
/// in it.
class IndexRun {
 public:
  /// Stands at the first piece.
  explicit IndexRun(const std::string& run);
  void Next();

  /// There is no piece any more; because the bytes make no sense where broken.
  [[nodiscard]] bool at_end() const { return at_end_; }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Of the name's bytes as many are those of the name before.
  [[nodiscard]] std::size_t shared() const { return shared_; }
  /// Offset, then shape.
  [[nodiscard]] std::span<const std::int64_t> box() const { return box_; }

 private:
  [[nodiscard]] bool Read();

  IndexBytes bytes_;
  bool at_end_ = false;
  bool broken_ = false;
  std::string name_;
  std::size_t shared_ = 0;
  std::vector<std::int64_t> box_;
};

/// All runs' pieces by name, those of one name by run.
///
/// A tournament of losers in which each remembers how many bytes its name shares with the one that it lost to, so that
/// these are not compared again: T. Bingmann, A. Eberle and P. Sanders, Engineering Parallel String Sorting (2015).
/// Runs know such counts from their own compression.
class IndexMerge {
 public:
  explicit IndexMerge(std::span<const std::string> runs);
  void Next();

  /// There is no piece any more, or a run is broken.
  [[nodiscard]] bool at_end() const { return broken_ || runs_.empty() || runs_[winner().run].at_end(); }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] std::uint32_t run() const { return winner().run; }
  [[nodiscard]] const std::string& name() const { return runs_[winner().run].name(); }
  [[nodiscard]] std::span<const std::int64_t> box() const { return runs_[winner().run].box(); }
  /// Of the name's bytes as many are those of the name that came before it; and whether that was the same.
  [[nodiscard]] std::size_t shared() const { return winner().shared; }
  [[nodiscard]] bool same_name() const { return shared() == length_before_ && shared() == name().size(); }

 private:
  struct Player {
    std::uint32_t run = 0;
    std::size_t shared = 0;  // With the name that was taken last; a loser's, with the one that it lost to.
  };

  [[nodiscard]] const Player& winner() const { return players_[0]; }
  void Play(Player& winner, Player& loser) const;

  std::vector<IndexRun> runs_;
  std::vector<Player> players_;  // The winner, then the losers: of the games [2n] and [2n + 1], or runs, in [n].
  std::size_t length_before_ = 0;
  bool broken_ = false;
};

}  // namespace cairn
