#include "engine/replicas.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

using Word = nlohmann::json;

constexpr std::size_t kBuckets = 64;
constexpr std::size_t kDigits = 8;
constexpr std::size_t kListed = 8;

std::uint32_t Sum(std::string_view text, std::uint32_t before = 0) {
  return Crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

std::size_t BucketOf(const std::string& name) { return Sum(name) % kBuckets; }

// Tensors that share memory are written together.
struct Tied {
  std::uint64_t bytes = 0;
  bool by_rank_0 = false;
  std::vector<std::uint32_t> entries;
};

}  // namespace

Result<Share> ShareOut(const std::shared_ptr<const TensorTable>& table, const Replicated& replicated, int rank,
                       int world) {
  Share share{.table = table, .alike = nullptr};
  if (world == 1) return share;
  const auto values = std::make_shared<ReplicatedValues>(ReplicatedValues{.all = replicated.alike, .digest = {}});
  share.alike = values;
  std::vector<bool> shared(table->size(), false);
  const auto mark = [&](const std::string& name) -> Status {
    const auto found = table->Find(name);
    if (!found) return Error(StatusCode::kInvalidArgument, "replicated: no tensor \"{}\" in the state", name);
    shared[*found] = true;
    return Status::Ok();
  };
  for (const std::string& name : replicated.tensors) CAIRN_RETURN_IF_ERROR(mark(name));
  for (const std::string& name : replicated.by_rank_0) CAIRN_RETURN_IF_ERROR(mark(name));

  std::map<std::uint32_t, Tied> all;  // By the entry that holds the memory.
  for (std::uint32_t i = 0; i < table->size(); ++i) {
    const TensorEntry& entry = (*table)[i];
    const std::uint32_t holder = entry.is_alias() ? entry.alias_of : i;
    if (shared[i] != shared[holder]) {
      return Error(StatusCode::kInvalidArgument, "tensors \"{}\" and \"{}\" share memory: replicate both, or neither",
                   entry.name, (*table)[holder].name);
    }
    if (!shared[i]) continue;
    Tied& tied = all[holder];
    tied.bytes = entry.bytes();
    tied.entries.push_back(i);
    values->all.emplace_back(
        entry.name, fmt::format("{} [{}]{}{}", DTypeName(entry.dtype), fmt::join(entry.shape, ", "),
                                entry.part ? fmt::format(" at [{}] of \"{}\"", fmt::join(entry.part->offset, ", "),
                                                         entry.part->logical_name)
                                           : "",
                                entry.is_alias() ? fmt::format(" tied to \"{}\"", (*table)[holder].name) : ""));
  }
  values->digest = DigestAlike(values->all);
  if (all.empty()) return share;
  for (const std::string& name : replicated.by_rank_0) {
    const std::uint32_t i = *table->Find(name);
    all[(*table)[i].is_alias() ? (*table)[i].alias_of : i].by_rank_0 = true;
  }

  // The largest first, each to the rank that has least. Names break ties: memory's order is not the same everywhere.
  std::vector<const Tied*> order;
  for (const auto& [holder, tied] : all) order.push_back(&tied);
  const auto name = [&](const Tied* tied) -> const std::string& { return (*table)[tied->entries.front()].name; };
  std::sort(order.begin(), order.end(), [&](const Tied* a, const Tied* b) {
    if (a->by_rank_0 != b->by_rank_0) return a->by_rank_0;
    return a->bytes != b->bytes ? a->bytes > b->bytes : name(a) < name(b);
  });
  using Load = std::pair<std::uint64_t, int>;  // Bytes, rank.
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  Load first{0, 0};
  std::vector<bool> dropped(table->size(), false);
  const auto give = [&](const Tied& tied, int to) {
    for (const std::uint32_t i : tied.entries) dropped[i] = to != rank;
  };
  auto it = order.begin();
  for (; it != order.end() && (*it)->by_rank_0; ++it) {
    give(**it, 0);
    first.first += (*it)->bytes;
  }
  loads.push(first);
  for (int other = 1; other < world; ++other) loads.emplace(0, other);
  for (; it != order.end(); ++it) {
    Load load = loads.top();
    loads.pop();
    give(**it, load.second);
    load.first += (*it)->bytes;
    loads.push(load);
  }
  share.table = table->Without(dropped);
  return share;
}

Result<Share> Sharing::Of(const std::shared_ptr<const TensorTable>& table, const Replicated& replicated) {
  if (table != table_.lock() || replicated != replicated_) {
    CAIRN_ASSIGN_OR_RETURN(share_, ShareOut(table, replicated, rank_, world_));
    if (share_.table == table) share_.table = nullptr;
    table_ = table;
    replicated_ = replicated;
  }
  Share share = share_;
  if (share.table == nullptr) share.table = table;
  return share;
}

std::string DigestAlike(const std::vector<Alike>& alike) {
  if (alike.empty()) return "";
  std::array<std::uint32_t, kBuckets> sums{};
  for (const auto& [name, text] : alike) {
    const std::uint32_t of_name = Sum(name);
    // A sum, as the order is nobody's business; one up, as CRCs of two different texts may be 0.
    sums[of_name % kBuckets] += Sum(text, Sum(std::string_view("\0", 1), of_name)) + 1;
  }
  std::string digest;
  for (const std::uint32_t sum : sums) digest += fmt::format("{:08x}", sum);
  return digest;
}

int FirstDifference(const std::string& a, const std::string& b) {
  const std::string zeros(kBuckets * kDigits, '0');
  const std::string& one = a.empty() ? zeros : a;
  const std::string& other = b.empty() ? zeros : b;
  const auto [at, there] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (at == one.end() && there == other.end()) return -1;
  return static_cast<int>(std::min<std::ptrdiff_t>(at - one.begin(), kBuckets * kDigits - 1) /
                          static_cast<std::ptrdiff_t>(kDigits));
}

std::string EncodeBucket(const std::vector<Alike>& alike, int bucket) {
  Word items = Word::array();
  for (const auto& [name, text] : alike) {
    if (BucketOf(name) == static_cast<std::size_t>(bucket)) items.push_back({name, text});
  }
  return items.dump(-1, ' ', false, Word::error_handler_t::replace);
}

Status CompareBuckets(std::uint64_t step, const std::string& of_rank_0, int rank, const std::string& its) {
  using Bucket = std::map<std::string, std::string>;
  const auto read = [](const std::string& text) -> std::optional<Bucket> {
    const Word items = Word::parse(text, nullptr, false);
    if (!items.is_array()) return std::nullopt;
    Bucket bucket;
    for (const Word& item : items) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_string()) return std::nullopt;
      bucket.emplace(item[0].get<std::string>(), item[1].get<std::string>());
    }
    return bucket;
  };
  const std::optional<Bucket> first = read(of_rank_0);
  const std::optional<Bucket> other = read(its);
  if (!first || !other) {
    return Error(StatusCode::kInternal, "rank {} said what no rank of this version says: {}", rank, Quoted(its));
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
  return Error(StatusCode::kFailedPrecondition, "step {}: what is replicated differs: {}", step,
               differ.empty() ? fmt::format("rank {}'s digest", rank) : fmt::format("{}", fmt::join(differ, "; ")));
}

}  // namespace cairn
