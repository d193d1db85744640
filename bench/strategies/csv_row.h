#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace cairn::bench {

/// One line of a CSV and the names of its cells.
class CsvRow {
 public:
  template <typename T>
  void Add(const std::string& name, const T& value) {
    cells_.emplace_back(name, fmt::format("{}", value));
  }
  void AddSeconds(const std::string& name, double value) { cells_.emplace_back(name, fmt::format("{:.6f}", value)); }

  [[nodiscard]] std::string names() const;
  [[nodiscard]] std::string values() const;

 private:
  std::vector<std::pair<std::string, std::string>> cells_;
};

}  // namespace cairn::bench
