#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "format/shard_header.h"

namespace cairn {

/// Finds a shard's tensors by name. Sorted by hash, then name, so that hostile names cost no more than others.
class NameIndex {
 public:
  /// `tensors` must not change while the index is used.
  explicit NameIndex(const std::vector<ShardTensor>& tensors);

  [[nodiscard]] std::optional<std::size_t> Find(std::string_view name) const;
  /// A tensor whose name is not unique.
  [[nodiscard]] std::optional<std::size_t> duplicate() const { return duplicate_; }

 private:
  const std::vector<ShardTensor>& tensors_;
  // {hash of the name, index}
  std::vector<std::pair<std::size_t, std::size_t>> entries_;
  std::optional<std::size_t> duplicate_;
};

}  // namespace cairn
