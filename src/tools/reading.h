#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/worker_pool.h"
#include "restore/reader.h"
#include "restore/source.h"

namespace cairn::tools {

/// What every command that reads tensors needs: a small pool, workers and a queue.
class Reading {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Reading>> Make();
  [[nodiscard]] const RestoreParts& parts() const { return parts_; }

 private:
  Reading();
  std::unique_ptr<BufferPool> pool_;
  WorkerPool workers_;
  RestoreParts parts_;
};

/// What a path on the command line stands for.
enum class PathKind : std::uint8_t { kRoot, kCheckpoint, kTensorFile };
/// NotFound where there is nothing of that name.
[[nodiscard]] Result<PathKind> KindOf(const std::string& path);

/// The checkpoint meant by a root (the newest, or the step given) or by a checkpoint's folder. InvalidArgument for a
/// step beside a folder, and for a file.
[[nodiscard]] Result<StoredCheckpoint> FindCheckpoint(const std::string& path,
                                                      const std::optional<std::uint64_t>& step);

/// The tensors of a root's checkpoint or of a checkpoint's folder (none of its shards is selected yet), or of one
/// safetensors file.
[[nodiscard]] Result<TensorSource> OpenSource(const Reading& reading, const std::string& path,
                                              const std::optional<std::uint64_t>& step);

}  // namespace cairn::tools
