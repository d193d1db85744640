#include "base/tensor_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/store_order.h"
#include "base/utf8.h"

namespace cairn {
namespace {

// Up to this size, signed arithmetic on sizes, strides and offsets cannot overflow.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;

bool MultiplyInto(std::uint64_t& product, std::uint64_t factor) {
  return !__builtin_mul_overflow(product, factor, &product) && product <= kMaxBytes;
}

// Whether elements share memory, or run backwards. Conservative: sorted by stride, each dimension must step over all
// those inside it.
bool HasSharedElements(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // {stride, size}
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (shape[d] > 1) dimensions.emplace_back(strides[d], shape[d]);
  }
  std::ranges::sort(dimensions);
  std::int64_t reach = 0;  // Highest element offset of the dimensions so far.
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

Status CheckView(const std::string& name, const TensorView& view) {
  const auto invalid = [&name](const std::string& what) {
    return Error(StatusCode::kInvalidArgument, "tensor \"{}\": {}", name, what);
  };
  if (static_cast<std::size_t>(view.dtype) > static_cast<std::size_t>(DType::kU64)) return invalid("unknown dtype");
  if (!view.strides.empty() && view.strides.size() != view.shape.size()) {
    return invalid(fmt::format("expected {} strides for shape [{}], found {}", view.shape.size(),
                               fmt::join(view.shape, ", "), view.strides.size()));
  }
  std::uint64_t bytes = DTypeSize(view.dtype);
  std::uint64_t span = bytes;  // From the first element to the end of the last.
  bool empty = false;
  bool backwards = false;
  for (std::size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] < 0) return invalid(fmt::format("negative extent in shape [{}]", fmt::join(view.shape, ", ")));
    empty = empty || view.shape[d] == 0;
  }
  for (std::size_t d = 0; d < view.shape.size(); ++d) {
    // From the left and with zeros among them: readers refuse a product that overflows before it becomes zero.
    if (!MultiplyInto(bytes, static_cast<std::uint64_t>(view.shape[d]))) {
      return invalid(fmt::format("shape [{}] has more than 2^62 bytes", fmt::join(view.shape, ", ")));
    }
    if (view.strides.empty() || empty) continue;
    backwards = backwards || (view.strides[d] < 0 && view.shape[d] > 1);
    auto step = static_cast<std::uint64_t>(view.shape[d] - 1);
    // Of the least of 64 bits, which has no positive counterpart, this is right too.
    const auto stride = static_cast<std::uint64_t>(view.strides[d]);
    if (!MultiplyInto(step, view.strides[d] < 0 ? 0 - stride : stride) || !MultiplyInto(step, DTypeSize(view.dtype)) ||
        __builtin_add_overflow(span, step, &span) || span > kMaxBytes) {
      return invalid(fmt::format("strides [{}] span more than 2^62 bytes", fmt::join(view.strides, ", ")));
    }
  }
  if (!empty && view.data == nullptr) return invalid("it has elements, but no memory: its address is null");
  if (!empty && view.strides.empty()) span = bytes;
  if (!empty && view.bytes != 0 && span > view.bytes) {
    return invalid(fmt::format("the view spans {} bytes, but its memory holds {}", span, view.bytes));
  }
  if (backwards && view.bytes != 0) {
    return invalid(fmt::format("strides [{}] lead to before its memory, which begins at its first element",
                               fmt::join(view.strides, ", ")));
  }
  if (view.part) {
    const TensorPart& part = *view.part;
    if (part.logical_name.empty() || !IsUtf8(part.logical_name))
      return invalid("its part's logical name is empty or not valid UTF-8");
    if (part.global_shape.size() != view.shape.size() || part.offset.size() != view.shape.size()) {
      return invalid(fmt::format("expected {} global dimensions and offsets of its part, found {} and {}",
                                 view.shape.size(), part.global_shape.size(), part.offset.size()));
    }
    std::uint64_t whole = DTypeSize(view.dtype);
    for (std::size_t d = 0; d < view.shape.size(); ++d) {
      std::int64_t end = 0;
      if (part.offset[d] < 0 || __builtin_add_overflow(part.offset[d], view.shape[d], &end) ||
          end > part.global_shape[d]) {
        return invalid(fmt::format("part at [{}] with shape [{}] is not within [{}]", fmt::join(part.offset, ", "),
                                   fmt::join(view.shape, ", "), fmt::join(part.global_shape, ", ")));
      }
      if (!MultiplyInto(whole, static_cast<std::uint64_t>(part.global_shape[d]))) {
        return invalid(
            fmt::format("its global shape [{}] has more than 2^62 bytes", fmt::join(part.global_shape, ", ")));
      }
    }
  }
  return Status::Ok();
}

}  // namespace

