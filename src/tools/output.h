#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/human.h"
#include "cairn/checkpointer.h"

namespace cairn::tools {

// Exit codes.
inline constexpr int kGood = 0;
inline constexpr int kDamagedOrDifferent = 1;
/// Wrong usage or an I/O error.
inline constexpr int kFailed = 2;

/// Prints the status to stderr. Returns its exit code.
int ReportError(const Status& status);

/// "1 tensor", "2 tensors".
[[nodiscard]] std::string Count(std::uint64_t count, std::string_view noun);
/// "F32 [3, 4]", and the position of a part.
[[nodiscard]] std::string DescribeType(const TensorInfo& tensor);

/// When the checkpoint was committed: "2026-11-29 00:41:07", local; "-" if unknown. `at` is in seconds since 1970, none
/// the time of its manifest's file.
[[nodiscard]] std::string CommitTime(const CheckpointInfo& info, std::optional<double> at = std::nullopt);
/// "has NaNs", "has infinities"; empty for kNone.
[[nodiscard]] std::string MarkText(NonFinite nonfinite);
/// Whether the checkpoints whose manifests are good are of several lines.
[[nodiscard]] bool HaveSeveralLines(const std::vector<CheckpointInfo>& infos);
/// "4f2a6b1d...": a root's id.
[[nodiscard]] std::string ShortId(const std::string& id);
/// "line 3"; of a copy "line 3 of root 4f2a6b1d..., a copy".
[[nodiscard]] std::string LineText(const CheckpointInfo& info);

enum class Colour : std::uint8_t { kRed, kGreen, kYellow };
/// In this colour if stdout is a terminal that has colours, and NO_COLOR is not set; else unchanged.
[[nodiscard]] std::string Coloured(std::string text, Colour colour);

/// Prints columns as wide as needed, but at least `widths`, which it updates so that a table may be printed in several
/// calls. A table's first row is its header.
void PrintTable(const std::vector<std::vector<std::string>>& rows, std::vector<std::size_t>& widths);
void PrintTable(const std::vector<std::vector<std::string>>& rows);
void PrintJson(const nlohmann::json& json);
/// On one line.
[[nodiscard]] std::string JsonLine(const nlohmann::json& json);
/// With its time of CommitTime, in UTC.
[[nodiscard]] nlohmann::json ToJson(const CheckpointInfo& info, std::optional<double> at = std::nullopt);
[[nodiscard]] nlohmann::json ToJson(const TensorInfo& tensor);
/// As JSON. JSON text is printed unchanged, whatever its depth, long numbers or duplicate keys.
[[nodiscard]] std::string ValueText(const Value& value);
/// As one JSON object.
[[nodiscard]] std::string ValuesText(const Values& values);

/// A bar on stderr; nothing unless that is a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  /// Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(std::uint64_t done, std::uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
  bool drawn_ = false;
};

}  // namespace cairn::tools
