#include "console.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace cairn::trainer {
namespace {

void WriteLine(int descriptor, const std::string& line) {
  const std::string text = line + '\n';
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t written = ::write(descriptor, left.data(), left.size());
    if (written < 0 && errno != EINTR) return;  // Nobody reads: training goes on.
    if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void Say(const std::string& line) { WriteLine(STDOUT_FILENO, line); }
void Complain(const std::string& line) { WriteLine(STDERR_FILENO, "cairn_train: " + line); }

}  // namespace cairn::trainer
