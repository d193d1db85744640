#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/checkpointer.h"

namespace cairn::tools {

// What the process answers.
inline constexpr int kGood = 0;
inline constexpr int kDamagedOrDifferent = 1;
inline constexpr int kFailed = 2;  ///< Misuse or an I/O error.

/// Prints the status to stderr; the exit code that it stands for.
int Complain(const Status& status);

/// "1.5 GiB".
[[nodiscard]] std::string HumanBytes(std::uint64_t bytes);
/// The text as it is, or quoted and escaped where it holds what would steer a terminal.
[[nodiscard]] std::string Printable(std::string_view text);
/// "F32 [3, 4]", with the place of a part.
[[nodiscard]] std::string DescribeType(const TensorInfo& tensor);

/// Rows in columns as wide as they need, and no narrower than `widths`, which it widens, so that a table may come in
/// several goes. The first row of a table is its head.
void PrintTable(const std::vector<std::vector<std::string>>& rows, std::vector<std::size_t>& widths);
void PrintTable(const std::vector<std::vector<std::string>>& rows);
void PrintJson(const nlohmann::json& json);
/// On one line.
[[nodiscard]] std::string JsonLine(const nlohmann::json& json);
[[nodiscard]] nlohmann::json ToJson(const CheckpointInfo& info);
[[nodiscard]] nlohmann::json ToJson(const TensorInfo& tensor);
/// As JSON; JSON text as it was given, however deep, long its numbers, or often a key.
[[nodiscard]] std::string ValueText(const Value& value);
/// One object.
[[nodiscard]] std::string ValuesText(const Values& values);

/// A bar on stderr, where that is a terminal; else nothing.
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
