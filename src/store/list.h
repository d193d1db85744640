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

/// A checkpoint found under a root, as its manifest has it. Its shards are not looked at: who opens one to read it
/// finds out whether it is there, and whole.
struct StoredCheckpoint {
  CheckpointInfo info;  ///< info.status is Corrupt where the manifest does not verify.
  Manifest manifest;    ///< Empty where it does not.
};

/// Lists step-*: those whose manifests verify by {generation, step}, oldest first, then the damaged ones by step. Takes
/// no lock, writes nothing; reads long lists on a few threads at once. NotFound where the root itself is missing;
/// folders that vanish meanwhile (retention) are left out.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ListCheckpoints(const PathAt& root);
/// The same without the manifests.
[[nodiscard]] Result<std::vector<CheckpointInfo>> ListInfos(const PathAt& root);
/// One folder, wherever it is; an error where its manifest does not verify, or is of another step than the folder's
/// name has it.
[[nodiscard]] Result<StoredCheckpoint> ReadCheckpointFolder(const std::string& folder);
/// Whether each shard is there with the manifest's length, which for many shards takes long: for who removes other
/// checkpoints because there is this one. Corrupt names the first that is not, NotFound the folder.
[[nodiscard]] Status CheckShardFiles(const StoredCheckpoint& checkpoint);
/// The manifest alone of a folder that is open, whatever else is there; `path` is the file's, for messages.
[[nodiscard]] Result<Manifest> ReadManifest(const UniqueFd& folder, const std::string& path,
                                            std::uint64_t* bytes = nullptr);
/// The checkpoint that `which` means, by the rules of Checkpointer::Restore, as far as manifests go: candidates in the
/// order in which to try them. A damaged manifest counts as the newest: it can't be known.
///
/// One verified candidate, or an error, unless it may fall back: then damaged ones are among the candidates, to be
/// named as passed over, with info.status saying why. From a given step only older ones are fallen back to.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ChooseCheckpoints(const PathAt& root, const Which& which);

/// Which of the unpinned checkpoints whose status is Ok retention removes. Pure. `list` in the order of
/// ListCheckpoints, less what was never acknowledged; damaged ones are neither counted nor removed, pinned ones are
/// counted. keep_last 0 removes nothing.
[[nodiscard]] std::vector<std::uint64_t> ChooseRetired(std::span<const CheckpointInfo* const> list,
                                                       std::uint64_t keep_last, std::uint64_t keep_every);

}  // namespace cairn
