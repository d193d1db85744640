#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "restore/open.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/reading.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

struct Counts {
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};

/// A tensor of both.
struct Pair {
  const StoredTensor* a;
  const StoredTensor* b;
  Counts differing;
};
/// Tensors of one name that are of another dtype, shape or part, or of other bytes.
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

/// A tensor of one side that the other side's file of that number does not have.
struct Unmatched {
  std::string name;
  std::uint32_t file = 0;
  std::string file_name;
  friend auto operator<=>(const Unmatched& a, const Unmatched& b) = default;
};

/// One side: what is compared, and what was seen of it so far.
struct Side {
  TensorSource& source;
  std::vector<std::size_t> names{};  // Of every tensor, by their hashes.
  std::vector<Unmatched> unmatched{};

  /// Sorts what was seen.
  void Sort() {
    std::sort(names.begin(), names.end());
    std::sort(unmatched.begin(), unmatched.end());
  }
  /// Whether several files hold that name (a rank's own RNG state). Once all are sorted.
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

/// Tensors are matched by name and file, some files at a time, so that any number of them fits into memory: the headers
/// of those alone are held. What is left is matched by name, where neither side has several of it.
class Comparison {
 public:
  Comparison(const RestoreParts& parts, TensorSource& a, TensorSource& b)
      : parts_(parts), a_{a}, b_{b}, memory_a_(kWindowBytes), memory_b_(kWindowBytes), bar_("comparing") {
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
    for (const Unmatched& one : a_.unmatched) out_.only_in_a.push_back(Label(one.name, one.file_name));
    for (const Unmatched& one : b_.unmatched) out_.only_in_b.push_back(Label(one.name, one.file_name));
    for (std::vector<Difference>* list : {&out_.types, &out_.bytes}) {
      for (Difference& one : *list) one.name = Label(one.name, one.a.file);
      std::sort(list->begin(), list->end(), [](const Difference& x, const Difference& y) { return x.name < y.name; });
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::string Label(const std::string& name, const std::string& file) const {
    return a_.HasSeveral(name) || b_.HasSeveral(name) ? fmt::format("{} ({})", name, file) : name;
  }

  Status SelectFiles(Side& side, std::uint32_t first, std::uint32_t end) {
    std::vector<std::uint32_t> files(std::min(end, side.source.files()) - std::min(first, side.source.files()));
    std::iota(files.begin(), files.end(), first);
    CAIRN_RETURN_IF_ERROR(side.source.Select(parts_, files));
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
      side.unmatched.push_back({tensor.info.name, tensor.shard, tensor.info.file});
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

  // Tensors that another file holds in the other: replicated ones, or those of another number of ranks.
  Status CompareMoved() {
    std::vector<Unmatched> moved_a;
    std::vector<Unmatched> moved_b;
    std::vector<Unmatched> only_in_a;
    const auto same_name = [](const Unmatched& x, const Unmatched& y) { return x.name < y.name; };
    for (Unmatched& one : a_.unmatched) {
      const auto other = std::lower_bound(b_.unmatched.begin(), b_.unmatched.end(), one, same_name);
      const bool moved = other != b_.unmatched.end() && other->name == one.name && !a_.HasSeveral(one.name) &&
                         !b_.HasSeveral(one.name);
      if (moved) moved_b.push_back(*other);
      (moved ? moved_a : only_in_a).push_back(std::move(one));
    }
    a_.unmatched = std::move(only_in_a);
    if (moved_a.empty()) return Status::Ok();
    std::erase_if(b_.unmatched,
                  [&](const Unmatched& one) { return std::binary_search(moved_b.begin(), moved_b.end(), one); });
    CAIRN_ASSIGN_OR_RETURN(const std::vector<const StoredTensor*> in_a, SelectTensors(a_.source, moved_a));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<const StoredTensor*> in_b, SelectTensors(b_.source, moved_b));
    std::vector<Pair> pairs;
    for (std::size_t i = 0; i < in_a.size(); ++i) pairs.push_back({in_a[i], in_b[i], {}});
    return ComparePairs(pairs);
  }

  Result<std::vector<const StoredTensor*>> SelectTensors(TensorSource& source, const std::vector<Unmatched>& wanted) {
    std::vector<std::uint32_t> files;
    for (const Unmatched& one : wanted) files.push_back(one.file);
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
    CAIRN_RETURN_IF_ERROR(source.Select(parts_, files));
    std::vector<const StoredTensor*> found;
    for (const Unmatched& one : wanted) {
      const auto at =
          std::lower_bound(source.tensors().begin(), source.tensors().end(), one,
                           [](const StoredTensor& tensor, const Unmatched& sought) {
                             return std::tie(tensor.info.name, tensor.shard) < std::tie(sought.name, sought.file);
                           });
      found.push_back(&*at);  // It was there, and the checkpoint is held.
    }
    return found;
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
    std::vector<std::uint64_t> sizes;
    std::vector<const StoredTensor*> of_a;
    std::vector<const StoredTensor*> of_b;
    for (const Pair& pair : pairs) {
      sizes.push_back(pair.a->info.bytes);
      of_a.push_back(pair.a);
      of_b.push_back(pair.b);
    }
    std::uint64_t read = 0;
    // A window is a multiple of every element's size, so elements are never cut: tensors begin and end at whole ones.
    for (const std::vector<Stretch>& window : CutWindows(sizes, kWindowBytes)) {
      CAIRN_RETURN_IF_ERROR(ReadWindow(parts_, a_.source, of_a, window, memory_a_.data()));
      CAIRN_RETURN_IF_ERROR(ReadWindow(parts_, b_.source, of_b, window, memory_b_.data()));
      for (const Stretch& stretch : window) {
        Pair& pair = pairs[stretch.tensor];
        const Counts counts = CountDiffering(memory_a_.data() + stretch.at, memory_b_.data() + stretch.at,
                                             stretch.end - stretch.begin, DTypeSize(pair.a->info.dtype));
        pair.differing.bytes += counts.bytes;
        pair.differing.elements += counts.elements;
        read += stretch.end - stretch.begin;
      }
      bar_.Update(std::min(done_ + read, total_), total_);
    }
    return Status::Ok();
  }

  const RestoreParts& parts_;
  Side a_;
  Side b_;
  std::vector<std::byte> memory_a_;
  std::vector<std::byte> memory_b_;
  ProgressBar bar_;
  std::uint64_t done_ = 0;  // Of a's files.
  std::uint64_t total_ = 0;
  Differences out_;
};

std::uint64_t Elements(const TensorInfo& tensor) { return tensor.bytes / DTypeSize(tensor.dtype); }

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
  fmt::print("{} tensors are identical\n", differences.identical);
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

}  // namespace

int Diff(const std::string& a, const std::string& b, bool json) {
  const Result<std::unique_ptr<Reading>> reading = Reading::Make();
  if (!reading.ok()) return Complain(reading.status());
  Result<TensorSource> source_a = OpenSource(**reading, a, {});
  if (!source_a.ok()) return Complain(source_a.status());
  Result<TensorSource> source_b = OpenSource(**reading, b, {});
  if (!source_b.ok()) return Complain(source_b.status());
  const Result<Differences> differences = Comparison((*reading)->parts(), *source_a, *source_b).Run();
  if (!differences.ok()) return Complain(differences.status());
  if (json) {
    PrintJson(DifferencesToJson(*differences));
  } else {
    PrintDifferences(*differences);
  }
  return differences->none() ? kGood : kDamagedOrDifferent;
}

}  // namespace cairn::tools
