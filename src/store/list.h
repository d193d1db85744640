#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/checkpointer.h"
#include "format/manifest.h"
#include "io/path_at.h"
#include "store/writer.h"

namespace cairn {

/// A checkpoint under a root, as its manifest describes it. Its shards are not checked: that happens when they are
/// read.
struct StoredCheckpoint {
  /// info.status is Corrupt if the manifest does not verify.
  CheckpointInfo info;
  /// Empty if it does not verify.
  Manifest manifest;
  /// The manifest's time, in seconds since 1970: it is written just before the commit.
  std::optional<double> committed_at = std::nullopt;
};

/// As far as its manifest describes it, which has so many bytes: without where it lies, pins and marks.
[[nodiscard]] StoredCheckpoint DescribeManifest(Manifest manifest, std::uint64_t bytes);

/// Where a root's newest checkpoints may be as well: its root in memory.
struct MemoryPlace {
  /// Empty: there is none.
  std::string path = {};
  /// The root's id. What is of another is not looked at.
  std::string root = {};
  /// For who has not opened it: the openings that the root has recorded, and those that are recorded there. What is of
  /// a line that the root has not begun is not looked at. Empty: all lines are the root's.
  Openings root_openings = {};
  Openings openings = {};

  [[nodiscard]] bool Has(const CheckpointInfo& info) const {
    return !path.empty() && info.path.starts_with(path + "/");
  }
};

/// Lists step-*: checkpoints whose manifests verify by {line, step}, oldest first, then damaged ones by step.
/// Takes no lock and writes nothing; reads long lists on several threads. NotFound if the root is missing. Skips
/// folders that retention removes meanwhile.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ListCheckpoints(const PathAt& root);
/// The same, with what only the place in memory has, in the same order.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ListCheckpoints(const PathAt& root, const MemoryPlace& memory);
/// The same without the manifests.
[[nodiscard]] Result<std::vector<CheckpointInfo>> ListInfos(const PathAt& root, const MemoryPlace& memory = {});
/// Of which attempt a damaged manifest says that it is. No damage makes it one that is on the disk. Empty if it says
/// nothing.
[[nodiscard]] std::string AttemptSaid(const CheckpointInfo& damaged);
/// One folder, anywhere. An error if its manifest does not verify or its step differs from the one in the folder's
/// name.
[[nodiscard]] Result<StoredCheckpoint> ReadCheckpointFolder(const std::string& folder);
/// Checks that each shard exists with the manifest's length. Slow for many shards: use it before other checkpoints are
/// removed in favour of this one. Corrupt names the first bad shard, NotFound the folder.
[[nodiscard]] Status CheckShardFiles(const StoredCheckpoint& checkpoint);
/// The length of an open manifest. Corrupt if it is not a regular file or is too long.
[[nodiscard]] Result<std::uint64_t> ManifestFileSize(const UniqueFd& fd, const std::string& path);
/// The manifest of an open folder, byte for byte. `path` is the manifest's, for messages.
[[nodiscard]] Result<std::string> ReadManifestText(const UniqueFd& folder, const std::string& path);
/// Reads only the manifest of an open folder. `path` is the manifest's, for messages.
[[nodiscard]] Result<Manifest> ReadManifest(const UniqueFd& folder, const std::string& path,
                                            std::uint64_t* bytes = nullptr);
/// The checkpoints that `selector` selects, by the rules of Checkpointer::Restore, as far as manifests tell: candidates
/// in the order to try. A damaged manifest counts as the newest, because its line is unknown.
///
/// Without fallback: one verified candidate or an error. With fallback: damaged checkpoints are listed too, to be
/// reported as skipped; info.status says why. From a given step, only older ones are candidates.
///
/// With a place in memory, over both: of a checkpoint that is in both, the copy in memory comes first, and is followed
/// by the other one, also without fallback.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ChooseCheckpoints(const PathAt& root, const Selector& selector,
                                                                      const MemoryPlace& memory = {});

/// Checks the shards of the newest checkpoints outside `doomed`, until `enough` are good, and the others are that
/// ChooseRetired keeps: others are removed because of them, so a manifest alone is not enough. A bad one gets its
/// status here; returns a sentence for each. Slow for many shards.
[[nodiscard]] std::vector<std::string> CheckNewestShards(std::vector<StoredCheckpoint>& list, std::uint64_t enough,
                                                         std::span<const CheckpointInfo> doomed);

/// "10, 20, 30", or of many their number, the least and the greatest.
[[nodiscard]] std::string DescribeSteps(std::vector<std::uint64_t> steps);
/// NotFound, with the steps that there are. Blocking.
[[nodiscard]] Status NoSuchStep(const PathAt& root, std::uint64_t step);

/// The steps that retention removes: unpinned checkpoints with status Ok. Pure. `list` is in the order of
/// ListCheckpoints, without unacknowledged ones. Damaged ones are neither counted nor removed; pinned ones are counted.
/// The newest one of the best kind (CheckpointInfo::nonfinite) stays, and so does the newest one that
/// has written its frozen tensors (CheckpointInfo::frozen).
/// keep_last 0 removes nothing.
[[nodiscard]] std::vector<std::uint64_t> ChooseRetired(std::span<const CheckpointInfo* const> list,
                                                       std::uint64_t keep_last, std::uint64_t keep_every);

}  // namespace cairn
