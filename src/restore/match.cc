#include "restore/match.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/status_macros.h"
#include "format/fields.h"
#include "restore/mismatches.h"
#include "restore/select.h"

namespace cairn {
namespace {

// A saved name and where its bytes are.
struct Candidate {
  std::string_view name;
  std::uint32_t shard = 0;
  const ShardTensor* tensor = nullptr;
};

std::pair<const std::byte*, const std::byte*> SpanOf(const StridedLayout& layout) {
  const std::byte* end = layout.base + layout.row_bytes;
  for (const StridedLayout::Dimension& dimension : layout.outer) end += (dimension.size - 1) * dimension.stride;
  return {layout.base, end};
}

// Marks the copies whose targets may overlap another target in memory, such as views of one buffer. Copies of the same
// target write different elements and need no mark.
void MarkSharedMemory(std::vector<std::vector<PlannedCopy>>& copies) {
  struct Extent {
    DeviceId device;
    const std::byte* begin;
    const std::byte* end;
    const StridedLayout* target;
  };
  std::vector<Extent> extents;
  for (const auto& of_shard : copies) {
    for (const PlannedCopy& copy : of_shard) {
      if (!extents.empty() && extents.back().target == copy.target) continue;
      const auto [begin, end] = SpanOf(*copy.target);
      extents.push_back({copy.device, begin, end, copy.target});
    }
  }
  std::ranges::sort(extents, [](const Extent& a, const Extent& b) {
    return std::tie(a.device, a.begin, a.target) < std::tie(b.device, b.begin, b.target);
  });
  // Copies of one target may be in several shards.
  extents.erase(std::unique(extents.begin(), extents.end(),
                            [](const Extent& a, const Extent& b) { return a.target == b.target; }),
                extents.end());
  std::unordered_set<const StridedLayout*> shared;
  const Extent* reach = nullptr;  // The one with the largest end so far on this device.
  for (const Extent& extent : extents) {
    if (reach != nullptr && reach->device == extent.device && extent.begin < reach->end) {
      shared.insert(reach->target);
      shared.insert(extent.target);
    }
    if (reach == nullptr || reach->device != extent.device || extent.end > reach->end) reach = &extent;
  }
  if (shared.empty()) return;
  for (auto& of_shard : copies) {
    for (PlannedCopy& copy : of_shard) copy.shares_memory = shared.contains(copy.target);
  }
}

std::string DescribeTensor(DType dtype, const std::vector<std::int64_t>& shape, const std::optional<TensorPart>& part) {
  std::string text = fmt::format("{} {}", DTypeName(dtype), Listed(shape));
  if (part) {
    text +=
        fmt::format(" at {} of {} {}", Listed(part->offset), Quoted(part->logical_name), Listed(part->global_shape));
  }
  return text;
}

// The name of the whole tensor for a part, otherwise the tensor's name.
std::string_view LogicalName(std::string_view name, const std::optional<TensorPart>& part) {
  return part ? std::string_view(part->logical_name) : name;
}

const std::vector<std::int64_t>& GlobalShape(const std::vector<std::int64_t>& shape,
                                             const std::optional<TensorPart>& part) {
  return part ? part->global_shape : shape;
}

// All names in the shards in order of preference: the rank's own shard first, then by shard.
std::vector<Candidate> ListNames(std::span<const SavedShard> shards, std::uint64_t rank) {
  std::vector<Candidate> names;
  std::size_t count = 0;
  for (const SavedShard& shard : shards) {
    if (shard.header != nullptr) count += shard.header->tensors.size() + shard.header->aliases.size();
  }
  names.reserve(count);
  for (const bool own : {true, false}) {
    for (std::uint32_t s = 0; s < shards.size(); ++s) {
      if (shards[s].header == nullptr) continue;
      const ShardHeader& header = *shards[s].header;
      if ((header.cairn && header.shard == rank) != own) continue;
      std::unordered_map<std::string_view, const ShardTensor*> holders;
      for (const ShardTensor& tensor : header.tensors) {
        names.push_back({tensor.name, s, &tensor});
        if (!header.aliases.empty()) holders.emplace(tensor.name, &tensor);
      }
      for (const auto& [alias, holder] : header.aliases) names.push_back({alias, s, holders.at(holder)});
    }
  }
  return names;
}

// The candidates of each table entry by name, in the list's order. Grouped by counting: sorting the names and searching
// for each entry took longer than the rest of the matching.
class ByEntry {
 public:
  ByEntry(const std::vector<Candidate>& names, const TensorTable& table) : begin_(table.size() + 1) {
    std::vector<std::optional<std::uint32_t>> entries;
    entries.reserve(names.size());
    for (const Candidate& c : names) {
      entries.push_back(table.Find(c.name));
      if (entries.back()) ++begin_[*entries.back()];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    candidates_.resize(begin_.back());
    for (std::size_t i = names.size(); i-- > 0;) {
      if (entries[i]) candidates_[--begin_[*entries[i]]] = names[i];
    }
  }

  std::span<const Candidate> operator[](std::uint32_t entry) const {
    return std::span(candidates_).subspan(begin_[entry], begin_[entry + 1] - begin_[entry]);
  }

 private:
  // The first candidate of each entry, and the end.
  std::vector<std::size_t> begin_;
  std::vector<Candidate> candidates_;
};

// Logical tensors and their saved pieces; each is built when an entry first needs it.
class LogicalTensors {
 public:
  struct Logical {
    // Null if no piece has the name.
    const Candidate* first = nullptr;
    // A piece with another dtype or global shape than the first.
    const Candidate* odd = nullptr;
    // Set if there is no odd one.
    std::optional<PieceSet> pieces;
    // Its overlap is among the mismatches.
    bool reported = false;
  };

