#include "engine/replicas.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

using Message = nlohmann::json;

constexpr std::size_t kBuckets = 64;
constexpr std::size_t kDigits = 8;
constexpr std::size_t kListed = 8;

std::uint32_t Sum(std::string_view text, std::uint32_t before = 0) {
  return Crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

std::size_t BucketOf(const std::string& name) { return Sum(name) % kBuckets; }

// Tensors that share memory, so they are written together.
struct TiedTensors {
  std::uint64_t bytes = 0;
  bool of_rank_0 = false;
  std::vector<std::uint32_t> entries;
  // The smallest of its names, because the order in memory differs between ranks.
  std::string_view name;
};

std::string DescribeReplica(const TensorTable& table, const TensorEntry& entry) {
  return fmt::format(
      "{} [{}]{}{}", DTypeName(entry.dtype), fmt::join(entry.shape, ", "),
      entry.part ? fmt::format(" at [{}] of \"{}\"", fmt::join(entry.part->offset, ", "), entry.part->logical_name)
                 : "",
      entry.is_alias() ? fmt::format(" tied to \"{}\"", table[entry.alias_of].name) : "");
}

// The replicated tensors by name. Adds their descriptions to `values`, in the table's order.
Result<std::vector<TiedTensors>> FindReplicated(const TensorTable& table, const Replicated& replicated,
                                                ReplicatedValues& values) {
  enum class Writer : char { kOwn, kAny, kRank0 };
  std::vector<Writer> writers(table.size(), Writer::kOwn);
  const auto mark = [&](const std::vector<std::string>& names, Writer writer) -> Status {
    for (const std::string& name : names) {
      const auto found = table.Find(name);
      if (!found) return Error(StatusCode::kInvalidArgument, "replicated: no tensor \"{}\" in the state", name);
      writers[*found] = writer;
    }
    return Status::Ok();
  };
  CAIRN_RETURN_IF_ERROR(mark(replicated.tensors, Writer::kAny));
  CAIRN_RETURN_IF_ERROR(mark(replicated.rank0_tensors, Writer::kRank0));

  std::map<std::uint32_t, TiedTensors> all;  // By the entry that holds the memory.
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const TensorEntry& entry = table[i];
    const std::uint32_t holder = entry.is_alias() ? entry.alias_of : i;
    if ((writers[i] == Writer::kOwn) != (writers[holder] == Writer::kOwn)) {
      return Error(StatusCode::kInvalidArgument, "tensors \"{}\" and \"{}\" share memory: replicate both, or neither",
                   entry.name, table[holder].name);
    }
    if (writers[i] == Writer::kOwn) continue;
    TiedTensors& tied = all[holder];
    tied.bytes = entry.bytes();
    tied.of_rank_0 = tied.of_rank_0 || writers[i] == Writer::kRank0;
    tied.name = tied.entries.empty() ? entry.name : std::min<std::string_view>(tied.name, entry.name);
    tied.entries.push_back(i);
    values.all.emplace_back(entry.name, DescribeReplica(table, entry));
  }
  std::vector<TiedTensors> sorted;
  sorted.reserve(all.size());
  for (auto& [holder, tied] : all) sorted.push_back(std::move(tied));
  std::ranges::sort(sorted, [](const TiedTensors& a, const TiedTensors& b) { return a.name < b.name; });
  return sorted;
}

// Assigns tensors to ranks in turn, each up to `most` bytes. Returns the number of ranks used, or one more than there
// are if they cannot hold all.
template <typename Give>
int AssignInTurn(std::span<const std::uint64_t> sizes, std::uint64_t of_rank_0, int world, std::uint64_t most,
                 const Give& give) {
  const auto room = [&](int turn) { return turn < world - 1 ? most : most - std::min(most, of_rank_0); };
  int turn = 0;
  std::uint64_t taken = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    while (turn < world && sizes[i] > room(turn) - taken) {
      ++turn;
      taken = 0;
    }
    if (turn == world) break;
    taken += sizes[i];
    give(i, (turn + 1) % world);
  }
  return turn + 1;
}

std::uint64_t PerRank(std::uint64_t bytes, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return bytes / n + (bytes % n != 0 ? 1 : 0);
}

}  // namespace

std::vector<int> ChooseWriters(std::span<const std::uint64_t> sizes, std::uint64_t of_rank_0, int world) {
  std::uint64_t total = 0;
  std::uint64_t largest = 0;
  for (const std::uint64_t bytes : sizes) {
    total += bytes;
    largest = std::max(largest, bytes);
  }
  std::uint64_t average = PerRank(total + of_rank_0, world);
  if (of_rank_0 > average) average = PerRank(total, world - 1);
  const auto count = [&](std::uint64_t most) {
    return AssignInTurn(sizes, of_rank_0, world, most, [](std::size_t, int) {});
  };
  const std::uint64_t share = std::max({average, kMinShare, largest});
  const int ranks = std::min(count(share), world);
  std::uint64_t low = largest;
  // This is enough: each rank that had to pass a tensor on then has more than the average.
  std::uint64_t most = std::max(share, average + largest);
  while (low < most) {
    const std::uint64_t middle = low + (most - low) / 2;
    count(middle) <= ranks ? most = middle : low = middle + 1;
  }
  std::vector<int> writers(sizes.size());
  AssignInTurn(sizes, of_rank_0, world, most, [&writers](std::size_t i, int rank) { writers[i] = rank; });
  return writers;
}

