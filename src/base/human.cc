#include "base/human.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cairn {

std::string HumanSeconds(double seconds) {
  if (!(seconds > 0)) return fmt::format("{:g} s", seconds);
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 600) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.3g} min", seconds / 60);
  if (seconds < 604800) return fmt::format("{:.4g} h", seconds / 3600);
  return fmt::format("{:.5g} d", seconds / 86400);
}

std::string HumanBytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

bool IsShown(std::string_view text) {
  if (std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; })) return true;
  // fmt escapes these two, and what a terminal does not show.
  const auto escaped =
      static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return c == '"' || c == '\\'; }));
  return fmt::formatted_size("{:?}", text) == text.size() + escaped + 2;
}

std::string Printable(std::string_view text) { return IsShown(text) ? std::string(text) : fmt::format("{:?}", text); }

}  // namespace cairn