TensorTable::TensorTable(const TensorTable& other)
    : entries_(other.entries_),
      by_address_(other.by_address_),
      small_(other.small_),
      devices_(other.devices_),
      bytes_(other.bytes_),
      small_bytes_(other.small_bytes_),
      cpu_bytes_(other.cpu_bytes_),
      waits_for_streams_(other.waits_for_streams_),
      has_frozen_(other.has_frozen_) {
  index_.reserve(entries_.size());
  for (std::uint32_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

Status TensorTable::Add(std::string name, TensorView view) {
  if (name.empty()) return Error(StatusCode::kInvalidArgument, "a tensor's name is empty");
  if (!IsUtf8(name))
    return Error(StatusCode::kInvalidArgument, "a tensor's name is not valid UTF-8: {:?}", std::string_view(name));
  if (name == "__metadata__") {
    return Error(StatusCode::kInvalidArgument, "tensor \"__metadata__\": safetensors reserves this name");
  }
  if (index_.contains(name)) return Error(StatusCode::kInvalidArgument, "tensor \"{}\" was already added", name);
  CAIRN_RETURN_IF_ERROR(CheckView(name, view));

  TensorEntry entry{.name = std::move(name),
                    .dtype = view.dtype,
                    .device = view.device,
                    .layout = MakeStridedLayout(view.data, DTypeSize(view.dtype), view.shape, view.strides),
                    .part = std::move(view.part),
                    .frozen = view.frozen,
                    .version = view.version};
  entry.save_only = entry.bytes() != 0 && HasSharedElements(view.shape, view.strides);
  entry.shape = std::move(view.shape);
  if (entry.save_only && entry.device.kind != DeviceKind::kCpu) {
    return Error(
        StatusCode::kInvalidArgument,
        "tensor \"{}\": its elements share memory or run backwards: shape [{}], strides [{}]; make it contiguous "
        "first",
        entry.name, fmt::join(entry.shape, ", "), fmt::join(view.strides, ", "));
  }
  if (entry.bytes() != 0) {
    const auto [first, last] = by_address_.equal_range(view.data);
    for (auto it = first; it != last; ++it) {
      const TensorEntry& other = entries_[it->second];
      if (other.dtype == entry.dtype && other.shape == entry.shape && other.layout == entry.layout &&
          other.device == entry.device && other.part == entry.part) {
        entry.alias_of = it->second;
        break;
      }
    }
  }
  Append(std::move(entry));
  return Status::Ok();
}

void TensorTable::Append(TensorEntry entry) {
  const auto id = static_cast<std::uint32_t>(entries_.size());
  has_frozen_ = has_frozen_ || entry.frozen;
  if (!entry.is_alias() && entry.bytes() != 0) {
    by_address_.emplace(entry.layout.base, id);
    bytes_ += entry.bytes();
    if (std::ranges::find(devices_, entry.device) == devices_.end()) devices_.push_back(entry.device);
    if (entry.device.kind == DeviceKind::kCpu) cpu_bytes_ += entry.bytes();
    waits_for_streams_ = waits_for_streams_ || entry.written_by_streams;
    if (entry.device.kind == DeviceKind::kCpu && !entry.written_by_streams && entry.bytes() <= kSmallTensorBytes &&
        small_bytes_ + entry.bytes() <= kSmallTensorsTotal) {
      small_.push_back(id);
      small_bytes_ += entry.bytes();
    }
  }
  entries_.push_back(std::move(entry));
  index_.emplace(entries_.back().name, id);
}

std::shared_ptr<const TensorTable> TensorTable::WithWritten(const std::vector<bool>& written) const {
  auto same = std::make_shared<TensorTable>();
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    TensorEntry entry = entries_[i];
    entry.written_by_streams = written[i];
    same->Append(std::move(entry));
  }
  return same;
}

std::shared_ptr<const TensorTable> TensorTable::Without(const std::vector<bool>& dropped) const {
  auto rest = std::make_shared<TensorTable>();
  std::vector<std::uint32_t> moved(entries_.size(), TensorEntry::kNoAlias);
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    if (dropped[i]) continue;
    moved[i] = static_cast<std::uint32_t>(rest->size());
    TensorEntry entry = entries_[i];
    if (entry.is_alias()) entry.alias_of = moved[entry.alias_of];
    rest->Append(std::move(entry));
  }
  return rest;
}

std::optional<std::uint32_t> TensorTable::Find(std::string_view name) const {
  const auto it = index_.find(name);
  if (it == index_.end()) return std::nullopt;
  return it->second;
}

const std::vector<std::uint32_t>& TensorTable::StoreOrder() const {
  MutexLock lock(order_mutex_);
  if (ordered_ == entries_.size()) return order_;
  order_.clear();
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].is_alias()) order_.push_back(i);
  }
  std::ranges::sort(order_, [this](std::uint32_t a, std::uint32_t b) {
    const TensorEntry& x = entries_[a];
    const TensorEntry& y = entries_[b];
    return StoredTensorKey{x.dtype, x.bytes(), x.name} < StoredTensorKey{y.dtype, y.bytes(), y.name};
  });
  ordered_ = entries_.size();
  return order_;
}

}  // namespace cairn
