#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The events of a run, one JSON object a line, each written at once, so that a SIGKILL loses none. Times are seconds
/// of CLOCK_MONOTONIC, so that those of several processes of one boot can be compared. Safe from any thread.
///
///   {"at": 12.5, "event": "open", "pid": 17}            the process's first line
///   {"at": 12.5, "event": "begin", "step": 40}          the loop begins with the state of that step
///   {"at": 12.6, "event": "iteration", "step": 41, "stall": 0.01, "anonymous": 1, "mapped": 1, "dirty": 1}
///                                                       one has ended; bytes of memory while it ran
///   {"at": 12.6, "event": "save", "step": 41}           a save was called
///   {"at": 12.9, "event": "durable", "step": 41}        a crash can no longer lose it
///   {"at": 13.0, "event": "end", "step": 60}            the last iteration has ended
class Journal {
 public:
  /// Appends to the file.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> Open(const std::string& path);

  void Begin(std::uint64_t step) const;
  /// `other`: a process that works for this one.
  void Iteration(std::uint64_t step, double stall, std::optional<pid_t> other) const;
  void Save(std::uint64_t step) const;
  void Durable(std::uint64_t step) const;
  void End(std::uint64_t step) const;

 private:
  explicit Journal(UniqueFd file) : file_(std::move(file)) {}
  void Write(const std::string& event, const std::string& more) const;

  const UniqueFd file_;
};

}  // namespace cairn::bench
