#include "tree_tensors.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/tensor_table.h"

namespace py = pybind11;

namespace cairn {
namespace {

// Needs no escape, neither as a component of a name nor as JSON, and reads as nothing but a str.
bool IsPlainName(std::string_view key) {
  if (key.empty() || std::string_view("-0123456789TFN_").find(key.front()) != std::string_view::npos) return false;
  return std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return c >= 0x20 && c < 0x7f && c != '~' && c != '/' && c != '"' && c != '\\';
  });
}

// An ASCII str's text; empty for anything else.
std::string_view AsciiOf(PyObject* key) {
  if (!PyUnicode_CheckExact(key) || !PyUnicode_IS_COMPACT_ASCII(key)) return {};
  return {static_cast<const char*>(PyUnicode_DATA(key)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(key))};
}

bool IsSameMemory(const TensorEntry& entry, void* data, DType dtype, std::span<const std::int64_t> shape,
                  std::span<const std::int64_t> strides) {
  if (strides.empty()) return entry.layout.contiguous() && static_cast<void*>(entry.layout.base) == data;
  return entry.layout == MakeStridedLayout(data, DTypeSize(dtype), shape, strides);
}

}  // namespace

void TreeTensors::Add(const py::tuple& view) {
  const auto name = view[0].cast<std::string_view>();
  const auto dtype = DTypeFromName(view[2].cast<std::string>());
  if (!dtype) throw py::value_error("unknown dtype " + view[2].cast<std::string>());
  const auto shape = view[3].cast<py::tuple>();
  const auto strides = view[4].cast<py::tuple>();
  if (strides.size() != 0 && strides.size() != shape.size()) throw py::value_error("shape and strides differ in rank");
  for (const py::handle extent : shape) extents_.push_back(extent.cast<std::int64_t>());
  for (const py::handle stride : strides) extents_.push_back(stride.cast<std::int64_t>());
  names_ += name;
  tensors_.push_back({.dense = {.data = reinterpret_cast<void*>(view[1].cast<std::uintptr_t>()),
                                .dtype = *dtype,
                                .cuda = view[5].cast<int>(),
                                .dimensions = static_cast<std::int32_t>(shape.size())},
                      .name_end = names_.size(),
                      .extents_end = extents_.size(),
                      .bytes = view[6].cast<std::uint64_t>()});
}

py::object TreeTensors::AddAll(const py::list& keys, const py::list& values, std::string_view prefix, bool pairs,
                               const py::function& node) {
  const std::size_t count = keys.size();
  if (count != values.size()) throw py::value_error("keys and values differ in number");
  std::size_t text_bytes = 0;
  for (const py::handle key : keys) {
    const std::string_view name = AsciiOf(key.ptr());
    if (!IsPlainName(name)) return py::none();
    text_bytes += name.size() + std::string_view(R"("":["t"],)").size();
  }
  std::string text;
  text.reserve(text_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key = AsciiOf(PyList_GET_ITEM(keys.ptr(), static_cast<Py_ssize_t>(i)));
    const py::handle value = PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i));
    if (!text.empty()) text += ',';
    text += '"';
    text += key;
    text += pairs ? "\"," : "\":";
    Tensor tensor;
    if (torch_ == nullptr || !torch_->Knows(value) || !torch_->Read(value, tensor.dense, extents_)) {
      const std::string name = prefix.empty() ? std::string(key) : std::string(prefix).append("/").append(key);
      text += node(value, name).cast<std::string_view>();
      continue;
    }
    text += R"(["t"])";
    if (!prefix.empty()) {
      names_ += prefix;
      names_ += '/';
    }
    names_ += key;
    tensor.name_end = names_.size();
    tensor.extents_end = extents_.size();
    tensors_.push_back(tensor);
  }
  return py::str(text);
}

std::set<int> TreeTensors::cuda_devices() const {
  std::set<int> devices;
  for (const Tensor& tensor : tensors_) {
    if (tensor.dense.cuda >= 0) devices.insert(tensor.dense.cuda);
  }
  return devices;
}

bool TreeTensors::IsSame(const State& earlier) const {
  const TensorTable& table = *earlier.table();
  if (table.size() != tensors_.size()) return false;
  std::size_t name_begin = 0;
  std::size_t extents_begin = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const TensorEntry& entry = table[i];
    const std::span<const std::int64_t> shape(extents_.data() + extents_begin,
                                              static_cast<std::size_t>(tensor.dense.dimensions));
    const std::span<const std::int64_t> strides(extents_.data() + extents_begin + shape.size(),
                                                tensor.extents_end - extents_begin - shape.size());
    const DeviceId device{.kind = tensor.dense.cuda < 0 ? DeviceKind::kCpu : DeviceKind::kCuda,
                          .index = std::max(tensor.dense.cuda, 0)};
    if (std::string_view(names_).substr(name_begin, tensor.name_end - name_begin) != entry.name ||
        tensor.dense.dtype != entry.dtype || device != entry.device || !std::ranges::equal(shape, entry.shape) ||
        !IsSameMemory(entry, tensor.dense.data, tensor.dense.dtype, shape, strides)) {
      return false;
    }
    name_begin = tensor.name_end;
    extents_begin = tensor.extents_end;
  }
  return true;
}

Result<State> TreeTensors::Build(const std::optional<State>& earlier) const {
  if (earlier && IsSame(*earlier)) return *earlier;
  State state;
  std::size_t name_begin = 0;
  std::size_t extents_begin = 0;
  for (const Tensor& tensor : tensors_) {
    const auto shape_begin = extents_.begin() + static_cast<std::ptrdiff_t>(extents_begin);
    const auto shape_end = shape_begin + tensor.dense.dimensions;
    const auto extents_end = extents_.begin() + static_cast<std::ptrdiff_t>(tensor.extents_end);
    CAIRN_RETURN_IF_ERROR(state.Add(names_.substr(name_begin, tensor.name_end - name_begin),
                                    {.data = tensor.dense.data,
                                     .dtype = tensor.dense.dtype,
                                     .shape = {shape_begin, shape_end},
                                     .strides = {shape_end, extents_end},
                                     .device = {.kind = tensor.dense.cuda < 0 ? DeviceKind::kCpu : DeviceKind::kCuda,
                                                .index = std::max(tensor.dense.cuda, 0)},
                                     .bytes = tensor.bytes}));
    name_begin = tensor.name_end;
    extents_begin = tensor.extents_end;
  }
  return state;
}

}  // namespace cairn
