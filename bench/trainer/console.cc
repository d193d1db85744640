#include "console.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace cairn::trainer {
namespace {

// Clears the terminal's current row.
constexpr const char* kNewRow = "\r\x1b[K";

void Write(int descriptor, const std::string& text) {
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t written = ::write(descriptor, left.data(), left.size());
    if (written < 0 && errno != EINTR) return;  // The reader is gone; training goes on.
    if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Negative for a process alone.
int printing_rank = -1;

bool IsTerminal() {
  static const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  return is_terminal;
}

}  // namespace

void PrintAsRank(int rank) { printing_rank = rank; }

void PrintLine(const std::string& line) {
  if (printing_rank <= 0) Write(STDOUT_FILENO, (IsTerminal() ? kNewRow : "") + line + '\n');
}
void PrintProgress(const std::string& line) {
  if (!IsTerminal()) return PrintLine(line);
  if (printing_rank <= 0) Write(STDOUT_FILENO, kNewRow + line);
}
void PrintError(const std::string& line) {
  if (IsTerminal()) Write(STDERR_FILENO, kNewRow);
  const std::string rank = printing_rank < 0 ? "" : "rank " + std::to_string(printing_rank) + ": ";
  Write(STDERR_FILENO, "cairn_train: " + rank + line + '\n');
}

}  // namespace cairn::trainer