  explicit LogicalTensors(const std::vector<Candidate>& names) : names_(names) {}

  Logical& Find(std::string_view name) {
    if (index_.empty()) {
      index_ = names_;
      for (Candidate& c : index_) c.name = LogicalName(c.name, c.tensor->part);
      std::ranges::stable_sort(index_, ComesBefore);
    }
    const auto [it, fresh] = logical_.try_emplace(name);
    if (fresh) {
      const auto [first, last] = std::equal_range(index_.begin(), index_.end(), Candidate{.name = name}, ComesBefore);
      Load(it->second, {first, last});
    }
    return it->second;
  }

 private:
  static bool ComesBefore(const Candidate& a, const Candidate& b) { return a.name < b.name; }

  static void Load(Logical& logical, std::span<const Candidate> found) {
    std::vector<SavedPiece> pieces;
    pieces.reserve(found.size());
    for (const Candidate& c : found) {
      if (logical.first == nullptr) logical.first = &c;
      const ShardTensor& a = *logical.first->tensor;
      const ShardTensor& b = *c.tensor;
      if (a.dtype != b.dtype || GlobalShape(a.shape, a.part) != GlobalShape(b.shape, b.part)) {
        logical.odd = &c;
        return;
      }
      pieces.push_back({BoxOf(b.shape, b.part), c.shard, c.tensor});
    }
    logical.pieces.emplace(std::move(pieces));
  }

  const std::vector<Candidate>& names_;
  // By logical name.
  std::vector<Candidate> index_;
  std::unordered_map<std::string_view, Logical> logical_;
};

// Chooses the source of each wanted entry, one after another.
class Matcher {
 public:
  Matcher(std::span<const SavedShard> shards, std::uint64_t rank, const TensorTable& table, bool allow_missing)
      : shards_(shards), table_(table), allow_missing_(allow_missing), names_(ListNames(shards, rank)) {
    matched_.copies.resize(shards.size());
  }

