#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "support/sanitizer.h"

namespace cairn {

/// Which of many numbered cases a test tries, such as the operation where it kills: every `stride`th from `first`,
/// another one of the first `stride` in each run: $CAIRN_FIRST's, or a random one. So several runs try all. A failure
/// names its point.
struct Points {
  std::uint64_t first = 0;  ///< At least 0 and less than `stride`.
  std::uint64_t stride = 1;
};

/// The number in an environment variable, or another one where that is not set, or empty.
inline std::uint64_t NumberFrom(const char* variable, std::uint64_t unset) {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nothing sets it.
  return text != nullptr && *text != '\0' ? std::stoull(text) : unset;
}

/// One of $CAIRN_ONE_IN points; where that is not set, one of `sanitized` under sanitizers, else each.
inline Points SomePoints(std::uint64_t sanitized) {
  Points points{.stride = std::max<std::uint64_t>(1, NumberFrom("CAIRN_ONE_IN", kSanitized ? sanitized : 1))};
  points.first = NumberFrom("CAIRN_FIRST", std::random_device{}()) % points.stride;
  return points;
}

/// Says of one point after the other whether it is one of SomePoints.
class Sample {
 public:
  explicit Sample(std::uint64_t sanitized) : points_(SomePoints(sanitized)) {}
  [[nodiscard]] bool Takes() { return next_++ % points_.stride == points_.first; }

 private:
  Points points_;
  std::uint64_t next_ = 0;
};

/// Whether a run tries this one of `all` cases, each of them a test of its own: one of $CAIRN_ONE_IN, and at least one.
/// Which ones, $CAIRN_FIRST says to all processes of a run.
inline bool IsTried(std::uint64_t number, std::uint64_t all) {
  const std::uint64_t stride = std::max<std::uint64_t>(1, std::min(all, NumberFrom("CAIRN_ONE_IN", 1)));
  return number % stride == NumberFrom("CAIRN_FIRST", 0) % stride;
}

/// A seed for rounds of which not all are run: another one in each run of scripts/test, which prints $CAIRN_FIRST.
inline std::uint32_t SeedOfRun(std::uint32_t seed) {
  return seed + static_cast<std::uint32_t>(NumberFrom("CAIRN_FIRST", 0));
}

/// How many of `all` rounds to run that are all alike but for chance: as many as SomePoints, and at least two.
inline int SomeRounds(int all, std::uint64_t sanitized = 1) {
  return std::max(2, all / static_cast<int>(SomePoints(sanitized).stride));
}

}  // namespace cairn
