#include "advice/forecast.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/store_order.h"
#include "restore/reshard.h"

namespace cairn {
namespace {

std::string_view LogicalName(const ShardTensor& tensor) {
  return tensor.part ? std::string_view(tensor.part->logical_name) : tensor.name;
}

/// One part that is to be saved, and who holds it.
struct Holders {
  ShardTensor tensor;
  std::vector<std::uint32_t> ranks;
};

/// The parts of all ranks, each once.
std::vector<Holders> FindHolders(const Model& model, const Layout& layout) {
  std::vector<Holders> parts;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::size_t> known;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (ShardTensor& tensor : TensorsOf(model, layout, rank)) {
      const std::vector<std::int64_t> offset = tensor.part ? tensor.part->offset : std::vector<std::int64_t>();
      const auto [at, fresh] = known.try_emplace({tensor.name, offset}, parts.size());
      if (fresh) parts.push_back({.tensor = std::move(tensor), .ranks = {}});
      parts[at->second].ranks.push_back(static_cast<std::uint32_t>(rank));
    }
  }
  return parts;
}

/// Which rank writes the small tensors that the same ranks hold: the first of these, until it has enough of them.
class SmallWriter {
 public:
  explicit SmallWriter(std::uint32_t first) : writer_(first) {}

  std::uint32_t Take(std::uint64_t bytes, std::uint32_t least_loaded) {
    constexpr std::uint64_t kMost = 64U << 20;
    if (taken_ + bytes > kMost) {
      writer_ = least_loaded;
      taken_ = 0;
    }
    taken_ += bytes;
    return writer_;
  }

 private:
  std::uint32_t writer_;
  std::uint64_t taken_ = 0;
};

/// The same order and choice as in cairn.dcp: the small ones that the same ranks hold go to the first of these.
void GiveToLeastLoaded(std::vector<Holders>& parts, std::vector<ShardHeader>& headers) {
  std::ranges::sort(parts, [](const Holders& a, const Holders& b) {
    const auto offset = [](const Holders& h) {
      return h.tensor.part ? h.tensor.part->offset : std::vector<std::int64_t>();
    };
    const bool a_shared = a.ranks.size() > 1;
    const bool b_shared = b.ranks.size() > 1;
    if (a_shared != b_shared) return b_shared;
    if (a.tensor.end != b.tensor.end) return a.tensor.end > b.tensor.end;
    return std::pair(a.tensor.name, offset(a)) < std::pair(b.tensor.name, offset(b));
  });
  std::vector<std::uint64_t> loads(headers.size(), 0);
  std::map<std::vector<std::uint32_t>, SmallWriter> of_small;
  for (Holders& part : parts) {
    std::uint32_t writer = *std::ranges::min_element(
        part.ranks, [&](auto a, auto b) { return std::tie(loads[a], a) < std::tie(loads[b], b); });
    if (part.tensor.end == 0) {
      writer = part.ranks.front();
    } else if (part.tensor.end <= kSmallStoredBytes) {
      writer = of_small.try_emplace(part.ranks, part.ranks.front()).first->second.Take(part.tensor.end, writer);
    }
    loads[writer] += part.tensor.end;
    headers[writer].tensors.push_back(std::move(part.tensor));
  }
}

/// Orders the tensors as in a file, and sets where they begin.
Status LayOut(ShardHeader& header) {
  std::ranges::sort(header.tensors, [](const ShardTensor& a, const ShardTensor& b) {
    return StoredTensorKey{a.dtype, a.end, a.name} < StoredTensorKey{b.dtype, b.end, b.name};
  });
  std::uint64_t at = 0;
  for (ShardTensor& tensor : header.tensors) {
    tensor.begin = at;
    if (__builtin_add_overflow(tensor.end, at, &tensor.end)) {
      return Error(StatusCode::kInvalidArgument, "shard {}: expected at most 2^64 bytes, found more", header.shard);
    }
    at = tensor.end;
  }
  CAIRN_ASSIGN_OR_RETURN(const ShardHeaderWriter writer, ShardHeaderWriter::Make(header));
  header.data_begin = writer.data_begin();
  header.sums.resize(DivideUp(header.data_bytes(), kChecksumBlock));
  return Status::Ok();
}

std::uint64_t BytesOf(const PlannedCopy& copy) {
  if (copy.rows == nullptr) return copy.end - copy.begin;
  std::uint64_t bytes = copy.rows->size;
  for (const RowShape::Level& level : copy.rows->levels) bytes *= level.count;
  return bytes;
}

/// Addresses that are different and never used.
Status AddTo(TensorTable& table, const ShardTensor& tensor, std::uintptr_t& address) {
  constexpr std::uintptr_t kAlignment = 64;
  TensorView view{.dtype = tensor.dtype, .shape = tensor.shape, .part = tensor.part};
  if (tensor.end != 0) view.data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  address += AlignUp(tensor.end, kAlignment);
  return table.Add(tensor.name, std::move(view));
}

}  // namespace

Result<ForecastSave> ForecastSave::Make(const Model& model, const Layout& layout) {
  ForecastSave save;
  save.layout_ = layout;
  save.headers_.resize(static_cast<std::size_t>(layout.ranks()));
  std::vector<Holders> parts = FindHolders(model, layout);
  GiveToLeastLoaded(parts, save.headers_);
  for (std::uint32_t shard = 0; shard < save.headers_.size(); ++shard) {
    ShardHeader& header = save.headers_[shard];
    header.shard = shard;
    header.attempt = "00000000-0000-0000-0000-000000000000";
    CAIRN_RETURN_IF_ERROR(LayOut(header));
    for (const ShardTensor& tensor : header.tensors) save.pieces_[LogicalName(tensor)].push_back({shard, &tensor});
  }
  return save;
}

