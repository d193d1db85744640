#include "engine/kept_file.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace cairn {
namespace {

bool IsSameTensor(const TensorTable& a, const TensorEntry& x, const TensorTable& b, const TensorEntry& y) {
  if (x.is_alias() != y.is_alias()) return false;
  if (x.is_alias()) return a[x.alias_of].name == b[y.alias_of].name;
  return x.dtype == y.dtype && x.shape == y.shape && x.part == y.part && x.device == y.device && x.layout == y.layout;
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

KeptChoice ChooseKept(const std::shared_ptr<const TensorTable>& table, const KeptFile* before, bool anew) {
  if (before != nullptr && table == before->table) {
    return {.holds = before->holds, .linked = !anew, .confirms = anew};
  }
  std::vector<bool> holds = FrozenOf(*table);
  bool same = true;
  std::size_t found = 0;
  for (std::uint32_t i = 0; before != nullptr && i < table->size(); ++i) {
    if (!holds[i]) continue;
    const std::optional<std::uint32_t> there = before->table->Find((*table)[i].name);
    const bool of_before = there && IsSameTensor(*table, (*table)[i], *before->table, (*before->table)[*there]);
    if (!of_before || !(*before->table)[*there].frozen) {
      same = false;
      continue;
    }
    // Their holders have decided for aliases, which come behind them.
    const std::uint32_t holder = (*table)[i].is_alias() ? (*table)[i].alias_of : i;
    if (holder != i) {
      holds[i] = holds[holder];
    } else {
      holds[i] = before->holds[*there] && (*table)[i].version == (*before->table)[*there].version;
    }
    if (before->holds[*there] && !holds[i]) same = false;
    found += holds[i] ? 1 : 0;
  }
  if (BytesOf(*table, holds) < kLeastKept) {
    // Too little is left to link, so nothing is lost by a file of all.
    holds = FrozenOf(*table);
    if (BytesOf(*table, holds) < kLeastKept) return {};
    return {.holds = std::move(holds)};
  }
  const auto held =
      before == nullptr ? 0 : static_cast<std::size_t>(std::count(before->holds.begin(), before->holds.end(), true));
  const bool unchanged = before != nullptr && same && found == held;
  return {.holds = std::move(holds), .linked = !anew && unchanged, .confirms = anew && unchanged};
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
