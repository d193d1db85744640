#include "bench/strategies/csv_row.h"

namespace cairn::bench {
namespace {

std::string Quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string CsvRow::names() const {
  std::string line;
  for (const auto& [name, value] : cells_) line += (line.empty() ? "" : ",") + Quoted(name);
  return line;
}

std::string CsvRow::values() const {
  std::string line;
  bool first = true;
  for (const auto& [name, value] : cells_) {
    line += (first ? "" : ",") + Quoted(value);
    first = false;
  }
  return line;
}

}  // namespace cairn::bench
