#pragma once

#include <string>

namespace cairn {

/// A random (version 4) UUID, lower case: "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11".
[[nodiscard]] std::string MakeUuid();

}  // namespace cairn
