#include "format/name_index.h"

#include <algorithm>
#include <functional>

namespace cairn {

NameIndex::NameIndex(const std::vector<ShardTensor>& tensors) : tensors_(tensors) {
  entries_.reserve(tensors.size());
  const std::hash<std::string_view> hash;
  for (std::size_t i = 0; i < tensors.size(); ++i) entries_.emplace_back(hash(tensors[i].name), i);
  std::ranges::sort(entries_, [&tensors](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : tensors[a.second].name < tensors[b.second].name;
  });
  const auto equal = std::adjacent_find(entries_.begin(), entries_.end(), [&tensors](const auto& a, const auto& b) {
    return a.first == b.first && tensors[a.second].name == tensors[b.second].name;
  });
  if (equal != entries_.end()) duplicate_ = equal->second;
}

std::optional<std::size_t> NameIndex::Find(std::string_view name) const {
  const std::size_t hash = std::hash<std::string_view>()(name);
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), name, [&](const auto& entry, std::string_view) {
    return entry.first != hash ? entry.first < hash : tensors_[entry.second].name < name;
  });
  if (found == entries_.end() || found->first != hash || tensors_[found->second].name != name) return std::nullopt;
  return found->second;
}

}  // namespace cairn
