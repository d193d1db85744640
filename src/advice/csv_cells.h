#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace cairn {

/// The cells of a line of a CSV file without quotes. They lie in the line.
inline std::vector<std::string_view> CsvCells(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t comma = line.find(',');
    cells.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace cairn
