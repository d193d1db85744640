#pragma once

#include <fcntl.h>
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

/// A path as the kernel and messages have it: a plain one, or one below a directory that is held open. The latter means
/// that very directory, whatever its path leads to by now.
class PathAt {
 public:
  PathAt() = default;
  PathAt(std::string path) : text_(std::move(path)) {}  // NOLINT(google-explicit-constructor): a path is one
  PathAt(const char* path) : text_(path) {}             // NOLINT(google-explicit-constructor): the same
  /// The directory that `fd`, which outlives this, has open; messages call it `path`.
  PathAt(int fd, std::string path) : directory_(fd), text_(std::move(path)), skip_(text_.size() + 1) {}

  /// What openat(2) and its like are given.
  [[nodiscard]] int directory() const { return directory_; }
  [[nodiscard]] const char* c_str() const {
    if (directory_ == AT_FDCWD) return text_.c_str();
    return skip_ < text_.size() ? text_.c_str() + skip_ : ".";
  }
  /// For messages: from the root, with what the directory was called when it was opened.
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }

  friend bool operator==(const PathAt&, const PathAt&) = default;

 private:
  friend PathAt JoinPath(const PathAt& folder, std::string_view name);

  int directory_ = AT_FDCWD;
  std::string text_;
  std::size_t skip_ = 0;  // What of the text is the open directory's.
};

[[nodiscard]] inline PathAt JoinPath(const PathAt& folder, std::string_view name) {
  PathAt path = folder;
  path.text_ += '/';
  path.text_ += name;
  return path;
}

}  // namespace cairn

template <>
struct fmt::formatter<cairn::PathAt> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(const cairn::PathAt& path, Context& context) const {
    return fmt::formatter<std::string_view>::format(path.text(), context);
  }
};