  void Match(std::uint32_t i) {
    const TensorEntry& entry = table_[i];
    const std::span<const Candidate> named = named_[i];
    const auto same_part =
        std::ranges::find_if(named, [&](const Candidate& c) { return c.tensor->part == entry.part; });
    if (same_part != named.end()) {
      const ShardTensor& tensor = *same_part->tensor;
      if (tensor.dtype == entry.dtype && tensor.shape == entry.shape) return Take(i, *same_part);
      // A part that begins at the same place may come from another cut.
      if (!entry.part || tensor.dtype != entry.dtype) return AddMismatch(entry, *same_part);
    }
    LogicalTensors::Logical& logical = logical_.Find(LogicalName(entry.name, entry.part));
    if (logical.first != nullptr) return Assemble(i, logical);
    if (!named.empty()) return AddMismatch(entry, named.front());
    if (allow_missing_) {
      matched_.missing.push_back(entry.name);
      return;
    }
    mismatches_.Add("tensor \"{}\": expected {}, found none with that name", entry.name, Describe(entry));
  }

  Result<MatchedTensors> Finish() && {
    if (!mismatches_.empty()) return mismatches_.ToStatus();
    MarkSharedMemory(matched_.copies);
    return std::move(matched_);
  }

 private:
  // The source of tied memory.
  struct Source {
    std::uint32_t entry = TensorEntry::kNoAlias;
    // Null if it is assembled.
    const ShardTensor* tensor = nullptr;
  };

  static std::string Describe(const TensorEntry& entry) { return DescribeTensor(entry.dtype, entry.shape, entry.part); }
  static std::string Describe(const ShardTensor& tensor) {
    return DescribeTensor(tensor.dtype, tensor.shape, tensor.part);
  }

  void AddMismatch(const TensorEntry& entry, const Candidate& found) {
    mismatches_.Add("tensor \"{}\": expected {}, found {} in {}", entry.name, Describe(entry), Describe(*found.tensor),
                    shards_[found.shard].file);
  }

  // Whether the entry must be written: of tied names one is enough.
  bool Claim(std::uint32_t i, const ShardTensor* tensor) {
    const TensorEntry& entry = table_[i];
    Source& other = by_holder_[entry.is_alias() ? entry.alias_of : i];
    if (other.entry == TensorEntry::kNoAlias) {
      other = {i, tensor};
      ++matched_.tensors;
      matched_.bytes += entry.bytes();
      return entry.bytes() != 0;
    }
    const TensorEntry& tied = table_[other.entry];
    const bool same = tensor != nullptr && other.tensor != nullptr
                          ? tensor == other.tensor
                          : LogicalName(tied.name, tied.part) == LogicalName(entry.name, entry.part);
    if (!same) {
      mismatches_.Add("tensors \"{}\" and \"{}\" share memory but were saved separately; restore one of them by name",
                      tied.name, entry.name);
    }
    return false;
  }

  void Take(std::uint32_t i, const Candidate& saved) {
    if (!Claim(i, saved.tensor)) return;
    AddCopy(table_[i], saved.shard, saved.tensor->begin, saved.tensor->end, 0);
  }

