#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "cairn/status.h"

namespace cairn::bench {

/// One line of a CSV and the names of its cells.
class CsvRow {
 public:
  template <typename T>
  void Add(const std::string& name, const T& value) {
    names_.push_back(Quoted(name));
    values_.push_back(Quoted(fmt::format("{}", value)));
  }
  void AddSeconds(const std::string& name, double value) { Add(name, fmt::format("{:.6f}", value)); }

  [[nodiscard]] std::string names() const { return fmt::format("{}", fmt::join(names_, ",")); }
  [[nodiscard]] std::string values() const { return fmt::format("{}", fmt::join(values_, ",")); }

 private:
  static std::string Quoted(const std::string& cell) {
    if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
    std::string quoted = "\"";
    for (const char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + "\"";
  }

  std::vector<std::string> names_;
  std::vector<std::string> values_;
};

/// Prints the row under its names, and appends it to the file `csv`, which may be empty for none. InvalidArgument if
/// that has other columns.
Status Print(const CsvRow& row, const std::string& csv);

}  // namespace cairn::bench
