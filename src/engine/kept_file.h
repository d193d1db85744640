#pragma once

#include <cstdint>
#include <memory>
#include <set>
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
  /// The number of the save that wrote it.
  std::uint64_t written = 0;

  // Changed as saves that link it are committed.
  /// Opened under its name in the newest of them, and the number of that save. NFS keeps names that are open.
  std::shared_ptr<const UniqueFd> fd;
  std::uint64_t sequence = 0;
  /// The steps of the saves that link it, committed or not.
  std::set<std::uint64_t> steps;
  /// A save has found that the tensors are no longer what it holds.
  bool changed = false;
};

/// How a save treats its frozen tensors.
struct KeptChoice {
  /// By entry: what a kept file holds. Empty: nothing.
  std::vector<bool> holds;
  /// That is the file from before. Otherwise the save writes one.
  bool linked = false;
  /// If the bytes turn out to be the same, it is the file from before.
  bool compared = false;
  /// Only because it is time for that: both files should hold the same bytes.
  bool confirms = false;
};

/// A kept file is worth its own name from this size on.
inline constexpr std::uint64_t kLeastKept = 1U << 20;
/// Every so many calls of Save all is written anew, on all ranks at the same call: one inode is one medium's error for
/// all steps, and what has changed unseen is found then.
inline constexpr std::uint64_t kFrozenEvery = 50;

struct KeptRules {
  /// The file of before is not to be linked.
  bool anew = false;
  /// There are checksums to compare.
  bool checksums = true;
};

/// Chooses what is kept of a table with frozen tensors. `before` may be null. Reads only what is constant of it. If
/// names share memory, all are frozen, or none is.
///
/// A frozen tensor has not changed if it has the same name, dtype, shape, part, memory and version as in `before`. One
/// whose version alone differs is written with what changes from now on, as long as it stays frozen and others stay
/// linked: those need not be written again for it. If what stays is less than kLeastKept, a new file holds all.
///
/// If some have no version, all are compared: with a file of tensors of the same names, dtypes, shapes and parts. Those
/// are written with what changes if there are no checksums, or if they are less than kLeastKept and the others are not.
[[nodiscard]] KeptChoice ChooseKept(const std::shared_ptr<const TensorTable>& table, const KeptFile* before,
                                    const KeptRules& rules);

/// Whether writing into `targets` may change frozen tensors of the table. Goes by the ranges of their memory, so
/// tensors that interleave count too.
[[nodiscard]] bool MayChangeFrozen(const TensorTable& table, const TensorTable& targets);

}  // namespace cairn
