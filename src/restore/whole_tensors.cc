#include "restore/whole_tensors.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/tensor_table.h"

namespace cairn {
namespace {

// Where a box of a tensor goes.
struct Place {
  std::size_t window = 0;
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::string_view name;
};

std::vector<std::int64_t> Extents(const Box& box) {
  std::vector<std::int64_t> extents = box.end;
  for (std::size_t d = 0; d < extents.size(); ++d) extents[d] -= box.begin[d];
  return extents;
}

// Only a number, by which the table tells the boxes apart: nothing is read or written there.
std::byte* Address(std::uint64_t at) {
  return reinterpret_cast<std::byte*>(kBlock + at);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

std::vector<Box> CutBoxes(const std::vector<std::int64_t>& shape, std::uint64_t item, std::uint64_t most) {
  const Box whole = BoxOf(shape, std::nullopt);
  if (whole.empty()) return {};
  std::uint64_t step = whole.elements() * item;
  if (step <= most) return {whole};
  // The outermost dimension of which one index fits; each index of those outside it is cut by itself.
  std::size_t along = 0;
  std::uint64_t outside = 1;
  for (; along < shape.size(); ++along) {
    const auto extent = static_cast<std::uint64_t>(shape[along]);
    step /= extent;
    if (step <= most || along + 1 == shape.size()) break;
    outside *= extent;
  }
  if (along == shape.size()) return {whole};  // A scalar.
  const auto rows = static_cast<std::int64_t>(std::max<std::uint64_t>(most / step, 1));
  std::vector<Box> boxes;
  for (std::uint64_t index = 0; index < outside; ++index) {
    Box box = whole;
    std::uint64_t rest = index;
    for (std::size_t d = along; d-- > 0;) {
      const auto extent = static_cast<std::uint64_t>(shape[d]);
      box.begin[d] = static_cast<std::int64_t>(rest % extent);
      box.end[d] = box.begin[d] + 1;
      rest /= extent;
    }
    for (std::int64_t row = 0; row < shape[along]; row += rows) {
      box.begin[along] = row;
      box.end[along] = std::min(row + rows, shape[along]);
      boxes.push_back(box);
    }
  }
  return boxes;
}

Result<WholeTensors> WholeTensors::Plan(TensorSource& source, const std::vector<WholeTensor>& tensors,
                                        std::uint64_t window_bytes) {
  WholeTensors whole(source);
  TensorTable table;
  std::vector<Place> places;  // By entry.
  // So a window is filled to three quarters at least, unless the tensors end.
  const std::uint64_t box_bytes = window_bytes / 4;
  std::uint64_t total = 0;
  for (const WholeTensor& tensor : tensors) {
    whole.names_.push_back(tensor.name);
    const std::uint64_t item = DTypeSize(tensor.dtype);
    for (const Box& box : CutBoxes(tensor.shape, item, box_bytes)) {
      const std::uint64_t bytes = box.elements() * item;
      if (whole.windows_.empty() || whole.windows_.back().bytes + bytes > window_bytes) whole.windows_.emplace_back();
      Window& window = whole.windows_.back();
      places.push_back({whole.windows_.size() - 1, window.bytes, bytes, whole.names_.back()});
      // As a part, even if it is all of the tensor: so it is found by the logical name, under any name of its own.
      CAIRN_RETURN_IF_ERROR(table.Add(fmt::format("{} ({})", tensor.name, places.size()),
                                      {.data = Address(total),
                                       .dtype = tensor.dtype,
                                       .shape = Extents(box),
                                       .part = TensorPart{tensor.name, tensor.shape, box.begin}}));
      window.bytes += bytes;
      total += bytes;
    }
  }
  CAIRN_ASSIGN_OR_RETURN(MatchedTensors matched, source.Match(table));
  std::unordered_map<const StridedLayout*, const Place*> by_target;
  for (std::size_t i = 0; i < places.size(); ++i) by_target.emplace(&table[i].layout, &places[i]);
  for (std::uint32_t file = 0; file < matched.copies.size(); ++file) {
    for (PlannedCopy& copy : matched.copies[file]) {
      const Place& place = *by_target.at(copy.target);
      copy.name = place.name;
      whole.windows_[place.window].copies.push_back({file, place.at, place.bytes, copy});
    }
  }
  whole.shapes_ = std::move(matched.shapes);
  return whole;
}

Status WholeTensors::Read(const RestoreParts& parts, std::size_t window, std::byte* to) {
  std::deque<StridedLayout> layouts;
  std::vector<std::vector<PlannedCopy>> copies(source_->files());
  for (const Copy& copy : windows_[window].copies) {
    layouts.push_back({.base = to + copy.at, .row_bytes = copy.bytes, .bytes = copy.bytes});
    PlannedCopy planned = copy.planned;
    planned.target = &layouts.back();
    copies[copy.file].push_back(planned);
  }
  return source_->ReadCopies(parts, std::move(copies));
}

}  // namespace cairn
