#include "store/bucket_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/human.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

struct Scheme {
  std::string_view name;
  std::string_view backend;
};
constexpr std::array kSchemes = {Scheme{"s3://", ":s3:"}, Scheme{"gs://", ":gcs:"}, Scheme{"az://", ":azureblob:"}};
constexpr std::string_view kRemote = "rclone:";

bool IsWord(std::string_view text, std::string_view more) {
  return !text.empty() && std::ranges::all_of(text, [more](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           more.find(c) != std::string_view::npos;
  });
}

/// Whether no part of the path is empty, "." or "..".
bool IsPlainPath(std::string_view path) {
  if (!IsShown(path)) return false;
  while (true) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == path.size()) return true;
    path.remove_prefix(end + 1);
  }
}

}  // namespace

bool IsBucket(std::string_view target) {
  return target.starts_with(kRemote) || target.find("://") != std::string_view::npos;
}

std::string WithoutSettings(std::string_view target) {
  if (!IsBucket(target) || target.find_first_of(",=@?") == target.npos) return std::string(target);
  const std::size_t scheme = target.find("://");
  return std::string(scheme == target.npos ? kRemote : target.substr(0, scheme + 3)) + "...";
}

Result<BucketAddress> BucketAddress::Parse(std::string_view text) {
  while (text.ends_with('/') && !text.ends_with("://")) text.remove_suffix(1);
  if (text.starts_with(kRemote)) {
    const std::string_view rest = text.substr(kRemote.size());
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string_view path = rest.substr(std::min(colon + 1, rest.size()));
    // One with settings of its own may have secrets.
    if (IsWord(rest.substr(0, colon), "_-.+@ ") && colon < rest.size() &&
        IsPlainPath(path.substr(path.starts_with('/') ? 1 : 0))) {
      return BucketAddress{.text = std::string(text), .remote = std::string(rest)};
    }
    return Error(StatusCode::kInvalidArgument,
                 "{}: expected rclone:REMOTE:PATH, with REMOTE as rclone's configuration names it",
                 Printable(WithoutSettings(text)));
  }
  for (const auto& [scheme, backend] : kSchemes) {
    if (!text.starts_with(scheme)) continue;
    const std::string_view path = text.substr(scheme.size());
    if (IsPlainPath(path) && IsWord(path.substr(0, path.find('/')), "-._")) {
      return BucketAddress{.text = std::string(text), .remote = fmt::format("{}{}", backend, path)};
    }
    return Error(StatusCode::kInvalidArgument, "{}: expected {}BUCKET/PREFIX", Printable(WithoutSettings(text)),
                 scheme);
  }
  return Error(StatusCode::kUnsupported, "{}: expected a directory, s3://, gs://, az:// or rclone:REMOTE:PATH",
               Printable(WithoutSettings(text)));
}

std::string BucketAddress::Remote(std::string_view name) const { return fmt::format("{}/{}", remote, name); }

}  // namespace cairn
