#include "advice/output_file.h"

#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): rename
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace cairn {
namespace {

/// What is written first, and then renamed.
std::string Draft(const std::string& path) { return path + ".part"; }

}  // namespace

Status CheckWritable(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  if (path.empty()) return {StatusCode::kInvalidArgument, "expected the name of a file to write, found an empty one"};
  if (std::filesystem::is_directory(found)) return ErrnoStatus(EISDIR, "writing " + path);
  // The rename would put a file in the place of /dev/null.
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found)) {
    return Error(StatusCode::kInvalidArgument, "writing {}: expected a regular file or none, found another kind", path);
  }
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
    Status status = ErrnoStatus(errno, "writing " + draft);
    ::unlink(draft.c_str());
    return status;
  }
  if (::rename(draft.c_str(), path.c_str()) == 0) return Status::Ok();
  Status status = ErrnoStatus(errno, "writing " + path);
  ::unlink(draft.c_str());
  return status;
}

}  // namespace cairn
