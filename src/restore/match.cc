#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/status_macros.h"
#include "restore/plan.h"

namespace cairn {
namespace {

// Where a name's bytes are.
struct Candidate {
  std::string_view name;
  bool foreign = true;  // Not this rank's own shard: sorts behind it.
  std::uint32_t shard = 0;
  const ShardTensor* tensor = nullptr;
};

bool ComesBefore(const Candidate& a, const Candidate& b) {
  return std::tie(a.name, a.foreign, a.shard) < std::tie(b.name, b.foreign, b.shard);
}

// The first few mismatches in full, the others counted: a state of another model has thousands.
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

std::string DescribeTensor(DType dtype, const std::vector<std::int64_t>& shape, const std::optional<TensorPart>& part) {
  std::string text = fmt::format("{} [{}]", DTypeName(dtype), fmt::join(shape, ", "));
  if (part) {
    text += fmt::format(" at [{}] of \"{}\" [{}]", fmt::join(part->offset, ", "), part->logical_name,
                        fmt::join(part->global_shape, ", "));
  }
  return text;
}

std::vector<Candidate> IndexShards(std::span<const SavedShard> shards, std::uint64_t rank) {
  std::vector<Candidate> index;
  for (std::uint32_t s = 0; s < shards.size(); ++s) {
    const ShardHeader& header = *shards[s].header;
    const bool foreign = !header.cairn || header.shard != rank;
    std::unordered_map<std::string_view, const ShardTensor*> holders;
    for (const ShardTensor& tensor : header.tensors) {
      index.push_back({tensor.name, foreign, s, &tensor});
      if (!header.aliases.empty()) holders.emplace(tensor.name, &tensor);
    }
    for (const auto& [alias, holder] : header.aliases) {
      index.push_back({alias, foreign, s, holders.at(holder)});
    }
  }
  std::sort(index.begin(), index.end(), ComesBefore);
  return index;
}

// Indices of the table's wanted entries, ascending.
Result<std::vector<std::uint32_t>> SelectEntries(const TensorTable& table, const std::vector<std::string>& names) {
  std::vector<bool> selected(table.size(), names.empty());
  Mismatches mismatches;
  for (const std::string& pattern : names) {
    if (!IsUtf8(pattern)) {
      mismatches.Add("the pattern {:?} is no UTF-8 text", std::string_view(pattern));
      continue;
    }
    bool matched = false;
    if (const auto exact = table.Find(pattern)) {
      selected[*exact] = true;
      matched = true;
    }
    if (pattern.find_first_of("*?") != std::string::npos) {
      for (std::uint32_t i = 0; i < table.size(); ++i) {
        if (!MatchesPattern(pattern, table[i].name)) continue;
        selected[i] = true;
        matched = true;
      }
    }
    if (!matched) mismatches.Add("\"{}\" matches none of the state's {} tensors", pattern, table.size());
  }
  if (!mismatches.empty()) return mismatches.ToStatus();
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (selected[i]) indices.push_back(i);
  }
  return indices;
}

std::pair<const std::byte*, const std::byte*> SpanOf(const StridedLayout& layout) {
  const std::byte* end = layout.base + layout.row_bytes;
  for (const StridedLayout::Dimension& dimension : layout.outer) end += (dimension.size - 1) * dimension.stride;
  return {layout.base, end};
}

// Marks the copies whose targets' memory may overlap another's: views of one buffer that are not the very same tensor.
void MarkSharedMemory(std::vector<std::vector<PlannedCopy>>& copies) {
  struct Extent {
    DeviceId device;
    const std::byte* begin;
    const std::byte* end;
    PlannedCopy* copy;
  };
  std::vector<Extent> extents;
  for (auto& of_shard : copies) {
    for (PlannedCopy& copy : of_shard) {
      const auto [begin, end] = SpanOf(*copy.target);
      extents.push_back({copy.device, begin, end, &copy});
    }
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::tie(a.device, a.begin) < std::tie(b.device, b.begin); });
  const Extent* reach = nullptr;  // Of those so far on this device, the one that ends last.
  for (const Extent& extent : extents) {
    if (reach != nullptr && reach->device == extent.device && extent.begin < reach->end) {
      reach->copy->shares_memory = true;
      extent.copy->shares_memory = true;
    }
    if (reach == nullptr || reach->device != extent.device || extent.end > reach->end) reach = &extent;
  }
}

