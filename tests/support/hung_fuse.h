#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace cairn {

/// A FUSE filesystem, mounted on a directory, that stops answering requests of one opcode (FUSE_WRITE of
/// <linux/fuse.h>). Every name there is a file of 1 MiB, or a folder if it ends with "folder", except those that begin
/// with "new". All changes succeed and none is kept. Its server is a process of its own, which ends with this one, so
/// that no request waits for ever.
class HungFuse {
 public:
  explicit HungFuse(std::string directory);
  ~HungFuse();
  HungFuse(const HungFuse&) = delete;
  HungFuse& operator=(const HungFuse&) = delete;

  /// Why it could not be mounted: for GTEST_SKIP. Empty if it was.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  [[nodiscard]] const std::string& directory() const { return directory_; }
  /// From now on requests of this opcode wait for Release, or 10 s, so that a test that fails ends.
  void Hold(std::uint32_t opcode);
  void Release();

 private:
  const std::string directory_;
  std::string refusal_;
  // Shared with the server.
  std::atomic<std::uint32_t>* opcode_ = nullptr;
  UniqueFd to_server_;
  pid_t server_ = -1;
};

}  // namespace cairn