  void Assemble(std::uint32_t i, LogicalTensors::Logical& logical) {
    const TensorEntry& entry = table_[i];
    const ShardTensor& first = *logical.first->tensor;
    if (first.dtype != entry.dtype || GlobalShape(first.shape, first.part) != GlobalShape(entry.shape, entry.part)) {
      return AddMismatch(entry, *logical.first);
    }
    if (logical.odd != nullptr) return AddMismatch(entry, *logical.odd);
    if (const auto& overlap = logical.pieces->overlap()) {
      if (std::exchange(logical.reported, true)) return;
      const auto& [a, b] = *overlap;
      mismatches_.Add("{} in {} and {} in {} overlap: {} and {}", Quoted(a.tensor->name), shards_[a.shard].file,
                      Quoted(b.tensor->name), shards_[b.shard].file, Describe(*a.tensor), Describe(*b.tensor));
      return;
    }
    const Box wanted = BoxOf(entry.shape, entry.part);
    const std::vector<const SavedPiece*> pieces = logical.pieces->Touching(wanted);
    std::uint64_t missing = wanted.elements();
    for (const SavedPiece* piece : pieces) missing -= Intersect(piece->box, wanted).elements();
    if (missing != 0) {
      mismatches_.Add("tensor \"{}\": expected {}, found no part of \"{}\" with {} of its {} elements", entry.name,
                      Describe(entry), LogicalName(entry.name, entry.part), missing, wanted.elements());
      return;
    }
    if (!Claim(i, nullptr)) return;
    const std::uint64_t item = DTypeSize(entry.dtype);
    for (const SavedPiece* piece : pieces) {
      SharedRows rows = FindSharedRows(piece->box, wanted);
      rows.shape.size *= item;
      for (RowShape::Level& level : rows.shape.levels) {
        level.from *= item;
        level.to *= item;
      }
      AddRows(entry, *piece, piece->tensor->begin + rows.from * item, rows.to * item, std::move(rows.shape));
    }
  }

  // One copy for all rows; several if blocks lie between them that need not be read.
  void AddRows(const TensorEntry& entry, const SavedPiece& piece, std::uint64_t from, std::uint64_t to,
               RowShape shape) {
    std::size_t apart = 0;  // The number of outer levels with such gaps.
    std::uint64_t copies = 1;
    while (apart < shape.levels.size() && shape.levels[apart].from - shape.Reach(apart + 1) >= kChecksumBlock) {
      copies *= shape.levels[apart++].count;
    }
    const auto within = shape.levels.begin() + static_cast<std::ptrdiff_t>(apart);
    const std::vector<RowShape::Level> outer(shape.levels.begin(), within);
    shape.levels.erase(shape.levels.begin(), within);
    const std::uint64_t reach = shape.Reach();
    const RowShape* rows = nullptr;
    if (!shape.levels.empty()) rows = &matched_.shapes.emplace_back(std::move(shape));
    for (std::uint64_t i = 0; i < copies; ++i) {
      std::uint64_t begin = from;
      std::uint64_t target_begin = to;
      std::uint64_t left = i;
      for (auto level = outer.rbegin(); level != outer.rend(); ++level) {
        begin += left % level->count * level->from;
        target_begin += left % level->count * level->to;
        left /= level->count;
      }
      AddCopy(entry, piece.shard, begin, begin + reach, target_begin);
      matched_.copies[piece.shard].back().rows = rows;
    }
  }

  void AddCopy(const TensorEntry& entry, std::uint32_t shard, std::uint64_t begin, std::uint64_t end,
               std::uint64_t target_begin) {
    matched_.copies[shard].push_back({.begin = begin,
                                      .end = end,
                                      .target = &entry.layout,
                                      .target_begin = target_begin,
                                      .device = entry.device,
                                      .name = entry.name});
  }

  const std::span<const SavedShard> shards_;
  const TensorTable& table_;
  const bool allow_missing_;
  const std::vector<Candidate> names_;
  const ByEntry named_{names_, table_};
  LogicalTensors logical_{names_};
  std::vector<Source> by_holder_ = std::vector<Source>(table_.size());
  Mismatches mismatches_;
  MatchedTensors matched_;
};

}  // namespace

Result<MatchedTensors> MatchTensors(std::span<const SavedShard> shards, std::uint64_t rank, const TensorTable& table,
                                    const RestoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> wanted, SelectEntries(table, options.names));
  for (const std::uint32_t i : wanted) {
    if (!table[i].save_only) continue;
    return Error(
        StatusCode::kInvalidArgument,
        "tensor {}: its elements share memory or run backwards, so it can be saved, not restored into: give it "
        "memory of its own",
        Quoted(table[i].name));
  }
  Matcher matcher(shards, rank, table, options.allow_missing);
  for (const std::uint32_t i : wanted) matcher.Match(i);
  return std::move(matcher).Finish();
}

}  // namespace cairn
