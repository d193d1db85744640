#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/status.h"
#include "io/io_task.h"
#include "io/path_at.h"

namespace cairn {

/// Whether this process still is the root's writer: FailedPrecondition, naming the other, where it is not. A look at
/// the disk that may block. Empty where there is nothing to ask.
using WriterCheck = std::function<Status()>;

/// Who writes a root, as `.writer` has it. Each Open for writing leaves a new one.
struct WriterRecord {
  std::uint64_t epoch = 0;  ///< One more than the writer's before.
  std::string id;           ///< Of this Open.
  std::string host;
  std::uint64_t process = 0;

  /// Of this process, after the `last` one.
  [[nodiscard]] static WriterRecord Next(const std::optional<WriterRecord>& last);
  [[nodiscard]] bool OfThisProcess() const;
  /// "process 12 on host-a", "this process (12)".
  [[nodiscard]] std::string Describe() const;
};

/// Asks on a thread of the queue's; Ok where there is nothing to ask.
IoTask<Status> CheckWriter(const PathAt& root, const WriterCheck& check);

/// One JSON object and a line's end.
[[nodiscard]] std::string EncodeWriter(const WriterRecord& record);
/// Hostile input; Corrupt names the file.
[[nodiscard]] Result<WriterRecord> DecodeWriter(std::string_view text, const std::string& file);
/// The root's `.writer`; none where there is none. Corrupt where it is no such record. Blocking.
[[nodiscard]] Result<std::optional<WriterRecord>> ReadWriter(const PathAt& root);

}  // namespace cairn
