#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "restore/open.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tools/reading.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

struct Counts {
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};

/// A tensor on both sides.
struct Pair {
  const StoredTensor* a;
  const StoredTensor* b;
  Counts differing;
};
/// Tensors with the same name but another dtype, shape, part or content.
struct Difference {
  std::string name;
  TensorInfo a;
  TensorInfo b;
  Counts differing;
};
struct Differences {
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<Difference> types;
  std::vector<Difference> bytes;
  std::uint64_t identical = 0;

  [[nodiscard]] bool none() const { return only_in_a.empty() && only_in_b.empty() && types.empty() && bytes.empty(); }
};

/// One side of the comparison, and what has been read of it.
struct Side {
  TensorSource& source;
  // Hashes of the names of all tensors.
  std::vector<std::size_t> names{};
  /// Tensors that are missing in the other side's file of the same number.
  std::vector<TensorPlace> unmatched{};

  void Sort() {
    std::ranges::sort(names);
    std::ranges::sort(unmatched);
  }
  /// Whether several files have that name, such as each rank's RNG state. Call it after Sort.
  [[nodiscard]] bool HasSeveral(std::string_view name) const {
    const auto [first, last] = std::equal_range(names.begin(), names.end(), std::hash<std::string_view>()(name));
    return last - first > 1;
  }
};

Counts CountDiffering(const std::byte* a, const std::byte* b, std::uint64_t bytes, std::size_t item) {
  Counts counts;
  if (std::memcmp(a, b, bytes) == 0) return counts;
  for (std::uint64_t at = 0; at < bytes; at += item) {
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < item; ++i) differing += a[at + i] != b[at + i] ? 1 : 0;
    counts.bytes += differing;
    counts.elements += differing != 0 ? 1 : 0;
  }
  return counts;
}

/// Matches tensors by name and file, a few files at a time, so that only their headers are in memory. Then matches the
/// rest by name, if neither side has the name twice.
class Comparison {
 public:
  Comparison(const RestoreParts& parts, TensorSource& a, TensorSource& b)
      : parts_(parts), a_{a}, b_{b}, bar_("comparing") {
    for (std::uint32_t file = 0; file < a.files(); ++file) total_ += a.file_bytes(file);
  }

