#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace cairn {

/// The engine's latest events, as Chrome trace JSON (Perfetto and chrome://tracing open it). Safe from any thread.
///
/// Times are microseconds of CLOCK_MONOTONIC, so that what others recorded on the same machine can be shown beside it.
class Trace {
 public:
  /// Keeps the newest `capacity` events; 0 records nothing.
  explicit Trace(std::size_t capacity);

  using Clock = Deadline::Clock;
  /// Adds a span. `row` groups spans ("step 1000", "disk"); `name` labels this one. Both should be short.
  void Span(const std::string& row, const std::string& name, Clock::time_point begin, Clock::time_point end,
            std::uint64_t step, std::uint64_t bytes) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::string ToJson() const CAIRN_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::string row;
    std::string name;
    Clock::time_point begin;
    Clock::time_point end;
    std::uint64_t step;
    std::uint64_t bytes;
  };
  const std::size_t capacity_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ CAIRN_GUARDED_BY(mutex_);
  // The oldest entry, which the next span replaces.
  std::size_t next_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
