#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace cairn {

/// The last events of the engine, as Chrome trace JSON (Perfetto and chrome://tracing open it). Safe from any thread.
class Trace {
 public:
  /// Keeps the newest `capacity` events; 0 records nothing.
  explicit Trace(std::size_t capacity);

  using Clock = Deadline::Clock;
  /// A span on one row. `row` groups spans ("step 1000", "disk"); `name` is shown in it; both must be literals or
  /// short.
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
  const Clock::time_point start_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ CAIRN_GUARDED_BY(mutex_);
  std::size_t next_ CAIRN_GUARDED_BY(mutex_) = 0;  // Where the ring goes on.
};

}  // namespace cairn
