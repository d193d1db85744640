#pragma once

#include <string>

namespace cairn {

/// "1.61 s", "12 ms", "3.5 us", "24 h".
[[nodiscard]] std::string HumanSeconds(double seconds);

}  // namespace cairn
