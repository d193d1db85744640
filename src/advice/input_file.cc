#include "advice/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/human.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace cairn {

Result<std::string> ReadInputFile(const std::string& path, std::string_view what, std::size_t most) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, path);
  std::string text;
  std::array<char, 65536> block{};
  while (true) {
    const ssize_t read = ::read(file.get(), block.data(), block.size());
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return ErrnoStatus(errno, path);
    if (read == 0) break;
    text.append(block.data(), static_cast<std::size_t>(read));
    if (text.size() > most) {
      return Error(StatusCode::kInvalidArgument, "{}: expected {} of at most {}, found more", path, what,
                   HumanBytes(most));
    }
  }
  if (text.empty()) return Error(StatusCode::kInvalidArgument, "{}: expected {}, found an empty file", path, what);
  return text;
}

}  // namespace cairn