Result<ReplicaAssignment> AssignReplicas(const std::shared_ptr<const TensorTable>& table, const Replicated& replicated,
                                         int rank, int world) {
  ReplicaAssignment share{.table = table, .replicated = nullptr};
  if (world == 1) return share;
  const auto values = std::make_shared<ReplicatedValues>(ReplicatedValues{.all = replicated.identical_values});
  share.replicated = values;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TiedTensors> all, FindReplicated(*table, replicated, *values));
  // Of tensors that any rank may write.
  std::vector<std::uint64_t> sizes;
  std::uint64_t of_rank_0 = 0;
  for (const TiedTensors& tied : all) {
    if (tied.of_rank_0) {
      of_rank_0 += tied.bytes;
    } else {
      sizes.push_back(tied.bytes);
    }
  }
  const std::vector<int> writers = ChooseWriters(sizes, of_rank_0, world);
  constexpr int kOwn = -1;
  std::vector<int> writer_of(table->size(), kOwn);
  auto next = writers.begin();
  for (const TiedTensors& tied : all) {
    const int writer = tied.of_rank_0 ? 0 : *next++;
    for (const std::uint32_t i : tied.entries) writer_of[i] = writer;
  }
  std::vector<bool> dropped(table->size(), false);
  for (std::size_t i = 0; i < writer_of.size(); ++i) {
    if (writer_of[i] == kOwn) continue;
    values->writers.push_back(writer_of[i]);
    dropped[i] = writer_of[i] != rank;
  }
  values->digest = DigestReplicated(*values);
  if (!all.empty()) share.table = table->Without(dropped);
  return share;
}

Result<ReplicaAssignment> ReplicaAssigner::Of(const std::shared_ptr<const TensorTable>& table,
                                              const Replicated& replicated) {
  if (table != table_.lock() || replicated != replicated_) {
    CAIRN_ASSIGN_OR_RETURN(share_, AssignReplicas(table, replicated, rank_, world_));
    if (share_.table == table) share_.table = nullptr;
    table_ = table;
    replicated_ = replicated;
  }
  ReplicaAssignment share = share_;
  if (share.table == nullptr) share.table = table;
  return share;
}

std::string DigestReplicated(const ReplicatedValues& values) {
  if (values.all.empty()) return "";
  const std::size_t tensors = values.all.size() - values.writers.size();  // Index of the first tensor.
  std::array<std::uint32_t, 2 * kBuckets> sums{};
  for (std::size_t i = 0; i < values.all.size(); ++i) {
    const auto& [name, text] = values.all[i];
    const std::uint32_t of_name = Sum(name);
    const std::uint32_t ended = Sum(std::string_view("\0", 1), of_name);
    // A sum, because order must not matter; plus one, because a CRC may be 0.
    sums[of_name % kBuckets] += Sum(text, ended) + 1;
    if (i >= tensors) {
      sums[kBuckets + of_name % kBuckets] += Sum(std::to_string(values.writers[i - tensors]), ended) + 1;
    }
  }
  std::string digest;
  for (const std::uint32_t sum : std::span(sums).first(values.writers.empty() ? kBuckets : 2 * kBuckets)) {
    digest += fmt::format("{:08x}", sum);
  }
  return digest;
}

int FirstDifference(const std::string& a, const std::string& b) {
  // Pad with zeros: a missing part counts as empty buckets.
  const std::size_t length = std::max(a.size(), b.size());
  const std::string one = a + std::string(length - a.size(), '0');
  const std::string other = b + std::string(length - b.size(), '0');
  const auto [at, there] = std::mismatch(one.begin(), one.end(), other.begin());
  if (at == one.end()) return -1;
  return static_cast<int>(
      std::min<std::size_t>(static_cast<std::size_t>(at - one.begin()) / kDigits, 2 * kBuckets - 1));
}

std::string EncodeBucket(const ReplicatedValues& values, int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  const bool of_writers = index >= kBuckets;
  const std::size_t tensors = values.all.size() - values.writers.size();
  Message items = Message::array();
  for (std::size_t i = of_writers ? tensors : 0; i < values.all.size(); ++i) {
    const auto& [name, text] = values.all[i];
    if (BucketOf(name) != index % kBuckets) continue;
    items.push_back({name, of_writers ? fmt::format("rank {} as its writer", values.writers[i - tensors]) : text});
  }
  return items.dump(-1, ' ', false, Message::error_handler_t::replace);
}

Status CompareBuckets(std::uint64_t step, const std::string& of_rank_0, int rank, const std::string& its) {
  using Bucket = std::map<std::string, std::string>;
  const auto read = [](const std::string& text) -> std::optional<Bucket> {
    const Message items = Message::parse(text, nullptr, false);
    if (!items.is_array()) return std::nullopt;
    Bucket bucket;
    for (const Message& item : items) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_string()) return std::nullopt;
      bucket.emplace(item[0].get<std::string>(), item[1].get<std::string>());
    }
    return bucket;
  };
  const std::optional<Bucket> first = read(of_rank_0);
  const std::optional<Bucket> other = read(its);
  if (!first || !other) {
    return Error(StatusCode::kInternal, "rank {} sent an invalid message: {}", rank, Quoted(its));
  }
  const auto find = [](const Bucket& bucket, const std::string& name) {
    const auto it = bucket.find(name);
    return it == bucket.end() ? std::string("nothing") : it->second;
  };
  Bucket names = *first;
  names.insert(other->begin(), other->end());
  std::vector<std::string> differ;
  for (const auto& [name, text] : names) {
    const std::string a = find(*first, name);
    const std::string b = find(*other, name);
    if (a == b || differ.size() == kListed) continue;
    differ.push_back(fmt::format("\"{}\": rank 0 has {}, rank {} has {}", name, a, rank, b));
  }
  return Error(StatusCode::kFailedPrecondition, "step {}: replicated values differ: {}", step,
               differ.empty() ? fmt::format("rank {}'s digest", rank) : fmt::format("{}", fmt::join(differ, "; ")));
}

}  // namespace cairn
