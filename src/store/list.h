#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/checkpointer.h"
#include "format/manifest.h"
#include "io/path_at.h"

namespace cairn {

/// A checkpoint found under a root.
struct StoredCheckpoint {
  CheckpointInfo info;  ///< info.status is Corrupt where the manifest does not verify.
  Manifest manifest;    ///< Empty where it does not.
};

/// Lists step-*: verified ones by {generation, step}, oldest first, then the damaged ones by step. Takes no lock,
/// writes nothing. NotFound where the root itself is missing; folders that vanish meanwhile (retention) are left out.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ListCheckpoints(const PathAt& root);
/// One folder, wherever it is; an error where it does not verify. Every shard must be there with the manifest's length,
/// and the manifest's step be the folder's where its name is a step's.
[[nodiscard]] Result<StoredCheckpoint> ReadCheckpointFolder(const std::string& folder);
/// The manifest alone of a folder that is open, whatever else is there; `path` is the file's, for messages.
[[nodiscard]] Result<Manifest> ReadManifest(const UniqueFd& folder, const std::string& path,
                                            std::uint64_t* bytes = nullptr);
/// The checkpoint that `which` means, by the rules of Checkpointer::Restore, as far as manifests go: candidates in the
/// order in which to try them. A damaged manifest counts as the newest: it can't be known.
///
/// One verified candidate, or an error, unless it may fall back: then damaged ones are among the candidates, to be
/// named as passed over, with info.status saying why. From a given step only older ones are fallen back to.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ChooseCheckpoints(const PathAt& root, const Which& which);

/// Which of the verified, unpinned checkpoints retention removes. Pure. `list` in the order of ListCheckpoints, less
/// what was never acknowledged; damaged ones are neither counted nor removed, pinned ones are counted. keep_last 0
/// removes nothing.
[[nodiscard]] std::vector<std::uint64_t> ChooseRetired(std::span<const CheckpointInfo* const> list,
                                                       std::uint64_t keep_last, std::uint64_t keep_every);

}  // namespace cairn
