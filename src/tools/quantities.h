#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/status.h"

namespace cairn::tools {

// Parse values of the command line. InvalidArgument names the flag, the expected and the found value.

/// "4294967296", "4GiB" (1024^3 each), "4GB" (1000^3 each), "1.5TB".
[[nodiscard]] Result<std::uint64_t> ParseSize(const std::string& flag, const std::string& text);
/// Seconds: "0.25", "250ms", "20us", "90s", "5m", "2h", "7d".
[[nodiscard]] Result<double> ParseSeconds(const std::string& flag, const std::string& text);
/// The same, from `least` to `most`, which are written like `text`.
[[nodiscard]] Result<std::chrono::nanoseconds> ParseTime(const std::string& flag, const std::string& text,
                                                         const std::string& least, const std::string& most);
/// How long probes may take: 100 ms to 5 minutes.
[[nodiscard]] Result<std::chrono::nanoseconds> ParseProbeTime(const std::string& text);
/// "35": digits only. None for any other text.
[[nodiscard]] std::optional<std::uint64_t> ParseStep(std::string_view text);
/// "0.01" or "1%".
[[nodiscard]] Result<double> ParseShare(const std::string& flag, const std::string& text);

/// "2.5 GB/s".
[[nodiscard]] std::string HumanRate(double bytes_per_second);

}  // namespace cairn::tools