// The first candidate for `entry` whose part is the wanted one, or null with the mismatch noted.
const Candidate* FindSaved(const std::vector<Candidate>& index, std::span<const SavedShard> shards,
                           const TensorEntry& entry, Mismatches& mismatches) {
  const auto first = std::lower_bound(index.begin(), index.end(), entry.name,
                                      [](const Candidate& c, const std::string& name) { return c.name < name; });
  auto it = first;
  while (it != index.end() && it->name == entry.name && it->tensor->part != entry.part) ++it;
  const bool part_found = it != index.end() && it->name == entry.name;
  const Candidate& saved = part_found ? *it : *first;
  if (part_found && saved.tensor->dtype == entry.dtype && saved.tensor->shape == entry.shape) return &saved;
  mismatches.Add(
      "tensor \"{}\": expected {}, found {} in {}", entry.name, DescribeTensor(entry.dtype, entry.shape, entry.part),
      DescribeTensor(saved.tensor->dtype, saved.tensor->shape, saved.tensor->part), shards[saved.shard].file);
  return nullptr;
}

bool IsSaved(const std::vector<Candidate>& index, const std::string& name) {
  const auto it = std::lower_bound(index.begin(), index.end(), name,
                                   [](const Candidate& c, const std::string& n) { return c.name < n; });
  return it != index.end() && it->name == name;
}

}  // namespace

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  if (pattern == name) return true;
  // Greedy with one point of return: the last * seen, and how much of the name it has swallowed.
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t swallowed = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = n;
    } else if (p < pattern.size() && pattern[p] == '?') {
      ++p;
      do ++n;
      while (n < name.size() && (static_cast<unsigned char>(name[n]) & 0xc0) == 0x80);
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<MatchedTensors> MatchTensors(std::span<const SavedShard> shards, std::uint64_t rank, const TensorTable& table,
                                    const RestoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> wanted, SelectEntries(table, options.names));
  const std::vector<Candidate> index = IndexShards(shards, rank);

  MatchedTensors matched;
  matched.copies.resize(shards.size());
  Mismatches mismatches;
  struct Chosen {
    std::uint32_t entry;
    const ShardTensor* tensor;
  };
  std::unordered_map<std::uint32_t, Chosen> by_holder;  // What is written into each piece of tied memory.
  for (const std::uint32_t i : wanted) {
    const TensorEntry& entry = table[i];
    if (!IsSaved(index, entry.name)) {
      if (options.allow_missing) {
        matched.missing.push_back(entry.name);
      } else {
        mismatches.Add("tensor \"{}\": expected {}, found none of that name", entry.name,
                       DescribeTensor(entry.dtype, entry.shape, entry.part));
      }
      continue;
    }
    const Candidate* saved = FindSaved(index, shards, entry, mismatches);
    if (saved == nullptr) continue;
    const auto [it, first] = by_holder.try_emplace(entry.is_alias() ? entry.alias_of : i, Chosen{i, saved->tensor});
    if (!first) {
      if (it->second.tensor != saved->tensor) {
        mismatches.Add("tensors \"{}\" and \"{}\" share memory, but were saved as two; restore one of them by name",
                       table[it->second.entry].name, entry.name);
      }
      continue;
    }
    ++matched.tensors;
    matched.bytes += entry.bytes();
    if (entry.bytes() == 0) continue;
    matched.copies[saved->shard].push_back({.begin = saved->tensor->begin,
                                            .end = saved->tensor->end,
                                            .target = &entry.layout,
                                            .device = entry.device,
                                            .name = entry.name});
  }
  if (!mismatches.empty()) return mismatches.ToStatus();
  MarkSharedMemory(matched.copies);
  return matched;
}

}  // namespace cairn
