#include "bench/harness/csv_row.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

#include "base/status_macros.h"

namespace cairn::bench {

Status Print(const CsvRow& row, const std::string& csv) {
  std::cout << row.names() << '\n' << row.values() << '\n';
  if (csv.empty()) return {};
  std::error_code ignored;
  std::string found;
  std::getline(std::ifstream(csv) >> std::ws, found);
  if (!found.empty() && found != row.names()) {
    return Error(StatusCode::kInvalidArgument, "--csv {}: expected the columns {}, found {}", csv, row.names(), found);
  }
  const bool fresh = !std::filesystem::exists(csv, ignored) || std::filesystem::file_size(csv, ignored) == 0;
  std::ofstream file(csv, std::ios::app);
  if (fresh) file << row.names() << '\n';
  file << row.values() << '\n';
  file.close();
  return file.good() ? Status::Ok() : Error(StatusCode::kIoError, "could not write {}", csv);
}

}  // namespace cairn::bench
