#include "engine/snapshot.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

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
  TakeLongValues();
}

Result<std::unique_ptr<Snapshot>> Snapshot::OfStored(ShardHeader stored, std::shared_ptr<const std::byte> data,
                                                     std::uint64_t chunk_bytes) {
  if (!stored.cairn || !stored.checksums) {
    return Error(StatusCode::kInvalidArgument, "step {}: expected a shard with checksums, found one without",
                 stored.step);
  }
  const auto table = std::make_shared<TensorTable>();
  const auto add = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                       std::optional<TensorPart> part, std::uint64_t begin) {
    // Never written through it.
    std::byte* const at = const_cast<std::byte*>(data.get()) + begin;
    return table->Add(name, {.data = at, .dtype = dtype, .shape = std::move(shape), .part = std::move(part)});
  };
  for (const ShardTensor& one : stored.tensors) {
    CAIRN_RETURN_IF_ERROR(add(one.name, one.dtype, one.shape, one.part, one.begin));
  }
  for (const LongValue& one : stored.long_values) {
    const auto length = static_cast<std::int64_t>(one.end - one.begin);
    CAIRN_RETURN_IF_ERROR(add(one.tensor, DType::kU8, {length}, std::nullopt, one.begin));
    stored.values.erase(one.name);  // A reader has added it.
  }
  table->Share();
  auto made = std::make_unique<Snapshot>(table, Values());
  made->chunk_bytes_ = chunk_bytes;
  for (std::uint32_t i = 0; i < table->size(); ++i) made->divided_.push_back(i);
  made->order_ = &made->divided_;
  made->shard_tensors_ = table->size();
  made->PlaceInOrder();
  stored.metadata.clear();  // What this version does not know, it cannot write.
  std::vector<std::uint32_t> sums = stored.sums;
  made->stored_ = std::move(stored);
  made->ReadFrom(std::move(data), std::move(sums));
  return made;
}

void Snapshot::TakeLongValues() {
  const auto is_taken = [this](const std::string& tensor) {
    return table_->Find(tensor).has_value() ||
           std::ranges::any_of(long_values_, [&](const Text& one) { return one.tensor == tensor; });
  };
  for (auto& [name, value] : values_) {
    Json* const json = std::get_if<Json>(&value);
    if (json == nullptr || json->text.size() < kLongValueBytes) continue;
    std::string tensor = "cairn.values/" + name;
    while (is_taken(tensor)) tensor += '\'';
    long_values_.push_back({.name = name, .tensor = std::move(tensor), .text = std::move(json->text)});
  }
  for (const Text& one : long_values_) values_.erase(one.name);
}

std::uint64_t Snapshot::BytesOf(std::uint32_t i) const {
  return IsText(i) ? long_values_[i - table_->size()].text.size() : (*table_)[i].bytes();
}

DType Snapshot::DTypeOf(std::uint32_t i) const { return IsText(i) ? DType::kU8 : (*table_)[i].dtype; }

void Snapshot::LayOut(std::uint64_t chunk_bytes, KeptChoice kept) {
  kept_ = std::move(kept);
  chunk_bytes_ = chunk_bytes;
  order_ = &table_->StoreOrder();
  shard_tensors_ = order_->size();
  if (!kept_.holds.empty() || has_long_values()) DivideOrder();
  PlaceInOrder();
}

void Snapshot::PlaceInOrder() {
  std::vector<const StridedLayout*> by_entry(table_->size() + long_values_.size(), nullptr);
  std::byte* copy = small_.get();
  for (const std::uint32_t i : table_->small()) {
    by_entry[i] = &moved_.emplace_back(ContiguousAt(copy, (*table_)[i].bytes()));
    copy += (*table_)[i].bytes();
  }
  for (std::size_t i = 0; i < long_values_.size(); ++i) {
    std::string& text = long_values_[i].text;
    by_entry[table_->size() + i] =
        &moved_.emplace_back(ContiguousAt(reinterpret_cast<std::byte*>(text.data()), text.size()));
  }
  offsets_.reserve(order_->size() + 1);
  source_.reserve(order_->size());
  std::uint64_t at = 0;
  for (std::size_t place = 0; place < order_->size(); ++place) {
    const std::uint32_t i = (*order_)[place];
    if (place == shard_tensors_) {
      shard_bytes_ = at;
      kept_begin_ = AlignUp(at, chunk_bytes_);
      runs_.push_back({DType::kU8, kept_begin_ - std::exchange(at, kept_begin_)});
      runs_.push_back({DTypeOf(i), 0});
    }
    offsets_.push_back(at);
    at += BytesOf(i);
    source_.push_back(by_entry[i] != nullptr ? by_entry[i] : &(*table_)[i].layout);
    const DType dtype = DTypeOf(i);
    if (runs_.empty() || runs_.back().dtype != dtype) runs_.push_back({dtype, 0});
    runs_.back().bytes += BytesOf(i);
  }
  offsets_.push_back(at);
  if (shard_tensors_ == order_->size()) {
    shard_bytes_ = at;
  } else {
    kept_bytes_ = at - kept_begin_;
  }
}

