#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "store/list.h"

namespace cairn {

/// What a mirror takes from a root, and what it keeps.
struct MirrorRules {
  /// Only steps divisible by this.
  std::uint64_t every = 1;
  /// At the target: see ChooseRetired. 0: everything.
  std::uint64_t keep_last = 0;
  std::uint64_t keep_every = 0;
};

/// The checkpoints of the root that the mirror has yet to copy, newest first: those that the rules take, that the
/// target does not have, and that retention would leave there. None over a newer checkpoint of the same step. Of two of
/// one line nothing tells which is newer, so only one whose attempt is among `copied` is replaced by the root's. Those
/// of `damaged`, by attempt, are passed over, and keep no others out. Pure; both lists are in the order of
/// ListCheckpoints.
[[nodiscard]] std::vector<const StoredCheckpoint*> ChooseDue(std::span<const StoredCheckpoint> root,
                                                             std::span<const StoredCheckpoint> target,
                                                             const MirrorRules& rules,
                                                             const std::set<std::string>& copied,
                                                             const std::map<std::string, std::string>& damaged = {});

/// Of a list of an object store: the damaged ones that the rules would retire if they were whole, which nobody else
/// removes there. Only those of steps before the good ones that `keep_last` keeps: their line is unknown. Pure.
[[nodiscard]] std::vector<std::uint64_t> ChooseOldDamaged(std::span<const CheckpointInfo* const> list,
                                                          const MirrorRules& rules);

/// Whether the target has another save of its step and line, which no mirror has copied from the root.
[[nodiscard]] bool IsAnothers(const StoredCheckpoint& one, std::span<const StoredCheckpoint> target,
                              const std::set<std::string>& copied);

}  // namespace cairn
