#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace cairn {

/// Prints to stderr. If that cannot be written, there is nowhere to say so, and the exit code says the rest.
template <typename... Args>
void PrintError(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace cairn
