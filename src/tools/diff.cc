#include <fmt/format.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status_macros.h"
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

struct Pair {
  std::string name;
  const StoredTensor* a;
  const StoredTensor* b;
  Counts differing;
};

struct Differences {
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<Pair> types;  // Of another dtype, shape or part.
  std::vector<Pair> bytes;
  std::uint64_t identical = 0;

  [[nodiscard]] bool none() const { return only_in_a.empty() && only_in_b.empty() && types.empty() && bytes.empty(); }
};

// By name; a name that several shards hold (a rank's own RNG state) by its file as well.
std::map<std::string, const StoredTensor*> ByName(const TensorSource& source) {
  const std::vector<StoredTensor>& tensors = source.tensors();
  std::map<std::string, const StoredTensor*> index;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = tensors[i].info;
    const bool several = (i > 0 && tensors[i - 1].info.name == info.name) ||
                         (i + 1 < tensors.size() && tensors[i + 1].info.name == info.name);
    index.emplace(several ? fmt::format("{} ({})", info.name, info.file) : info.name, &tensors[i]);
  }
  return index;
}

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

Status CompareBytes(const Reading& reading, TensorSource& a, TensorSource& b, std::vector<Pair>& pairs) {
  std::vector<std::uint64_t> sizes;
  std::vector<const StoredTensor*> of_a;
  std::vector<const StoredTensor*> of_b;
  std::uint64_t total = 0;
  for (const Pair& pair : pairs) {
    sizes.push_back(pair.a->info.bytes);
    of_a.push_back(pair.a);
    of_b.push_back(pair.b);
    total += sizes.back();
  }
  std::vector<std::byte> memory_a(kWindowBytes);
  std::vector<std::byte> memory_b(kWindowBytes);
  ProgressBar bar("comparing");
  std::uint64_t done = 0;
  // A window is a multiple of every element's size, so elements are never cut: tensors begin and end at whole ones.
  for (const std::vector<Stretch>& window : CutWindows(sizes, kWindowBytes)) {
    CAIRN_RETURN_IF_ERROR(ReadWindow(reading.parts(), a, of_a, window, memory_a.data()));
    CAIRN_RETURN_IF_ERROR(ReadWindow(reading.parts(), b, of_b, window, memory_b.data()));
    for (const Stretch& stretch : window) {
      Pair& pair = pairs[stretch.tensor];
      const Counts counts = CountDiffering(memory_a.data() + stretch.at, memory_b.data() + stretch.at,
                                           stretch.end - stretch.begin, DTypeSize(pair.a->info.dtype));
      pair.differing.bytes += counts.bytes;
      pair.differing.elements += counts.elements;
      done += stretch.end - stretch.begin;
    }
    bar.Update(done, total);
  }
  return Status::Ok();
}

Result<Differences> Compare(const Reading& reading, TensorSource& a, TensorSource& b) {
  Differences differences;
  std::vector<Pair> pairs;
  const auto in_a = ByName(a);
  const auto in_b = ByName(b);
  for (const auto& [name, tensor] : in_a) {
    const auto other = in_b.find(name);
    if (other == in_b.end()) {
      differences.only_in_a.push_back(name);
      continue;
    }
    const TensorInfo& x = tensor->info;
    const TensorInfo& y = other->second->info;
    const bool alike = x.dtype == y.dtype && x.shape == y.shape && x.part == y.part;
    (alike ? pairs : differences.types).push_back({name, tensor, other->second, {}});
  }
  for (const auto& [name, tensor] : in_b) {
    if (!in_a.contains(name)) differences.only_in_b.push_back(name);
  }
  CAIRN_RETURN_IF_ERROR(CompareBytes(reading, a, b, pairs));
  for (Pair& pair : pairs) {
    if (pair.differing.bytes == 0) {
      ++differences.identical;
    } else {
      differences.bytes.push_back(std::move(pair));
    }
  }
  return differences;
}

std::uint64_t Elements(const StoredTensor& tensor) { return tensor.info.bytes / DTypeSize(tensor.info.dtype); }

void PrintDifferences(const Differences& differences) {
  for (const std::string& name : differences.only_in_a) fmt::print("only in the first: {}\n", Printable(name));
  for (const std::string& name : differences.only_in_b) fmt::print("only in the second: {}\n", Printable(name));
  for (const Pair& pair : differences.types) {
    fmt::print("{}: {} against {}\n", Printable(pair.name), DescribeType(pair.a->info), DescribeType(pair.b->info));
  }
  for (const Pair& pair : differences.bytes) {
    fmt::print("{}: {} of {} elements differ, {} of {} bytes\n", Printable(pair.name), pair.differing.elements,
               Elements(*pair.a), pair.differing.bytes, pair.a->info.bytes);
  }
  fmt::print("{} tensors are identical\n", differences.identical);
}

nlohmann::json DifferencesToJson(const Differences& differences) {
  nlohmann::json out{{"identical", differences.identical},      {"same", differences.none()},
                     {"only_in_a", differences.only_in_a},      {"only_in_b", differences.only_in_b},
                     {"types_differ", nlohmann::json::array()}, {"bytes_differ", nlohmann::json::array()}};
  for (const Pair& pair : differences.types) {
    out["types_differ"].push_back({{"name", pair.name}, {"a", ToJson(pair.a->info)}, {"b", ToJson(pair.b->info)}});
  }
  for (const Pair& pair : differences.bytes) {
    out["bytes_differ"].push_back({{"name", pair.name},
                                   {"elements", Elements(*pair.a)},
                                   {"differing_elements", pair.differing.elements},
                                   {"bytes", pair.a->info.bytes},
                                   {"differing_bytes", pair.differing.bytes}});
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
  const Result<Differences> differences = Compare(**reading, *source_a, *source_b);
  if (!differences.ok()) return Complain(differences.status());
  if (json) {
    PrintJson(DifferencesToJson(*differences));
  } else {
    PrintDifferences(*differences);
  }
  return differences->none() ? kGood : kDamagedOrDifferent;
}

}  // namespace cairn::tools
