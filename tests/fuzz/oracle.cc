#include "fuzz/oracle.h"

#include <algorithm>
#include <cstring>

#include "format/fields.h"
#include "fuzz/check.h"

namespace cairn {
namespace {

constexpr std::byte kUntouched{0x5a};
constexpr std::uint64_t kMaxBytes = 3 * kChecksumBlock;  // Of all targets together.
constexpr std::uint64_t kMaxRows = 8192;                 // Of one.
constexpr std::size_t kMostTargets = 32;
constexpr std::int64_t kMostStride = 1 << 22;

using Extents = std::vector<std::int64_t>;

Extents OffsetOf(const Extents& shape, const std::optional<TensorPart>& part) {
  return part ? part->offset : Extents(shape.size(), 0);
}
const Extents& GlobalOf(const Extents& shape, const std::optional<TensorPart>& part) {
  return part ? part->global_shape : shape;
}
const std::string& LogicalOf(const std::string& name, const std::optional<TensorPart>& part) {
  return part ? part->logical_name : name;
}

Extents RowMajor(const Extents& shape) {
  Extents strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::int64_t>(1, shape[d]);
  return strides;
}

// With gaps between rows, and optionally with the dimensions reversed.
Extents Spread(const Extents& shape, std::int64_t gap, bool reversed) {
  Extents strides(shape.size(), 1);
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::size_t d = reversed ? i : shape.size() - 1 - i;
    strides[d] = stride;
    stride *= shape[d] + (shape[d] > 1 && stride < kMostStride / 64 ? gap : 0);
  }
  return strides;
}

// Calls visit(coordinates, element offset in memory) for the first element of each row.
template <typename Visit>
void ForEachRow(const Extents& shape, const Extents& strides, const Visit& visit) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  Extents at(shape.size(), 0);
  std::int64_t offset = 0;
  while (true) {
    visit(at, offset);
    std::size_t d = shape.empty() ? 0 : shape.size() - 1;
    for (; d > 0; --d) {
      offset += strides[d - 1];
      if (++at[d - 1] < shape[d - 1]) break;
      offset -= strides[d - 1] * shape[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace

struct RestoreTargets::Target {
  std::string name;
  TensorView view;
  Extents strides;
  // Empty if it is another target's.
  std::vector<std::byte> memory;
  bool tied = false;
};

RestoreTargets::RestoreTargets(const FuzzedFolder& folder, std::span<const ShardHeader> headers)
    : folder_(folder), headers_(headers) {
  for (std::size_t s = 0; s < headers.size(); ++s) {
    for (const ShardTensor& tensor : headers[s].tensors) {
      saved_.push_back({tensor.name, s, &tensor});
      for (const auto& [alias, holder] : headers[s].aliases) {
        if (holder == tensor.name) saved_.push_back({alias, s, &tensor});
      }
    }
  }
  if (folder.plan().targets.size() < 3) {
    AddAsSaved();
  } else {
    AddByPlan(folder.plan().targets);
  }
}

RestoreTargets::~RestoreTargets() = default;

void RestoreTargets::AddAsSaved() {
  for (const SavedName& saved : saved_) {
    Add(saved.name, {.dtype = saved.tensor->dtype, .shape = saved.tensor->shape, .part = saved.tensor->part});
  }
}

void RestoreTargets::AddByPlan(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  for (std::size_t i = 0; i + 3 <= bytes.size() && !saved_.empty(); i += 3) {
    const SavedName& saved = saved_[byte(i) % saved_.size()];
    const unsigned how = byte(i + 1);
    const unsigned more = byte(i + 2);
    const ShardTensor& tensor = *saved.tensor;
    std::string name = saved.name;
    TensorView view{.dtype = tensor.dtype, .shape = tensor.shape, .part = tensor.part};
    const Extents& global = GlobalOf(tensor.shape, tensor.part);
    switch (how & 7U) {
      case 1:  // The whole that it is a part of.
        name = LogicalOf(saved.name, tensor.part);
        view.shape = global;
        view.part.reset();
        break;
      case 2: {  // A differently cut part.
        const std::string logical = LogicalOf(saved.name, tensor.part);
        view.shape = global;
        view.part = TensorPart{logical, global, Extents(global.size(), 0)};
        if (global.empty()) break;
        const std::size_t d = more % global.size();
        const std::int64_t each = global[d] / (2 + (more >> 4) % 4) + 1;
        view.part->offset[d] = std::min(global[d], each * static_cast<std::int64_t>(more >> 2 & 3U));
        view.shape[d] = std::min(each, global[d] - view.part->offset[d]);
        name = "cut " + std::to_string(i);
        break;
      }
      case 3:  // Another dtype.
        view.dtype = static_cast<DType>(more % 17);
        break;
      case 4:  // Another extent.
        if (!view.shape.empty() && view.shape[0] < kMostStride) view.shape[0] += more % 3;
        break;
      case 5:
        name += "?";
        break;
      default:
        break;
    }
    if ((how & 8U) != 0 && TensorBytes(view.dtype, view.shape).value_or(kMaxBytes) < kMaxBytes) {
      view.strides = Spread(view.shape, more % 5, (how & 16U) != 0);
    }
    if ((how & 32U) != 0) view.device = {.kind = DeviceKind::kCuda};
    Target* const last = targets_.empty() ? nullptr : &targets_.back();
    Add(std::move(name), std::move(view), (how & 64U) != 0 ? last : nullptr);
  }
}

void RestoreTargets::Add(std::string name, TensorView view, Target* tied) {
  const auto bytes = TensorBytes(view.dtype, view.shape);
  if (targets_.size() == kMostTargets || !bytes || *bytes > kMaxBytes) return;
  const std::uint64_t item = DTypeSize(view.dtype);
  if (*bytes != 0 && !view.shape.empty() && *bytes / item / static_cast<std::uint64_t>(view.shape.back()) > kMaxRows) {
    return;
  }
  Target target{.name = std::move(name), .view = std::move(view)};
  target.strides = target.view.strides.empty() && *bytes != 0 ? RowMajor(target.view.shape) : target.view.strides;
  if (tied != nullptr) {
    target.view = tied->view;
    target.strides = tied->strides;
    target.tied = tied->tied = true;
  } else if (*bytes != 0) {
    std::uint64_t span = item;
    for (std::size_t d = 0; d < target.strides.size(); ++d) {
      span += item * static_cast<std::uint64_t>((target.view.shape[d] - 1) * target.strides[d]);
    }
    if (bytes_ + span > kMaxBytes) return;
    target.memory.assign(span, kUntouched);
    target.view.data = target.memory.data();
    target.view.bytes = span;
  }
  const Status added = state_.Add(target.name, target.view);
  Require(added.ok() || added.code() == StatusCode::kInvalidArgument, "a state refuses with InvalidArgument",
          added.message());
  if (!added.ok()) return;
  bytes_ += target.memory.size();
  targets_.push_back(std::move(target));  // The memory does not move.
}

void RestoreTargets::RequireUntouched() const {
  for (const Target& target : targets_) {
    Require(std::all_of(target.memory.begin(), target.memory.end(), [](std::byte b) { return b == kUntouched; }),
            "a restore that is refused in advance writes nothing", target.name);
  }
}

void RestoreTargets::RequireRestored(const Restored& restored) const {
  for (const Target& target : targets_) {
    const bool missing =
        std::find(restored.missing.begin(), restored.missing.end(), target.name) != restored.missing.end();
    if (!missing) {
      RequireElements(target);
    } else if (!target.tied) {
      Require(std::count(target.memory.begin(), target.memory.end(), kUntouched) ==
                  static_cast<std::ptrdiff_t>(target.memory.size()),
              "a missing tensor stays untouched", target.name);
    }
  }
}

void RestoreTargets::RequireElements(const Target& target) const {
  const Extents& shape = target.view.shape;
  const std::uint64_t item = DTypeSize(target.view.dtype);
  const std::int64_t length = shape.empty() ? 1 : shape.back();
  const std::int64_t step = shape.empty() ? 1 : target.strides.empty() ? 0 : target.strides.back();
  const auto* const base = static_cast<const std::byte*>(target.view.data);
  std::vector<bool> written(target.memory.size());
  ForEachRow(shape, target.strides, [&](const Extents& row, std::int64_t offset) {
    Extents at = row;
    for (std::int64_t x = 0; x < length;) {
      if (!at.empty()) at.back() = x;
      const std::byte* const found = base + (offset + x * step) * static_cast<std::int64_t>(item);
      const std::int64_t run = FindRun(target, at, found, step == 1 || length == 1 ? length - x : 1);
      Require(run > 0, "every restored element is in a shard", target.name);
      x += run;
    }
    for (std::int64_t x = 0; x < length && !written.empty(); ++x) {
      const auto first = static_cast<std::size_t>(offset + x * step) * item;
      for (std::size_t i = first; i < first + item; ++i) written[i] = true;
    }
  });
  for (std::size_t i = 0; i < written.size(); ++i) {
    Require(written[i] || target.memory[i] == kUntouched, "nothing between a view's elements is written", target.name);
  }
}

std::int64_t RestoreTargets::FindRun(const Target& target, const Extents& at, const std::byte* found,
                                     std::int64_t most) const {
  const TensorView& view = target.view;
  const Extents offset = OffsetOf(view.shape, view.part);
  const std::size_t rank = view.shape.size();
  for (const bool single : {false, true}) {
    for (const SavedName& saved : saved_) {
      const ShardTensor& tensor = *saved.tensor;
      if (tensor.dtype != view.dtype || LogicalOf(saved.name, tensor.part) != LogicalOf(target.name, view.part) ||
          GlobalOf(tensor.shape, tensor.part) != GlobalOf(view.shape, view.part)) {
        continue;
      }
      const Extents begin = OffsetOf(tensor.shape, tensor.part);
      const Extents strides = RowMajor(tensor.shape);
      std::int64_t run = 1;
      std::int64_t element = 0;
      for (std::size_t d = 0; d < rank && run > 0; ++d) {
        const std::int64_t local = offset[d] + at[d] - begin[d];
        if (local < 0 || local >= tensor.shape[d]) run = 0;
        if (run > 0) element += local * strides[d];
        if (run > 0 && d + 1 == rank) run = std::min(single ? 1 : most, tensor.shape[d] - local);
      }
      if (run > 0 && Same(saved, static_cast<std::uint64_t>(element), found, static_cast<std::uint64_t>(run))) {
        return run;
      }
    }
  }
  return 0;
}

bool RestoreTargets::Same(const SavedName& saved, std::uint64_t element, const std::byte* found,
                          std::uint64_t count) const {
  const FuzzedShard& shard = folder_.shards()[saved.shard];
  const std::uint64_t item = DTypeSize(saved.tensor->dtype);
  const std::uint64_t begin = saved.tensor->begin + element * item;
  const std::uint64_t bytes = count * item;
  if (std::memcmp(shard.data + begin, found, bytes) == 0) return true;
  // Without checksums a flipped bit is valid content.
  if (!shard.flipped || headers_[saved.shard].checksums || *shard.flipped < shard.header.size() + begin) return false;
  const std::uint64_t at = *shard.flipped - shard.header.size() - begin;
  if (at >= bytes) return false;
  return std::memcmp(shard.data + begin, found, at) == 0 &&
         (static_cast<std::byte>(shard.data[begin + at]) ^ std::byte{1}) == found[at] &&
         std::memcmp(shard.data + begin + at + 1, found + at + 1, bytes - at - 1) == 0;
}

}  // namespace cairn
