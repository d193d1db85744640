#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor_table.h"
#include "base/unique_fd.h"
#include "format/manifest.h"

namespace cairn {

/// A file of this rank's frozen tensors that a committed checkpoint has: what the next saves link. For the engine's
/// thread; what is constant is read by workers too.
struct KeptFile {
  // Constant.
  /// What the save that wrote it had, and which of these entries the file holds.
  std::shared_ptr<const TensorTable> table;
  std::vector<bool> holds;
  ManifestShard shard;
  /// Only on the coordinator of several ranks.
  std::string index_run;
  /// Its checksums; none if they are off.
  std::vector<std::uint32_t> sums;

  // Changed as saves that link it are committed.
  /// Opened under its name in the newest of them, and the number of that save. NFS keeps names that are open.
  std::shared_ptr<const UniqueFd> fd;
  std::uint64_t sequence = 0;
  /// How many have linked it.
  std::uint64_t links = 0;
};

/// How a save treats its frozen tensors.
struct KeptChoice {
  /// By entry: what a kept file holds. Empty: nothing.
  std::vector<bool> holds;
  /// That is the file from before. Otherwise the save writes one.
  bool linked = false;
  /// Only because the one from before has many links: both should hold the same bytes.
  bool confirms = false;
};

/// A kept file is worth its own name from this size on.
inline constexpr std::uint64_t kLeastKept = 1U << 20;
/// After so many links the file is written anew: one inode is one medium's error for all steps.
inline constexpr std::uint64_t kMostLinks = 49;

/// Chooses what is kept of a table with frozen tensors. `before` may be null; `worn`: it has many links. Reads only
/// what is constant of it.
///
/// A frozen tensor has not changed if it has the same name, dtype, shape, part, memory and version as in `before`. One
/// whose version alone differs is written with what changes from now on, as long as it stays frozen: others need not be
/// written again for it. If names share memory, all are frozen, or none is.
[[nodiscard]] KeptChoice ChooseKept(const std::shared_ptr<const TensorTable>& table, const KeptFile* before, bool worn);

}  // namespace cairn
