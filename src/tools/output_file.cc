#include "tools/output_file.h"

#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): rename
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace cairn::tools {
namespace {

/// What is written first, and then renamed.
std::string Draft(const std::string& path) { return path + ".part"; }

}  // namespace

Status CheckWritable(const std::string& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) return ErrnoStatus(EISDIR, "writing " + path);
  const std::string draft = Draft(path);
  const UniqueFd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file.valid()) return ErrnoStatus(errno, "writing " + draft);
  ::unlink(draft.c_str());
  return Status::Ok();
}

Status WriteOutputFile(const std::string& path, std::string_view text) {
  const std::string draft = Draft(path);
  std::ofstream out(draft);
  out << text;
  out.close();
  if (!out) {
    const Status status = ErrnoStatus(errno, "writing " + draft);
    ::unlink(draft.c_str());
    return status;
  }
  return ::rename(draft.c_str(), path.c_str()) == 0 ? Status::Ok() : ErrnoStatus(errno, "writing " + path);
}

}  // namespace cairn::tools
