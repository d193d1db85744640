#include "engine/kept_file.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace cairn {
namespace {

// Whether a file describes both alike.
bool IsSameEntry(const TensorTable& a, const TensorEntry& x, const TensorTable& b, const TensorEntry& y) {
  if (x.is_alias() != y.is_alias()) return false;
  if (x.is_alias()) return a[x.alias_of].name == b[y.alias_of].name;
  return x.dtype == y.dtype && x.shape == y.shape && x.part == y.part;
}

bool IsSameTensor(const TensorTable& a, const TensorEntry& x, const TensorTable& b, const TensorEntry& y) {
  return IsSameEntry(a, x, b, y) && (x.is_alias() || (x.device == y.device && x.layout == y.layout));
}

// Entries that are frozen under all of their names.
std::vector<bool> FrozenOf(const TensorTable& table) {
  std::vector<bool> frozen(table.size());
  for (std::uint32_t i = 0; i < table.size(); ++i) frozen[i] = table[i].frozen;
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (table[i].is_alias() && !frozen[i]) frozen[table[i].alias_of] = false;
  }
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (table[i].is_alias()) frozen[i] = frozen[table[i].alias_of];
  }
  return frozen;
}

std::uint64_t BytesOf(const TensorTable& table, const std::vector<bool>& entries) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (entries[i] && !table[i].is_alias()) bytes += table[i].bytes();
  }
  return bytes;
}

// Those of the frozen entries into which nobody counts writes.
std::vector<bool> UncountedOf(const TensorTable& table, const std::vector<bool>& frozen) {
  std::vector<bool> uncounted(table.size());
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    uncounted[i] = frozen[i] && !table[table[i].is_alias() ? table[i].alias_of : i].version;
  }
  return uncounted;
}

// Whether a file of what the table holds would have the header and the layout of `before`.
bool HoldsTheSame(const TensorTable& table, const std::vector<bool>& holds, const KeptFile& before) {
  if (&table == before.table.get() && holds == before.holds) return true;
  if (std::ranges::count(holds, true) != std::ranges::count(before.holds, true)) return false;
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (!holds[i]) continue;
    const std::optional<std::uint32_t> there = before.table->Find(table[i].name);
    if (!there || !before.holds[*there] || !IsSameEntry(table, table[i], *before.table, (*before.table)[*there])) {
      return false;
    }
  }
  return true;
}

KeptChoice ChooseByContent(const TensorTable& table, std::vector<bool> frozen, const KeptFile* before,
                           const KeptRules& rules) {
  if (BytesOf(table, frozen) < kLeastKept) return {};
  const bool same = before != nullptr && !before->sums.empty() && HoldsTheSame(table, frozen, *before);
  return {.holds = std::move(frozen), .compared = same && !rules.anew};
}

KeptChoice ChooseByVersion(const TensorTable& table, std::vector<bool> frozen, const KeptFile* before,
                           const KeptRules& rules) {
  if (before != nullptr && &table == before->table.get()) {
    return {.holds = before->holds, .linked = !rules.anew, .confirms = rules.anew};
  }
  std::vector<bool> holds = frozen;
  bool same = true;
  std::size_t found = 0;
  for (std::uint32_t i = 0; before != nullptr && i < table.size(); ++i) {
    if (!holds[i]) continue;
    const std::optional<std::uint32_t> there = before->table->Find(table[i].name);
    const bool of_before = there && IsSameTensor(table, table[i], *before->table, (*before->table)[*there]);
    if (!of_before || !(*before->table)[*there].frozen) {
      same = false;
      continue;
    }
    // Their holders have decided for aliases, which come behind them.
    const std::uint32_t holder = table[i].is_alias() ? table[i].alias_of : i;
    if (holder != i) {
      holds[i] = holds[holder];
    } else {
      holds[i] = before->holds[*there] && table[i].version == (*before->table)[*there].version;
    }
    if (before->holds[*there] && !holds[i]) same = false;
    found += holds[i] ? 1 : 0;
  }
  if (BytesOf(table, holds) < kLeastKept) {
    // Too little is left to link, so nothing is lost by a file of all.
    if (BytesOf(table, frozen) < kLeastKept) return {};
    return {.holds = std::move(frozen)};
  }
  const auto held =
      before == nullptr ? 0 : static_cast<std::size_t>(std::count(before->holds.begin(), before->holds.end(), true));
  const bool unchanged = before != nullptr && same && found == held;
  return {.holds = std::move(holds), .linked = !rules.anew && unchanged, .confirms = rules.anew && unchanged};
}

struct MemoryRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

MemoryRange RangeOf(const StridedLayout& layout) {
  MemoryRange range{.begin = reinterpret_cast<std::uintptr_t>(layout.base)};
  range.end = range.begin + layout.row_bytes;
  for (const StridedLayout::Dimension& dimension : layout.outer) {
    const std::int64_t reach = (dimension.size - 1) * dimension.stride;
    (reach < 0 ? range.begin : range.end) += static_cast<std::uintptr_t>(reach);
  }
  return range;
}

}  // namespace

KeptChoice ChooseKept(const std::shared_ptr<const TensorTable>& table, const KeptFile* before, const KeptRules& rules) {
  std::vector<bool> frozen = FrozenOf(*table);
  if (const std::vector<bool> uncounted = UncountedOf(*table, frozen); BytesOf(*table, uncounted) != 0) {
    const std::uint64_t bytes = BytesOf(*table, uncounted);
    const bool little = bytes < kLeastKept && BytesOf(*table, frozen) - bytes >= kLeastKept;
    if (rules.checksums && !little) return ChooseByContent(*table, std::move(frozen), before, rules);
    for (std::uint32_t i = 0; i < table->size(); ++i) frozen[i] = frozen[i] && !uncounted[i];
  }
  return ChooseByVersion(*table, std::move(frozen), before, rules);
}

bool MayChangeFrozen(const TensorTable& table, const TensorTable& targets) {
  if (!table.has_frozen()) return false;
  std::vector<MemoryRange> written;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i].is_alias() && targets[i].bytes() != 0) written.push_back(RangeOf(targets[i].layout));
  }
  std::ranges::sort(written, {}, &MemoryRange::begin);
  // The farthest end of all up to each one.
  for (std::size_t i = 1; i < written.size(); ++i) written[i].end = std::max(written[i].end, written[i - 1].end);
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!table[i].frozen || table[i].is_alias() || table[i].bytes() == 0) continue;
    const MemoryRange frozen = RangeOf(table[i].layout);
    const auto behind = std::ranges::lower_bound(written, frozen.end, {}, &MemoryRange::begin);
    if (behind != written.begin() && std::prev(behind)->end > frozen.begin) return true;
  }
  return false;
}

}  // namespace cairn
