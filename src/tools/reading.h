#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "restore/reader.h"
#include "restore/source.h"
#include "store/paths.h"

namespace cairn::tools {

/// What commands need to read tensors: a small pool, workers and a queue.
class Reading {
 public:
  /// With a pool of so many chunks of 4 MiB.
  [[nodiscard]] static Result<std::unique_ptr<Reading>> Make(int chunks = 16);
  [[nodiscard]] const RestoreParts& parts() const { return parts_; }

 private:
  Reading();
  std::unique_ptr<BufferPool> pool_;
  WorkerPool workers_;
  RestoreParts parts_;
};

/// A queue for one operation at a time.
[[nodiscard]] Result<std::unique_ptr<IoQueue>> MakeQueue();

/// What a path on the command line refers to.
enum class PathKind : std::uint8_t { kRoot, kCheckpoint, kTensorFile };
/// NotFound if it does not exist; of a missing step it says which ones there are.
[[nodiscard]] Result<PathKind> KindOf(const std::string& path);

[[nodiscard]] std::vector<std::uint64_t> Steps(const std::vector<CheckpointInfo>& infos);
/// NotFound: which steps there are, and not the one that `word` names.
[[nodiscard]] Status NoSuchStep(const std::string& root, const std::string& word,
                                const std::vector<CheckpointInfo>& list);

/// The path; but that of a missing root/step-70 with the zeros that the checkpoint's folder has.
[[nodiscard]] std::string WithStepsZeros(const std::string& path);

/// What a new filesystem's own root has.
[[nodiscard]] bool IsOfFilesystem(const FolderEntry& entry);

/// Ok if the folder is a root: it has a checkpoint, or a file that a writer leaves, or is empty as before the first
/// save. InvalidArgument says what the path is instead, and names the roots directly below it.
[[nodiscard]] Status CheckRoot(const std::string& path);

/// The checkpoint of a root (the newest, or the given step) or of a checkpoint's folder. InvalidArgument for a step
/// with a folder, and for a file. NotFound as of KindOf.
[[nodiscard]] Result<StoredCheckpoint> FindCheckpoint(const std::string& path,
                                                      const std::optional<std::uint64_t>& step);

/// The tensors of a root's checkpoint or of a checkpoint's folder (with no shards selected yet), or of one safetensors
/// file.
[[nodiscard]] Result<TensorSource> OpenSource(const Reading& reading, const std::string& path,
                                              const std::optional<std::uint64_t>& step);

}  // namespace cairn::tools
