#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"
#include "io/io_task.h"
#include "io/path_at.h"

namespace cairn {

/// FailedPrecondition, naming the other writer, if this process is no longer the root's writer. Reads the disk and may
/// block. Empty: no check.
using WriterCheck = std::function<Status()>;

/// This machine's name, for messages and the record.
[[nodiscard]] std::string HostName();

/// An opening for writing, in the history of a root.
struct Opening {
  /// The line that it began with, or that one of those began whose place it has taken.
  std::uint64_t line = 0;
  /// The first digits of its record's id.
  std::string id;
  friend bool operator==(const Opening&, const Opening&) = default;
};
/// The last ones, oldest first.
using Openings = std::vector<Opening>;
/// Whether the line, which was begun after `kept`, is one of `root`: whether the same opening began it there. False if
/// `root` does not reach back so far.
[[nodiscard]] bool IsLineOf(const Openings& root, const Openings& kept, std::uint64_t line);

/// The writer of a root, as stored in `.writer`. Each Open for writing stores a new one.
struct WriterRecord {
  /// One more than the previous writer's.
  std::uint64_t epoch = 0;
  /// Unique to this Open.
  std::string id;
  std::string host;
  std::uint64_t process = 0;
  /// The root's id: made once, kept by every later writer. Empty in a record of version 1's first writers.
  std::string root = {};
  /// The line counter: no checkpoint of this root is of a line above it.
  std::uint64_t line = 0;
  /// This opening is the last of them. In memory they are the disk's. As many are stored as fit into a sector with the
  /// rest. Empty in a record of version 1's first writers.
  Openings openings = {};
  /// The last of them is in no other record. So the next one takes its place, and any number of openings that do not
  /// open the root in memory takes one place.
  bool alone = false;

  /// For this process; `last` is the previous record: the root is kept, and the next line begins, with an opening.
  [[nodiscard]] static WriterRecord Next(const std::optional<WriterRecord>& last);
  /// With the line counter.
  [[nodiscard]] Opening OwnOpening() const;
  [[nodiscard]] bool OfThisProcess() const;
  /// "process 12 on host-a", "this process (12)".
  [[nodiscard]] std::string Describe() const;
};

/// Runs the check on a thread of the queue; Ok without a check.
IoTask<Status> CheckWriter(const PathAt& root, const WriterCheck& check);

/// The most of `.writer` that is read.
inline constexpr std::size_t kMaxRecordBytes = 4096;
/// One JSON object and a newline.
[[nodiscard]] std::string EncodeWriter(const WriterRecord& record);
/// Accepts untrusted input; Corrupt names the file.
[[nodiscard]] Result<WriterRecord> DecodeWriter(std::string_view text, const std::string& file);
/// The root's `.writer`; none if missing, Corrupt if invalid. Blocking.
[[nodiscard]] Result<std::optional<WriterRecord>> ReadWriter(const PathAt& root);

}  // namespace cairn
