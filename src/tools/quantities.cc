#include "tools/quantities.h"

#include <array>
#include <charconv>
#include <utility>

#include "base/status_macros.h"

namespace cairn::tools {
namespace {

using Unit = std::pair<std::string_view, double>;

constexpr std::array<Unit, 10> kSizes = {{{"", 1},
                                          {"B", 1},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"KiB", 0x1p10},
                                          {"MiB", 0x1p20},
                                          {"GiB", 0x1p30},
                                          {"TiB", 0x1p40}}};
constexpr std::array<Unit, 7> kTimes = {
    {{"", 1}, {"s", 1}, {"us", 1e-6}, {"ms", 1e-3}, {"m", 60}, {"h", 3600}, {"d", 86400}}};
constexpr std::array<Unit, 2> kShares = {{{"", 1}, {"%", 0.01}}};

/// Accepts NaN and infinities: the caller checks the range.
template <std::size_t n>
Result<double> Parse(const std::string& flag, const std::string& text, const std::array<Unit, n>& units,
                     const char* expected) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error == std::errc()) {
    for (const auto& [name, factor] : units) {
      if (unit == name) return number * factor;
    }
  }
  return Error(StatusCode::kInvalidArgument, "{}: expected {}, found \"{}\"", flag, expected, text);
}

}  // namespace

Result<std::uint64_t> ParseSize(const std::string& flag, const std::string& text) {
  constexpr const char* kExpected = "a size such as 4294967296, 4GiB or 4GB";
  CAIRN_ASSIGN_OR_RETURN(const double bytes, Parse(flag, text, kSizes, kExpected));
  if (bytes >= 0 && bytes <= 0x1p60) return static_cast<std::uint64_t>(bytes);
  return Error(StatusCode::kInvalidArgument, "{}: expected {}, from 0 to 1048576TiB, found \"{}\"", flag, kExpected,
               text);
}

Result<double> ParseSeconds(const std::string& flag, const std::string& text) {
  return Parse(flag, text, kTimes, "a time such as 0.25, 250ms, 90s, 5m, 2h or 7d");
}

Result<std::chrono::nanoseconds> ParseTime(const std::string& flag, const std::string& text, const std::string& least,
                                           const std::string& most) {
  CAIRN_ASSIGN_OR_RETURN(const double seconds, ParseSeconds(flag, text));
  CAIRN_ASSIGN_OR_RETURN(const double from, ParseSeconds(flag, least));
  CAIRN_ASSIGN_OR_RETURN(const double to, ParseSeconds(flag, most));
  if (seconds >= from && seconds <= to) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  }
  return Error(StatusCode::kInvalidArgument, "{}: expected {} to {}, found {}", flag, least, most, text);
}

Result<std::chrono::nanoseconds> ParseProbeTime(const std::string& text) {
  return ParseTime("--probe-time", text, "100ms", "5m");
}

std::optional<std::uint64_t> ParseStep(std::string_view text) {
  std::uint64_t step = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, step);
  return error == std::errc() && at == end ? std::optional(step) : std::nullopt;
}

Result<double> ParseShare(const std::string& flag, const std::string& text) {
  return Parse(flag, text, kShares, "a share such as 0.01 or 1%");
}

std::string HumanRate(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
  return fmt::format("{:.1f} MB/s", bytes_per_second / 1e6);
}

}  // namespace cairn::tools
