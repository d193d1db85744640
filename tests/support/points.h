#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "support/sanitizer.h"

namespace cairn {

/// Which of many numbered cases a test tries, such as the operation where it kills: every `stride`th from `first`,
/// a random one of the first `stride`, so that several runs try all. A failure names its point.
struct Points {
  std::uint64_t first = 0;  ///< At least 0 and less than `stride`.
  std::uint64_t stride = 1;
};

/// One of $CAIRN_ONE_IN points; where that is not set, one of `sanitized` under sanitizers, else each.
inline Points SomePoints(std::uint64_t sanitized) {
  Points points{.stride = kSanitized ? sanitized : 1};
  const char* const one_in = std::getenv("CAIRN_ONE_IN");  // NOLINT(concurrency-mt-unsafe): nothing sets it.
  if (one_in != nullptr) points.stride = std::max<std::uint64_t>(1, std::stoull(one_in));
  points.first = std::random_device{}() % points.stride;
  return points;
}

}  // namespace cairn
