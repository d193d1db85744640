#include "api/mirror_specs.h"

#include <filesystem>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "store/bucket_address.h"

namespace cairn {
namespace {

bool IsInside(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

Result<std::string> WholePath(const std::string& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (error) return ErrnoStatus(error.value(), "looking for " + path);
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.string();
}

}  // namespace

Result<std::string> CheckMirrorTarget(const std::string& target, const std::string& name) {
  if (target.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a directory or a place in an object store, found none",
                 name);
  }
  if (!IsBucket(target)) return WholePath(target);
  Result<BucketAddress> address = BucketAddress::Parse(target);
  if (!address.ok()) return Error(address.status().code(), "{}: {}", name, address.status().message());
  return std::move(address->text);
}

Result<std::vector<MirrorSpec>> CheckMirrors(const Options& options) {
  std::vector<MirrorSpec> mirrors = options.mirrors;
  std::set<std::string> targets;
  CAIRN_ASSIGN_OR_RETURN(const std::string root, WholePath(options.root));
  for (MirrorSpec& mirror : mirrors) {
    CAIRN_ASSIGN_OR_RETURN(mirror.target, CheckMirrorTarget(mirror.target, "mirrors"));
    if (mirror.every == 0) {
      return Error(StatusCode::kInvalidArgument, "mirrors, {}: every: expected 1 or more, found 0", mirror.target);
    }
    if (!targets.insert(mirror.target).second) {
      return Error(StatusCode::kInvalidArgument, "mirrors: expected one for each target, found two for {}",
                   mirror.target);
    }
    if (IsInside(mirror.target, root) || IsInside(root, mirror.target)) {
      return Error(StatusCode::kInvalidArgument, "{} and its mirror {}: expected neither to be in the other", root,
                   mirror.target);
    }
  }
  return mirrors;
}

}  // namespace cairn