std::vector<bool> ForecastSave::ShardsFor(std::span<const ShardTensor> wanted, int own) const {
  std::vector<bool> shards(headers_.size(), false);
  if (static_cast<std::size_t>(own) < shards.size()) shards[static_cast<std::size_t>(own)] = true;
  for (const ShardTensor& tensor : wanted) {
    const auto found = pieces_.find(LogicalName(tensor));
    if (found == pieces_.end()) continue;
    const Box box = BoxOf(tensor.shape, tensor.part);
    if (box.empty()) {  // Any piece shows that the tensor exists: the rank's own shard's, or the first.
      const auto is_own = [own](const Piece& piece) { return static_cast<int>(piece.shard) == own; };
      if (std::ranges::none_of(found->second, is_own)) shards[found->second.front().shard] = true;
    }
    for (const Piece& piece : found->second) {
      if (!Intersect(BoxOf(piece.tensor->shape, piece.tensor->part), box).empty()) shards[piece.shard] = true;
    }
  }
  return shards;
}

std::uint64_t RankForecast::needed() const {
  std::uint64_t bytes = 0;
  for (const ShardForecast& shard : shards) bytes += shard.needed;
  return bytes;
}

std::uint64_t RankForecast::read() const {
  std::uint64_t bytes = 0;
  for (const ShardForecast& shard : shards) bytes += shard.read + shard.header;
  return bytes;
}

Result<RankForecast> ForecastRestore(const ForecastSave& save, const Model& model, const Layout& layout, int rank,
                                     std::uint64_t chunk_bytes) {
  std::vector<ShardTensor> wanted = TensorsOf(model, layout, rank);
  if (layout.tensor != save.layout().tensor) {
    std::erase_if(wanted, [](const ShardTensor& tensor) { return IsPadding(tensor.name); });
  }
  RankForecast forecast{.table = std::make_unique<TensorTable>(), .matched = {}, .reads = {}, .shards = {}};
  std::uintptr_t address = kBlock;
  for (const ShardTensor& tensor : wanted) CAIRN_RETURN_IF_ERROR(AddTo(*forecast.table, tensor, address));

  const std::vector<bool> opened = save.ShardsFor(wanted, rank);
  std::vector<SavedShard> shards;
  for (std::uint32_t s = 0; s < opened.size(); ++s) {
    shards.push_back({"shard " + std::to_string(s), opened[s] ? &save.headers()[s] : nullptr});
  }
  CAIRN_ASSIGN_OR_RETURN(forecast.matched, MatchTensors(shards, static_cast<std::uint64_t>(rank), *forecast.table, {}));
  for (std::uint32_t s = 0; s < opened.size(); ++s) {
    if (!opened[s]) continue;
    const ShardHeader& header = save.headers()[s];
    ShardForecast of_shard{.shard = s, .header = header.data_begin};
    for (const PlannedCopy& copy : forecast.matched.copies[s]) {
      of_shard.needed += BytesOf(copy);
      of_shard.between_rows += copy.end - copy.begin - BytesOf(copy);
    }
    const auto reads = PlanReads(s, header, forecast.matched.copies[s], chunk_bytes);
    for (const PlannedRead& read : reads) {
      of_shard.read += std::min(read.file_begin + read.file_bytes, header.file_bytes()) - read.file_begin;
    }
    forecast.reads.insert(forecast.reads.end(), reads.begin(), reads.end());
    forecast.shards.push_back(of_shard);
  }
  return forecast;
}

std::vector<std::uint64_t> StageBytes(const Model& model, const Layout& layout) {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(layout.pipeline), 0);
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    for (int t = 0; t < layout.tensor; ++t) {
      bytes[static_cast<std::size_t>(stage)] += model.rank_bytes;
      for (const ShardTensor& tensor : TensorsOf(model, layout, stage * layout.tensor * layout.data + t)) {
        bytes[static_cast<std::size_t>(stage)] += tensor.end;
      }
    }
  }
  return bytes;
}

std::vector<std::uint64_t> BytesAcrossHosts(const Model& model, const Layout& from, const Layout& to,
                                            int gpus_per_host) {
  const bool same_padding = from.tensor == to.tensor;
  std::vector<std::uint64_t> bytes;
  for (int first = 0; first < to.ranks(); first += gpus_per_host) {
    std::map<std::string, std::vector<Box>> held;  // Each place once.
    for (int rank = first; rank < std::min(first + gpus_per_host, from.ranks()); ++rank) {
      for (const ShardTensor& tensor : TensorsOf(model, from, rank)) {
        std::vector<Box>& boxes = held[tensor.name];
        const Box box = BoxOf(tensor.shape, tensor.part);
        if (std::ranges::find(boxes, box) == boxes.end()) boxes.push_back(box);
      }
    }
    std::uint64_t across = 0;
    std::map<std::pair<int, int>, bool> counted;  // Stage and tensor rank.
    for (int rank = first; rank < std::min(first + gpus_per_host, to.ranks()); ++rank) {
      if (!counted.try_emplace({to.StageOf(rank), to.TensorRankOf(rank)}, true).second) continue;
      for (const ShardTensor& tensor : TensorsOf(model, to, rank)) {
        if (!same_padding && IsPadding(tensor.name)) continue;
        const Box wanted = BoxOf(tensor.shape, tensor.part);
        std::uint64_t missing = wanted.elements();
        for (const Box& box : held[tensor.name]) missing -= Intersect(box, wanted).elements();
        across += missing * DTypeSize(tensor.dtype);
      }
    }
    bytes.push_back(across);
  }
  return bytes;
}

}  // namespace cairn
