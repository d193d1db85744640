#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

/// "1.61 s", "12 ms", "3.5 us", "24 h", "10 d".
[[nodiscard]] std::string HumanSeconds(double seconds);
[[nodiscard]] inline std::string HumanDuration(std::chrono::duration<double> span) {
  return HumanSeconds(span.count());
}

/// "1.5 GiB".
[[nodiscard]] std::string HumanBytes(std::uint64_t bytes);

/// Whether a terminal would only show it, in the order in which it stands: no control character, no change of the
/// direction of writing, no space that has no width, and UTF-8.
[[nodiscard]] bool IsShown(std::string_view text);
/// The text, quoted and escaped if a terminal would not only show it.
[[nodiscard]] std::string Printable(std::string_view text);

}  // namespace cairn
