#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"
#include "io/io_task.h"
#include "io/path_at.h"

namespace cairn {

// What a root knows of its mirrors: `.mirrors/<id>.json`, a record, and `.mirrors/<id>/`, a folder with the mirror's
// lock and with what it holds (see hold.h).

inline constexpr unsigned kMirrorFileMode = 0644;

/// The mirror's name in the root: 16 hexadecimal digits, which follow from the target as it is written.
[[nodiscard]] std::string MirrorId(std::string_view target);

/// A checkpoint of the root that is at the target.
struct MirroredCheckpoint {
  std::uint64_t step = 0;
  std::uint64_t line = 0;
  std::string attempt;
  friend bool operator==(const MirroredCheckpoint&, const MirroredCheckpoint&) = default;
};

/// What a mirror says of itself: for people, and for lists. A hint: the target alone says what it has.
struct MirrorRecord {
  std::string target;
  std::string host;
  std::uint64_t process = 0;
  /// What the target had, oldest first, and what was being copied.
  std::vector<MirroredCheckpoint> checkpoints;
  std::optional<MirroredCheckpoint> copying;
  /// Why the last copy failed; empty if none has since one succeeded.
  std::string error;
  /// When this was written, in seconds since 1970. Set by WriteMirrorRecord.
  std::int64_t time = 0;

  /// "process 12 on \"node1\"".
  [[nodiscard]] std::string Describe() const;
};

/// Replaces the record. One call at a time, by the holder of the mirror's lock. Not fsynced: it is a hint.
IoTask<Status> WriteMirrorRecord(PathAt root, std::string id, MirrorRecord record);
/// None if there is none, or it is invalid. Blocking.
[[nodiscard]] std::optional<MirrorRecord> ReadMirrorRecord(const PathAt& root, const std::string& id);
/// All of the root, by target. Empty if it has none, or they cannot be read. Blocking.
[[nodiscard]] std::vector<MirrorRecord> ListMirrors(const PathAt& root);

}  // namespace cairn