// What is linked is in neither part.
void Snapshot::DivideOrder() {
  const auto is_kept = [this](std::uint32_t i) { return !kept_.holds.empty() && kept_.holds[i]; };
  divided_.reserve(order_->size() + long_values_.size());
  std::ranges::copy_if(*order_, std::back_inserter(divided_), std::not_fn(is_kept));
  for (std::size_t i = 0; i < long_values_.size(); ++i) {
    divided_.push_back(static_cast<std::uint32_t>(table_->size() + i));
  }
  shard_tensors_ = divided_.size();
  if (!kept_.linked) std::ranges::copy_if(*order_, std::back_inserter(divided_), is_kept);
  order_ = &divided_;
}

void Snapshot::ReadFrom(std::shared_ptr<const std::byte> data, std::vector<std::uint32_t> sums) {
  copy_ = std::move(data);
  copied_sums_ = std::move(sums);
  reads_cpu_ = true;
  moved_.clear();
  for (std::size_t place = 0; place < order_->size(); ++place) {
    // Never written through it.
    std::byte* const at = const_cast<std::byte*>(copy_.get()) + offsets_[place];
    source_[place] = &moved_.emplace_back(ContiguousAt(at, BytesOf((*order_)[place])));
  }
}

std::optional<std::uint64_t> Snapshot::FindChanged(std::span<const std::uint32_t> sums) const {
  if (copy_ == nullptr) return std::nullopt;
  const auto differs = std::ranges::mismatch(copied_sums_, sums).in1;
  if (differs == copied_sums_.end()) return std::nullopt;
  return static_cast<std::uint64_t>(differs - copied_sums_.begin());
}

std::vector<Snapshot::Piece> Snapshot::Pieces(std::uint64_t begin, std::uint64_t end, std::byte* memory) const {
  std::vector<Piece> pieces;
  const std::vector<std::uint32_t>& order = *order_;
  auto place =
      static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin() - 1);
  for (; place < order.size() && offsets_[place] < end; ++place) {
    const std::uint64_t from = std::max(begin, offsets_[place]);
    const std::uint64_t to = std::min(end, offsets_[place + 1]);
    if (from == to) continue;  // No elements.
    const std::uint32_t i = order[place];
    pieces.push_back({IsText(i) || copy_ != nullptr ? DeviceId{} : (*table_)[i].device,
                      {.tensor = source_[place],
                       .begin = from - offsets_[place],
                       .end = to - offsets_[place],
                       .memory = memory + (from - begin),
                       .dtype = DTypeOf(i)}});
  }
  return pieces;
}

const std::string& Snapshot::NameAt(std::uint64_t at) const {
  const auto behind = std::upper_bound(offsets_.begin(), offsets_.end() - 1, at);
  const std::uint32_t i = (*order_)[static_cast<std::size_t>(behind - offsets_.begin() - 1)];
  return IsText(i) ? long_values_[i - table_->size()].tensor : (*table_)[i].name;
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

ShardHeader Snapshot::Header(std::uint64_t step, const std::string& attempt, std::uint64_t shard, bool checksums,
                             bool of_kept) const {
  if (stored_) return *stored_;
  ShardHeader header;
  header.step = step;
  header.attempt = attempt;
  header.shard = shard;
  if (!of_kept) header.values = values_;
  header.checksums = checksums;
  const std::size_t end = of_kept ? order_->size() : shard_tensors_;
  const std::uint64_t from = of_kept ? kept_begin_ : 0;
  header.tensors.reserve(end - (of_kept ? shard_tensors_ : 0));
  for (std::size_t place = of_kept ? shard_tensors_ : 0; place < end; ++place) {
    const std::uint32_t i = (*order_)[place];
    const std::uint64_t begin = offsets_[place] - from;
    if (IsText(i)) {
      const auto& [name, tensor, text] = long_values_[i - table_->size()];
      header.long_values.push_back({name, tensor, begin, begin + text.size(), Crc32c(std::as_bytes(std::span(text)))});
      continue;
    }
    const TensorEntry& entry = (*table_)[i];
    header.tensors.push_back({entry.name, entry.dtype, entry.shape, begin, begin + entry.bytes(), entry.part});
  }
  for (std::size_t i = 0; i < table_->size(); ++i) {
    const TensorEntry& entry = (*table_)[i];
    if (!entry.is_alias() || (!kept_.holds.empty() && kept_.holds[i]) != of_kept) continue;
    header.aliases.emplace(entry.name, (*table_)[entry.alias_of].name);
  }
  return header;
}

}  // namespace cairn