  Result<Differences> Run() {
    const std::uint32_t files = std::max(a_.source.files(), b_.source.files());
    for (std::uint32_t first = 0; first < files; first += kHeaderReads) {
      CAIRN_RETURN_IF_ERROR(CompareFiles(first, first + kHeaderReads));
    }
    a_.Sort();
    b_.Sort();
    CAIRN_RETURN_IF_ERROR(CompareMoved());
    for (const TensorPlace& one : a_.unmatched) out_.only_in_a.push_back(Label(a_, one));
    for (const TensorPlace& one : b_.unmatched) out_.only_in_b.push_back(Label(b_, one));
    for (std::vector<Difference>* list : {&out_.types, &out_.bytes}) {
      for (Difference& one : *list) one.name = Label(one.name, one.a.file);
      std::ranges::sort(*list, [](const Difference& x, const Difference& y) { return x.name < y.name; });
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::string Label(const std::string& name, const std::string& file) const {
    return a_.HasSeveral(name) || b_.HasSeveral(name) ? fmt::format("{} ({})", name, file) : name;
  }

  [[nodiscard]] std::string Label(const Side& side, const TensorPlace& place) const {
    return Label(place.name, side.source.file_name(place.file));
  }

  Status SelectFiles(Side& side, std::uint32_t first, std::uint32_t end) {
    CAIRN_RETURN_IF_ERROR(side.source.SelectRange(parts_, first, end));
    for (const StoredTensor& tensor : side.source.tensors()) {
      side.names.push_back(std::hash<std::string_view>()(tensor.info.name));
    }
    return Status::Ok();
  }

  Status CompareFiles(std::uint32_t first, std::uint32_t end) {
    CAIRN_RETURN_IF_ERROR(SelectFiles(a_, first, end));
    CAIRN_RETURN_IF_ERROR(SelectFiles(b_, first, end));
    std::vector<Pair> pairs;
    const auto key = [](const StoredTensor& tensor) { return std::tie(tensor.info.name, tensor.shard); };
    const auto left = [](Side& side, const StoredTensor& tensor) {
      side.unmatched.push_back({tensor.info.name, tensor.shard});
    };
    auto a = a_.source.tensors().begin();
    auto b = b_.source.tensors().begin();
    const auto end_a = a_.source.tensors().end();
    const auto end_b = b_.source.tensors().end();
    while (a != end_a || b != end_b) {
      if (b == end_b || (a != end_a && key(*a) < key(*b))) {
        left(a_, *a++);
      } else if (a == end_a || key(*b) < key(*a)) {
        left(b_, *b++);
      } else {
        pairs.push_back({&*a++, &*b++, {}});
      }
    }
    CAIRN_RETURN_IF_ERROR(ComparePairs(pairs));
    for (std::uint32_t file = first; file < std::min(end, a_.source.files()); ++file) {
      done_ += a_.source.file_bytes(file);
    }
    bar_.Update(done_, total_);
    return Status::Ok();
  }

  // Tensors in different files: replicated ones, or those of another number of ranks.
  Status CompareMoved() {
    std::vector<std::pair<TensorPlace, TensorPlace>> moved;
    std::vector<TensorPlace> only_in_a;
    std::set<std::string_view> names;
    const auto same_name = [](const TensorPlace& x, const TensorPlace& y) { return x.name < y.name; };
    for (TensorPlace& one : a_.unmatched) {
      const auto other = std::lower_bound(b_.unmatched.begin(), b_.unmatched.end(), one, same_name);
      if (other == b_.unmatched.end() || other->name != one.name || a_.HasSeveral(one.name) ||
          b_.HasSeveral(one.name)) {
        only_in_a.push_back(std::move(one));
      } else {
        moved.emplace_back(std::move(one), *other);
      }
    }
    a_.unmatched = std::move(only_in_a);
    for (const auto& [in_a, in_b] : moved) names.insert(in_b.name);
    std::erase_if(b_.unmatched, [&names](const TensorPlace& one) { return names.contains(one.name); });
    // A few of a's files at a time.
    std::ranges::sort(moved, [](const auto& x, const auto& y) { return x.first.file < y.first.file; });
    for (auto first = moved.begin(); first != moved.end();) {
      const std::uint32_t end = first->first.file + kHeaderReads;
      const auto last = std::find_if(first, moved.end(), [end](const auto& one) { return one.first.file >= end; });
      CAIRN_RETURN_IF_ERROR(CompareMoved(std::span(first, last)));
      first = last;
    }
    return Status::Ok();
  }

  Status CompareMoved(std::span<const std::pair<TensorPlace, TensorPlace>> moved) {
    std::vector<TensorPlace> places_a;
    std::vector<TensorPlace> places_b;
    for (const auto& [in_a, in_b] : moved) {
      places_a.push_back(in_a);
      places_b.push_back(in_b);
    }
    CAIRN_ASSIGN_OR_RETURN(const std::vector<const StoredTensor*> of_a, a_.source.Find(parts_, places_a));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<const StoredTensor*> of_b, b_.source.Find(parts_, places_b));
    std::vector<Pair> pairs;
    for (std::size_t i = 0; i < of_a.size(); ++i) pairs.push_back({of_a[i], of_b[i], {}});
    return ComparePairs(pairs);
  }

  Status ComparePairs(std::vector<Pair>& pairs) {
    const auto add = [](std::vector<Difference>& to, const Pair& pair) {
      to.push_back({pair.a->info.name, pair.a->info, pair.b->info, pair.differing});
    };
    std::erase_if(pairs, [&](const Pair& pair) {
      const TensorInfo& x = pair.a->info;
      const TensorInfo& y = pair.b->info;
      const bool differ = x.dtype != y.dtype || x.shape != y.shape || x.part != y.part;
      if (differ) add(out_.types, pair);
      return differ;
    });
    CAIRN_RETURN_IF_ERROR(CompareBytes(pairs));
    for (const Pair& pair : pairs) {
      if (pair.differing.bytes == 0) {
        ++out_.identical;
      } else {
        add(out_.bytes, pair);
      }
    }
    return Status::Ok();
  }

  Status CompareBytes(std::vector<Pair>& pairs) {
    std::vector<const StoredTensor*> of_a;
    std::vector<const StoredTensor*> of_b;
    for (const Pair& pair : pairs) {
      of_a.push_back(pair.a);
      of_b.push_back(pair.b);
    }
    std::uint64_t read = 0;
    const auto compare = [&](std::size_t i, const std::byte* a, const std::byte* b, std::uint64_t bytes) {
      const Counts counts = CountDiffering(a, b, bytes, DTypeSize(pairs[i].a->info.dtype));
      pairs[i].differing.bytes += counts.bytes;
      pairs[i].differing.elements += counts.elements;
      read += bytes;
      bar_.Update(std::min(done_ + read, total_), total_);
    };
    return ReadPairs(parts_, a_.source, of_a, b_.source, of_b, compare);
  }

  const RestoreParts& parts_;
  Side a_;
  Side b_;
  ProgressBar bar_;
  // Of a's files.
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  Differences out_;
};

std::uint64_t Elements(const TensorInfo& tensor) { return tensor.bytes / DTypeSize(tensor.dtype); }

/// Of what root a side is, if it does not lie in that.
void PrintCopy(std::string_view side, const TensorSource& source) {
  const StoredCheckpoint* const checkpoint = source.checkpoint();
  if (checkpoint == nullptr || !checkpoint->info.copy) return;
  fmt::print("the {}: step {}, {}\n", side, checkpoint->info.step, LineText(checkpoint->info));
}

void PrintDifferences(const Differences& differences) {
  for (const std::string& name : differences.only_in_a) fmt::print("only in the first: {}\n", Printable(name));
  for (const std::string& name : differences.only_in_b) fmt::print("only in the second: {}\n", Printable(name));
  for (const Difference& one : differences.types) {
    fmt::print("{}: {} against {}\n", Printable(one.name), DescribeType(one.a), DescribeType(one.b));
  }
  for (const Difference& one : differences.bytes) {
    fmt::print("{}: {} of {} elements differ, {} of {} bytes\n", Printable(one.name), one.differing.elements,
               Elements(one.a), one.differing.bytes, one.a.bytes);
  }
  fmt::print("{} identical\n", Count(differences.identical, "tensor"));
}

nlohmann::json DifferencesToJson(const Differences& differences) {
  nlohmann::json out{{"identical", differences.identical},      {"same", differences.none()},
                     {"only_in_a", differences.only_in_a},      {"only_in_b", differences.only_in_b},
                     {"types_differ", nlohmann::json::array()}, {"bytes_differ", nlohmann::json::array()}};
  for (const Difference& one : differences.types) {
    out["types_differ"].push_back({{"name", one.name}, {"a", ToJson(one.a)}, {"b", ToJson(one.b)}});
  }
  for (const Difference& one : differences.bytes) {
    out["bytes_differ"].push_back({{"name", one.name},
                                   {"elements", Elements(one.a)},
                                   {"differing_elements", one.differing.elements},
                                   {"bytes", one.a.bytes},
                                   {"differing_bytes", one.differing.bytes}});
  }
  return out;
}

/// What one side of the command line names.
struct Named {
  std::string path;
  std::optional<std::uint64_t> step{};
};

Status WrongSides(const std::string& why) {
  return Error(StatusCode::kInvalidArgument, "diff compares two paths, or two steps of one root: {}", why);
}

/// "ROOT 35 40" and "ROOT 35": steps of one root. A path that exists is a path, also where it is a number.
Result<std::vector<Named>> StepsOfOneRoot(const DiffOptions& options) {
  const std::string& root = options.sides.front();
  if (!options.steps.empty()) return WrongSides("give the steps either behind the root or with --step");
  std::vector<Named> sides;
  for (std::size_t i = 1; i < options.sides.size(); ++i) {
    const std::optional<std::uint64_t> step = ParseStep(options.sides[i]);
    if (!step) {
      const std::string& last = options.sides.back();
      const bool two_roots = options.sides.size() == 3 && i == 1 && ParseStep(last);
      return WrongSides(fmt::format("expected a step of {}, found \"{}\"{}", root, options.sides[i],
                                    two_roots ? "; for that step of both give --step " + last : ""));
    }
    sides.push_back({root, step});
  }
  if (sides.size() == 1) sides.push_back({root});  // Its newest.
  return sides;
}

Result<std::vector<Named>> Name(const DiffOptions& options) {
  const std::vector<std::string>& paths = options.sides;
  const std::vector<std::uint64_t>& steps = options.steps;
  const bool second_is_a_step = paths.size() > 1 && ParseStep(paths[1]) && !KindOf(paths[1]).ok();
  if (paths.size() > 2 || second_is_a_step) return StepsOfOneRoot(options);
  if (steps.size() > 2) return WrongSides(fmt::format("expected at most two --step, found {}", steps.size()));
  if (paths.size() == 1 && steps.size() != 2) {
    return WrongSides(fmt::format("found one path, {}, and not two steps", paths.front()));
  }
  std::vector<Named> sides{{paths.front()}, {paths.back()}};
  for (std::size_t i = 0; i < sides.size() && !steps.empty(); ++i) {
    const Result<PathKind> kind = KindOf(sides[i].path);
    // With one step for both, a side that is no root needs none.
    if (steps.size() == 2 || (kind.ok() && *kind == PathKind::kRoot))
      sides[i].step = i == 0 ? steps.front() : steps.back();
  }
  if (!steps.empty() && !sides[0].step && !sides[1].step)
    return WrongSides("neither side is a root, so --step says nothing");
  return sides;
}

}  // namespace

Result<int> Diff(const DiffOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Named> named, Name(options));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make());
  CAIRN_ASSIGN_OR_RETURN(TensorSource source_a, OpenSource(*reading, named.front().path, named.front().step));
  CAIRN_ASSIGN_OR_RETURN(TensorSource source_b, OpenSource(*reading, named.back().path, named.back().step));
  CAIRN_ASSIGN_OR_RETURN(const Differences differences, Comparison(reading->parts(), source_a, source_b).Run());
  if (options.json) {
    PrintJson(DifferencesToJson(differences));
  } else {
    PrintCopy("first", source_a);
    PrintCopy("second", source_b);
    PrintDifferences(differences);
  }
  return differences.none() ? kGood : kDamagedOrDifferent;
}

}  // namespace cairn::tools
