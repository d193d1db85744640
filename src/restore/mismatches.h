#pragma once

#include <fmt/ranges.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cairn/status.h"

namespace cairn {

/// Differences between a state and the shards. Lists the first few in full and counts the others: a state of another
/// model has thousands.
class Mismatches {
 public:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    if (++count_ <= kListed) lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] Status ToStatus() const {
    std::string text = fmt::format("{}", fmt::join(lines_, "; "));
    if (count_ > kListed) text += fmt::format("; and {} more", count_ - kListed);
    return {StatusCode::kInvalidArgument, std::move(text)};
  }

 private:
  static constexpr std::size_t kListed = 8;
  std::size_t count_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace cairn
