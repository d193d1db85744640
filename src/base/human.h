#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cairn {

/// "1.61 s", "12 ms", "3.5 us", "24 h", "10 d".
[[nodiscard]] std::string HumanSeconds(double seconds);
[[nodiscard]] inline std::string HumanDuration(std::chrono::duration<double> span) {
  return HumanSeconds(span.count());
}

/// "1.5 GiB".
[[nodiscard]] std::string HumanBytes(std::uint64_t bytes);

}  // namespace cairn
