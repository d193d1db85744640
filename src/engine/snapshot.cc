#include "engine/snapshot.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

StridedLayout ContiguousAt(std::byte* memory, std::uint64_t bytes) {
  return {.base = memory, .row_bytes = bytes, .outer = {}, .bytes = bytes};
}

}  // namespace

Snapshot::Snapshot(std::shared_ptr<const TensorTable> table, Values values)
    : table_(std::move(table)),
      values_(std::move(values)),
      small_(std::make_unique_for_overwrite<std::byte[]>(table_->small_bytes())) {
  std::byte* to = small_.get();
  const std::vector<std::uint32_t>& small = table_->small();
  for (std::size_t i = 0; i < small.size(); ++i) {
    // They are short and scattered, so the hardware cannot prefetch them.
    if (i + 2 < small.size()) __builtin_prefetch((*table_)[small[i + 2]].layout.base);
    const StridedLayout& layout = (*table_)[small[i]].layout;
    GatherBytes(layout, 0, layout.bytes, to);
    to += layout.bytes;
  }
  reads_cpu_ = table_->cpu_bytes() > table_->small_bytes();
}

void Snapshot::LayOut() {
  const std::vector<std::uint32_t>& order = table_->StoreOrder();
  std::vector<const StridedLayout*> by_entry(table_->size(), nullptr);
  std::byte* copy = small_.get();
  for (const std::uint32_t i : table_->small()) {
    by_entry[i] = &moved_.emplace_back(ContiguousAt(copy, (*table_)[i].bytes()));
    copy += (*table_)[i].bytes();
  }
  offsets_.reserve(order.size() + 1);
  source_.reserve(order.size());
  for (const std::uint32_t i : order) {
    offsets_.push_back(offsets_.back() + (*table_)[i].bytes());
    source_.push_back(by_entry[i] != nullptr ? by_entry[i] : &(*table_)[i].layout);
    const DType dtype = (*table_)[i].dtype;
    if (runs_.empty() || runs_.back().dtype != dtype) runs_.push_back({dtype, 0});
    runs_.back().bytes += (*table_)[i].bytes();
  }
}

std::vector<Snapshot::Piece> Snapshot::Pieces(std::uint64_t begin, std::uint64_t end, std::byte* memory) const {
  std::vector<Piece> pieces;
  const std::vector<std::uint32_t>& order = table_->StoreOrder();
  auto place =
      static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin() - 1);
  for (; place < order.size() && offsets_[place] < end; ++place) {
    const std::uint64_t from = std::max(begin, offsets_[place]);
    const std::uint64_t to = std::min(end, offsets_[place + 1]);
    if (from == to) continue;  // No elements.
    const TensorEntry& entry = (*table_)[order[place]];
    pieces.push_back({entry.device,
                      {.tensor = source_[place],
                       .begin = from - offsets_[place],
                       .end = to - offsets_[place],
                       .memory = memory + (from - begin),
                       .dtype = entry.dtype}});
  }
  return pieces;
}

std::vector<Snapshot::Run> Snapshot::Runs(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Run> runs;
  std::uint64_t at = 0;
  for (const Run& run : runs_) {
    const std::uint64_t from = std::max(begin, at);
    at += run.bytes;
    if (const std::uint64_t to = std::min(end, at); from < to) runs.push_back({run.dtype, to - from});
  }
  return runs;
}

ShardHeader Snapshot::Header(std::uint64_t step, const std::string& attempt, std::uint64_t shard,
                             bool checksums) const {
  ShardHeader header;
  header.step = step;
  header.attempt = attempt;
  header.shard = shard;
  header.values = values_;
  header.checksums = checksums;
  const std::vector<std::uint32_t>& order = table_->StoreOrder();
  header.tensors.reserve(order.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    const TensorEntry& entry = (*table_)[order[place]];
    header.tensors.push_back({entry.name, entry.dtype, entry.shape, offsets_[place], offsets_[place + 1], entry.part});
  }
  for (std::size_t i = 0; i < table_->size(); ++i) {
    const TensorEntry& entry = (*table_)[i];
    if (entry.is_alias()) header.aliases.emplace(entry.name, (*table_)[entry.alias_of].name);
  }
  return header;
}

}  // namespace cairn
