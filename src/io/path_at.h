#pragma once

#include <fcntl.h>
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

/// A path for the kernel and for messages: a plain one, or one relative to an open directory. The latter stays in that
/// directory even if its path now leads elsewhere.
class PathAt {
 public:
  PathAt() = default;
  PathAt(std::string path) : text_(std::move(path)) {}  // NOLINT(google-explicit-constructor): implicit by design
  PathAt(const char* path) : text_(path) {}             // NOLINT(google-explicit-constructor): the same
  /// The directory open as `fd`, which must outlive this. Messages call it `path`.
  PathAt(int fd, std::string path) : directory_(fd), text_(std::move(path)), skip_(text_.size() + 1) {}

  /// The arguments of openat(2) and the like.
  [[nodiscard]] int directory() const { return directory_; }
  [[nodiscard]] const char* c_str() const {
    if (directory_ == AT_FDCWD) return text_.c_str();
    return skip_ < text_.size() ? text_.c_str() + skip_ : ".";
  }
  /// For messages: the whole path, with the directory's name from when it was opened.
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }

  friend bool operator==(const PathAt&, const PathAt&) = default;

 private:
  friend PathAt JoinPath(const PathAt& folder, std::string_view name);

  int directory_ = AT_FDCWD;
  std::string text_;
  // How much of the text is the open directory's path.
  std::size_t skip_ = 0;
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
