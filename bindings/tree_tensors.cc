#include "tree_tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/memory_overlap.h"
#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "conversions.h"
#include "plain_kinds.h"

namespace py = pybind11;

namespace cairn {
namespace {

// Whether a name could be read as that of a key which is no str, or is the header's own: see part_of in
// cairn/_tree/paths.py, which escapes these. Names of modules begin alike: "0.weight", "_orig_mod.weight", "Norm.bias".
bool ReadsOtherwise(std::string_view key) {
  switch (key.front()) {
    case 'T':
      return key == "True";
    case 'F':
      return key == "False";
    case 'N':
      return key == "None";
    case '_':
      return key == "__metadata__";
    default:
      return key.find_first_not_of("0123456789", key.front() == '-' ? 1 : 0) == std::string_view::npos;
  }
}

// Needs no escape, neither in a tensor's name nor in JSON, and cannot be read as anything but a str.
bool IsPlainName(std::string_view key) {
  if (key.empty() || ReadsOtherwise(key)) return false;
  return std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return c >= 0x20 && c < 0x7f && c != '~' && c != '/' && c != '"' && c != '\\';
  });
}

// The component of a tensor's name that stands for a key, as part_of in cairn/_tree/paths.py has it.
class NamePart {
 public:
  explicit NamePart(PyObject* key) : is_str_(PyUnicode_CheckExact(key) != 0), text_(AsciiOf(key)) {
    if (is_str_ || PyLong_CheckExact(key) == 0) return;
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(key, &overflow);
    if (overflow != 0) return;
    text_ = {digits_.data(), std::to_chars(digits_.data(), digits_.data() + digits_.size(), number).ptr};
  }
  NamePart(const NamePart&) = delete;
  NamePart& operator=(const NamePart&) = delete;
  ~NamePart() = default;

  // False for what needs more care than this.
  [[nodiscard]] bool is_plain() const { return is_str_ ? IsPlainName(text_) : !text_.empty(); }
  [[nodiscard]] bool is_str() const { return is_str_; }
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  std::array<char, 20> digits_;
  const bool is_str_;
  std::string_view text_;
};

std::string Joined(std::string_view prefix, std::string_view key) {
  return prefix.empty() ? std::string(key) : std::string(prefix).append("/").append(key);
}

// Whether a node of a tree's text, as json.loads returns it, is ["t"]: a torch tensor.
bool IsTensorNode(PyObject* node) {
  return PyList_CheckExact(node) && PyList_GET_SIZE(node) == 1 && AsciiOf(PyList_GET_ITEM(node, 0)) == "t";
}

// One of the first two words of a tensor's Python object points to the tensor: which one depends on torch's version.
// Prefetching something that is not an address does nothing.
void PrefetchContent(PyObject* tensor) {
  constexpr std::uintptr_t kLine = 64;
  const auto* words = reinterpret_cast<const std::uintptr_t*>(tensor + 1);
  for (const std::uintptr_t word : {words[0], words[1]}) {
    for (std::uintptr_t line = 0; line < 4; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(word + line * kLine));
  }
}

const std::byte* LastRowOf(const StridedLayout& layout) {
  const std::byte* row = layout.base;
  for (const StridedLayout::Dimension& dimension : layout.outer) row += (dimension.size - 1) * dimension.stride;
  return row;
}

// A dict's keys and values at one moment, in its own order, which is not an OrderedDict's.
py::tuple ItemsOf(const py::dict& of) {
  while (true) {
    const std::size_t count = of.size();
    py::list keys(count);
    py::list values(count);
    if (of.size() != count) continue;  // A collection of garbage, which may run anything.
    Py_ssize_t at = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t i = 0; PyDict_Next(of.ptr(), &at, &key, &value) != 0; ++i) {
      PyList_SET_ITEM(keys.ptr(), i, Py_NewRef(key));
      PyList_SET_ITEM(values.ptr(), i, Py_NewRef(value));
    }
    return py::make_tuple(std::move(keys), std::move(values));
  }
}

}  // namespace

void TreeTensors::Add(const py::tuple& view, const py::object& part, const py::object& tensor) {
  const auto name = view[0].cast<std::string_view>();
  const auto dtype = DTypeFromName(view[2].cast<std::string>());
  if (!dtype) throw py::value_error("unknown dtype " + view[2].cast<std::string>());
  const auto shape = view[3].cast<py::tuple>();
  const auto strides = view[4].cast<py::tuple>();
  if (strides.size() != 0 && strides.size() != shape.size()) throw py::value_error("shape and strides differ in rank");
  for (const py::handle extent : shape) seen_.extents.push_back(extent.cast<std::int64_t>());
  for (const py::handle stride : strides) seen_.extents.push_back(stride.cast<std::int64_t>());
  if (std::optional<TensorPart> of = PartFrom(part)) seen_.parts.emplace_back(seen_.tensors.size(), *std::move(of));
  seen_.names += name;
  seen_.tensors.push_back({.dense = {.data = reinterpret_cast<void*>(view[1].cast<std::uintptr_t>()),
                                     .dtype = *dtype,
                                     .cuda = view[5].cast<int>(),
                                     .dimensions = static_cast<std::int32_t>(shape.size())},
                           .name_end = seen_.names.size(),
                           .extents_end = seen_.extents.size(),
                           .bytes = view[6].cast<std::uint64_t>()});
  const bool known = torch_ != nullptr && torch_->Knows(tensor);
  given_.push_back({tensor.is_none() ? py::handle() : py::handle(tensor), seen_.tensors.back().dense.data,
                    known ? torch_->Room(tensor, DTypeSize(*dtype)) : 0});
  kept_.push_back(tensor);
}

bool TreeTensors::AddPart(std::string_view name, py::handle tensor, const py::object& part) {
  Tensor read;
  std::int64_t room = 0;
  if (torch_ == nullptr || !torch_->Knows(tensor) || !torch_->Read(tensor, read.dense, seen_.extents, &room))
    return false;
  if (std::optional<TensorPart> of = PartFrom(part)) seen_.parts.emplace_back(seen_.tensors.size(), *std::move(of));
  AddRead("", name, read, tensor, room);
  return true;
}

// The training step since the last save has emptied the caches, and each tensor's objects lie somewhere else. So the
// memory of a tensor is prefetched while earlier tensors are read.
void TreeTensors::Prefetch(std::span<PyObject* const> values, std::size_t at) const {
  constexpr std::size_t kAhead = 8;
  if (torch_ == nullptr || at + 2 * kAhead >= values.size()) return;
  __builtin_prefetch(values[at + 2 * kAhead]);
  if (torch_->Knows(values[at + kAhead])) PrefetchContent(values[at + kAhead]);
}

void TreeTensors::AddRead(std::string_view prefix, std::string_view key, Tensor tensor, py::handle value,
                          std::int64_t room) {
  if (!prefix.empty()) {
    seen_.names += prefix;
    seen_.names += '/';
  }
  seen_.names += key;
  tensor.name_end = seen_.names.size();
  tensor.extents_end = seen_.extents.size();
  seen_.tensors.push_back(tensor);
  given_.push_back({value, tensor.dense.data, room});
}

py::object TreeTensors::AddAll(const py::list& keys, const py::list& values, std::string_view prefix,
                               std::string_view mark, bool nests, const py::function& node) {
  const std::size_t count = keys.size();
  if (count != values.size()) throw py::value_error("keys and values differ in number");
  std::size_t text_bytes = 0;
  for (const py::handle key : keys) {
    const NamePart part(key.ptr());
    if (!part.is_plain() || (mark == ":" && !part.is_str())) return py::none();
    text_bytes += part.text().size() + std::string_view(R"("":["t"],)").size();
  }
  all_given_.append(py::make_tuple(prefix, keys, values));
  const std::span<PyObject* const> items(PySequence_Fast_ITEMS(values.ptr()), count);
  std::string text;
  text.reserve(text_bytes);
  if (count > seen_.tensors.size()) {
    seen_.tensors.reserve(seen_.tensors.size() + count);
    given_.reserve(given_.size() + count);
  }
  std::optional<Leaves> leaves;
  for (std::size_t i = 0; i < count; ++i) {
    Prefetch(items, i);
    const NamePart part(PyList_GET_ITEM(keys.ptr(), static_cast<Py_ssize_t>(i)));
    const std::string_view key = part.text();
    const py::handle value = items[i];
    if (!text.empty()) text += ',';
    if (!mark.empty()) {
      if (part.is_str()) text += '"';
      text += key;
      if (part.is_str()) text += '"';
      text += mark;
    }
    Tensor tensor;
    std::int64_t room = 0;
    if (torch_ != nullptr && torch_->Knows(value) && torch_->Read(value, tensor.dense, seen_.extents, &room)) {
      text += R"(["t"])";
      AddRead(prefix, key, tensor, value, room);
      continue;
    }
    if (nests && PyDict_CheckExact(value.ptr()) != 0) {
      if (!leaves) all_given_.append(py::make_tuple(prefix, leaves.emplace().keys, leaves->values));
      const std::size_t begin = leaves->keys.size();
      if (TakeDict(value, key, *leaves)) {
        AddDict(*leaves, begin, prefix, key, node, text);
        continue;
      }
    }
    text += node(value, Joined(prefix, key)).cast<std::string_view>();
  }
  return py::str(text);
}

// All of it first, because another thread may change the dict whenever Python code runs; and in two lists for all
// dicts, because lists of each one's own would be visited by the garbage collector.
bool TreeTensors::TakeDict(py::handle dict, std::string_view key, Leaves& leaves) const {
  const std::size_t begin = leaves.keys.size();
  std::string name;
  Py_ssize_t at = 0;
  PyObject* below = nullptr;
  PyObject* value = nullptr;
  while (PyDict_Next(dict.ptr(), &at, &below, &value) != 0) {
    const std::string_view last = AsciiOf(below);
    if (torch_ == nullptr || !torch_->Knows(value) || !IsPlainName(last)) {
      for (const py::list& of : {leaves.keys, leaves.values}) {
        PyList_SetSlice(of.ptr(), static_cast<Py_ssize_t>(begin), PY_SSIZE_T_MAX, nullptr);
      }
      return false;
    }
    leaves.keys.append(py::str(name.assign(key).append("/").append(last)));
    leaves.values.append(py::handle(value));
  }
  return true;
}

void TreeTensors::AddDict(const Leaves& leaves, std::size_t begin, std::string_view prefix, std::string_view key,
                          const py::function& node, std::string& text) {
  text += '{';
  for (std::size_t i = begin; i < leaves.keys.size(); ++i) {
    const std::string_view name = AsciiOf(PyList_GET_ITEM(leaves.keys.ptr(), static_cast<Py_ssize_t>(i)));
    const py::handle value = PyList_GET_ITEM(leaves.values.ptr(), static_cast<Py_ssize_t>(i));
    if (i > begin) text += ',';
    text += '"';
    text += name.substr(key.size() + 1);
    text += "\":";
    Tensor tensor;
    std::int64_t room = 0;
    if (torch_->Read(value, tensor.dense, seen_.extents, &room)) {
      text += R"(["t"])";
      AddRead(prefix, name, tensor, value, room);
    } else {
      text += node(value, Joined(prefix, name)).cast<std::string_view>();
    }
  }
  text += '}';
}

py::object TreeTensors::MatchAll(const py::list& keys, const py::list& nodes, const py::dict& like,
                                 std::string_view prefix, const StoredTensors& stored) {
  const std::size_t count = keys.size();
  if (torch_ == nullptr || nodes.size() != count || like.size() != count) return py::none();
  const std::span<PyObject* const> given_keys(PySequence_Fast_ITEMS(keys.ptr()), count);
  const std::span<PyObject* const> given_nodes(PySequence_Fast_ITEMS(nodes.ptr()), count);
  std::vector<PyObject*> values;
  values.reserve(count);
  for (PyObject* key : given_keys) {
    PyObject* value = IsPlainName(AsciiOf(key)) ? PyDict_GetItem(like.ptr(), key) : nullptr;
    if (value == nullptr) return py::none();
    values.push_back(value);
  }
  if (std::none_of(given_nodes.begin(), given_nodes.end(), IsTensorNode)) return py::none();

  py::list found(count);
  std::string name(prefix);
  if (!prefix.empty()) name += '/';
  const std::size_t prefix_size = name.size();
  for (std::size_t i = 0; i < count; ++i) {
    Prefetch(values, i);
    const std::string_view key = AsciiOf(given_keys[i]);
    name.resize(prefix_size);
    name += key;
    const std::size_t extents_begin = seen_.extents.size();
    const auto fits = [&](Tensor& tensor) {
      if (!IsTensorNode(given_nodes[i]) || !torch_->Knows(values[i])) return false;
      const TensorInfo* of = stored.Find(name);
      if (of == nullptr || !torch_->Read(values[i], tensor.dense, seen_.extents)) return false;
      return of->dtype == tensor.dense.dtype &&
             std::equal(of->shape.begin(), of->shape.end(),
                        seen_.extents.begin() + static_cast<std::ptrdiff_t>(extents_begin), seen_.extents.end());
    };
    Tensor tensor;
    const bool fit = fits(tensor);
    if (fit) {
      AddRead(prefix, key, tensor, values[i], 0);
    } else {
      seen_.extents.resize(extents_begin);
    }
    found[i] = py::reinterpret_borrow<py::object>(fit ? values[i] : Py_NotImplemented);
  }
  return found;
}

std::string_view TreeTensors::NameOf(std::size_t i) const {
  const std::size_t begin = i == 0 ? 0 : seen_.tensors[i - 1].name_end;
  return std::string_view(seen_.names).substr(begin, seen_.tensors[i].name_end - begin);
}

TreeTensors::Extents TreeTensors::ExtentsOf(std::size_t i) const {
  const std::size_t begin = i == 0 ? 0 : seen_.tensors[i - 1].extents_end;
  const auto all = std::span(seen_.extents).subspan(begin, seen_.tensors[i].extents_end - begin);
  const auto dimensions = static_cast<std::size_t>(seen_.tensors[i].dense.dimensions);
  return {all.first(dimensions), all.subspan(dimensions)};
}

py::tuple TreeTensors::SharedMemory(const TreeTensors& more) const {
  const std::size_t own = seen_.tensors.size();
  const std::size_t all = own + more.seen_.tensors.size();
  const auto at = [&](std::size_t i) { return i < own ? std::pair(this, i) : std::pair(&more, i - own); };
  std::vector<StridedLayout> layouts;
  layouts.reserve(all);
  for (std::size_t i = 0; i < all; ++i) {
    const auto [of, j] = at(i);
    const TorchReader::Dense& dense = of->seen_.tensors[j].dense;
    const auto [shape, strides] = of->ExtentsOf(j);
    layouts.push_back(MakeStridedLayout(dense.data, DTypeSize(dense.dtype), shape, strides));
  }
  const cairn::SharedMemory found = FindSharedMemory(layouts, [&](std::size_t a, std::size_t b) {
    const auto [x, i] = at(a);
    const auto [y, j] = at(b);
    return x->seen_.tensors[i].dense == y->seen_.tensors[j].dense &&
           std::ranges::equal(x->ExtentsOf(i).shape, y->ExtentsOf(j).shape);
  });
  const auto named = [&](const cairn::SharedMemory::Pair& pair) {
    const auto [a, i] = at(pair.first);
    const auto [b, j] = at(pair.second);
    return py::make_tuple(a->NameOf(i), b->NameOf(j));
  };
  py::list tied;
  for (const auto& pair : found.aliases) tied.append(named(pair));
  return py::make_tuple(tied, found.overlap ? py::object(named(*found.overlap)) : py::none());
}

std::set<int> TreeTensors::cuda_devices() const {
  std::set<int> devices;
  for (const Tensor& tensor : seen_.tensors) {
    if (tensor.dense.cuda >= 0) devices.insert(tensor.dense.cuda);
  }
  return devices;
}

bool TreeTensors::HasSameNames(const Seen& other) const {
  return seen_.names == other.names &&
         std::ranges::equal(seen_.tensors, other.tensors, {}, &Tensor::name_end, &Tensor::name_end);
}

void TreeTensors::FindFrozen(LastSave& last) const {
  if (last.frozen_by.is(frozen_by_) && HasSameNames(last.seen)) return;
  last.frozen_by = {};  // Until Build has succeeded, so that these places are never taken for another tree's.
  last.frozen_at.clear();
  const py::object match = frozen_by_.attr("match");
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (match(NameOf(i)).is_none()) continue;
    Frozen& one = last.frozen[std::string(NameOf(i))];
    one.save = last.frozen_saves;
    last.frozen_at.emplace_back(i, &one);
  }
  // Names may have a step's number.
  if (last.frozen.size() <= 2 * last.frozen_at.size() + 1024) return;
  std::erase_if(last.frozen, [&](const auto& one) { return one.second.save != last.frozen_saves; });
}

// A count of its own, as a parameter has whose `data` is a view, does not see what is written into the whole.
bool TreeTensors::IsAloneInItsMemory(std::size_t place, const py::object& storage) const {
  const Tensor& tensor = seen_.tensors[place];
  std::uint64_t bytes = DTypeSize(tensor.dense.dtype);
  for (const std::int64_t extent : ExtentsOf(place).shape) bytes *= static_cast<std::uint64_t>(extent);
  return storage.attr("nbytes")().cast<std::uint64_t>() == bytes;
}

void TreeTensors::MarkFrozen(LastSave& last) {
  ++last.frozen_saves;
  FindFrozen(last);
  if (!last.stepped.empty()) {
    for (auto& [name, one] : last.frozen) {
      if (last.stepped.contains(one.data)) one.version = 0;
    }
    last.stepped.clear();
  }
  auto part = seen_.parts.begin();
  for (const auto& [place, one] : last.frozen_at) {
    const py::handle tensor = given_[place].tensor;
    if (!tensor) continue;
    while (part != seen_.parts.end() && part->first < place) ++part;
    const bool is_part = part != seen_.parts.end() && part->first == place;
    one->version = is_part ? 0 : VersionOf(place, *one, last);
    const bool is_copy = one->version == 0 && !is_part && py::hasattr(tensor, "_cairn_copy");
    seen_.tensors[place].frozen = one->version != 0 || is_copy ? one->version : kUncounted;
  }
}

// 0 if nobody counts what is written into it.
std::uint64_t TreeTensors::VersionOf(std::size_t place, Frozen& one, LastSave& last) const {
  const py::handle tensor = given_[place].tensor;
  if (torch_ == nullptr || !torch_->Knows(tensor)) return 0;
  const std::int64_t writes = torch_->Version(tensor);
  const void* const counter = torch_->VersionCounter(tensor);
  const void* const id = torch_->StorageId(tensor);
  if (writes == TorchReader::kNoVersion || counter == nullptr || id == nullptr) return 0;
  const bool same = one.data == given_[place].data && one.writes == writes && one.counter == counter;
  if (one.version != 0 && same && one.storage_id == id) return one.version;
  const py::object storage = torch_->Storage(tensor);
  if (py::hasattr(tensor, "_cairn_copy") || !IsAloneInItsMemory(place, storage)) return 0;
  py::object held = torch_->HoldVersionCounter(tensor);
  if (!held) return 0;
  one = {.version = ++last.frozen_version,
         .data = given_[place].data,
         .writes = writes,
         .counter = counter,
         .held_counter = std::move(held),
         .weak_storage = py::module_::import("torch.multiprocessing.reductions").attr("StorageWeakRef")(storage),
         .storage_id = id,
         .save = one.save};
  return one.version;
}

void TreeTensors::NoteStep(LastSave& last, const TorchReader& torch, py::handle groups, py::handle state) {
  const auto note = [&](py::handle tensor) {
    const py::object local = torch.Knows(tensor) ? py::reinterpret_borrow<py::object>(tensor)
                                                 : py::getattr(tensor, "_local_tensor", py::none());  // A DTensor's.
    if (!torch.Knows(local)) return;
    // What is frozen has a storage of its own, of which the step may have written a part.
    if (const py::object storage = torch.Storage(local)) {
      last.stepped.insert(PyLong_AsVoidPtr(py::object(storage.attr("data_ptr")()).ptr()));
    }
  };
  for (const py::handle group : groups) {
    for (const py::handle parameter : group["params"]) {
      // A hook of the step's end may have taken the gradient away.
      if (parameter.attr("grad").is_none() && !parameter.attr("requires_grad").cast<bool>()) continue;
      note(parameter);
      if (!py::isinstance<py::dict>(state) || !py::reinterpret_borrow<py::dict>(state).contains(parameter)) continue;
      const py::object of = state[parameter];
      if (!py::isinstance<py::dict>(of)) continue;
      for (const auto& [name, tensor] : py::reinterpret_borrow<py::dict>(of)) note(tensor);
    }
  }
}

Result<State> TreeTensors::Build(LastSave& last) {
  if (frozen_by_) MarkFrozen(last);
  if (seen_ == last.seen) {
    last.frozen_by = std::move(frozen_by_);
    return last.state;
  }
  State state;
  std::size_t name_begin = 0;
  std::size_t extents_begin = 0;
  auto part = seen_.parts.begin();
  for (std::size_t i = 0; i < seen_.tensors.size(); ++i) {
    const Tensor& tensor = seen_.tensors[i];
    const bool has_part = part != seen_.parts.end() && part->first == i;
    const auto shape_begin = seen_.extents.begin() + static_cast<std::ptrdiff_t>(extents_begin);
    const auto shape_end = shape_begin + tensor.dense.dimensions;
    const auto extents_end = seen_.extents.begin() + static_cast<std::ptrdiff_t>(tensor.extents_end);
    CAIRN_RETURN_IF_ERROR(
        state.Add(seen_.names.substr(name_begin, tensor.name_end - name_begin),
                  {.data = tensor.dense.data,
                   .dtype = tensor.dense.dtype,
                   .shape = {shape_begin, shape_end},
                   .strides = {shape_end, extents_end},
                   .device = {.kind = tensor.dense.cuda < 0 ? DeviceKind::kCpu : DeviceKind::kCuda,
                              .index = std::max(tensor.dense.cuda, 0)},
                   .bytes = tensor.bytes,
                   .part = has_part ? std::optional((part++)->second) : std::nullopt,
                   .frozen = tensor.frozen != 0,
                   .version = tensor.frozen == kUncounted ? std::nullopt : std::optional(tensor.frozen)}));
    name_begin = tensor.name_end;
    extents_begin = tensor.extents_end;
  }
  last.seen = std::move(seen_);
  last.state = state;
  last.frozen_by = std::move(frozen_by_);
  return state;
}

std::uint64_t TreeTensors::EndsOf(const StridedLayout& layout) {
  constexpr std::uint64_t kSpread = 0x9E37'79B9'7F4A'7C15;  // So that equal ends do not cancel each other.
  const std::byte* const last_row = LastRowOf(layout);
  const std::size_t bytes = std::min<std::uint64_t>(layout.row_bytes, sizeof(std::uint64_t));
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::memcpy(&first, layout.base, bytes);
  std::memcpy(&last, last_row + layout.row_bytes - bytes, bytes);
  return first * kSpread ^ last;
}

py::tuple TreeTensors::CountersOf(py::handle tensor) const {
  if (counters_.empty()) return py::tuple();
  PyObject* const found =
      PyDict_GetItemWithError(counters_.ptr(), py::int_(reinterpret_cast<std::uintptr_t>(tensor.ptr())).ptr());
  return found == nullptr ? py::tuple() : py::reinterpret_borrow<py::tuple>(found);
}

// A tensor in the same memory, as a parameter and its `data` are, may count on its own.
void TreeTensors::CountAlias(Source& holder, py::handle alias) const {
  if (torch_ == nullptr || !torch_->Knows(alias)) return;
  py::tuple more = CountersOf(alias);
  const void* const counter = torch_->VersionCounter(alias);
  if (counter == nullptr || !torch_->Knows(holder.tensor) || counter != torch_->VersionCounter(holder.tensor)) {
    more = more + py::make_tuple(alias);
  }
  if (more.empty()) return;
  holder.counters = holder.counters + more;
  holder.version = torch_->Version(holder.tensor, holder.counters);
}

std::vector<TreeTensors::Source> TreeTensors::ReadLater(const TensorTable& table, bool versions, bool ends) const {
  std::vector<Source> sources;
  sources.reserve(given_.size());
  // To look at all would take a third of the call. What is seen of one tensor fails the save, and what writes behind
  // torch's back mostly writes many. Spread, so that each optimizer's state and each kind of it is among them.
  constexpr std::uint64_t kLookedAt = 64;
  const auto is_looked_at = [&](std::uint32_t i) {
    constexpr std::uint32_t kSpread = 0x9E37'79B1;
    return (std::uint64_t{i * kSpread} * given_.size()) >> 32 < kLookedAt;
  };
  // Each is at another place, and in no cache.
  for (std::uint32_t i = 0; ends && i < given_.size(); ++i) {
    const StridedLayout& layout = table[i].layout;
    if (table[i].device.kind != DeviceKind::kCpu || table[i].bytes() == 0 || !is_looked_at(i)) continue;
    __builtin_prefetch(layout.base);
    __builtin_prefetch(LastRowOf(layout) + layout.row_bytes - 1);
  }
  auto copied = table.small().begin();  // In the call of Save; ascending.
  for (std::uint32_t i = 0; i < given_.size(); ++i) {
    if (copied != table.small().end() && *copied == i) {
      ++copied;
    } else if (versions && given_[i].tensor && table[i].is_alias()) {
      const auto holder = std::ranges::lower_bound(sources, table[i].alias_of, {}, &Source::entry);
      if (holder != sources.end() && holder->entry == table[i].alias_of) CountAlias(*holder, given_[i].tensor);
    } else if (given_[i].tensor && !table[i].is_alias() && table[i].bytes() > 0) {
      const bool known = torch_ != nullptr && torch_->Knows(given_[i].tensor);
      const py::tuple counters = CountersOf(given_[i].tensor);
      Source source{
          .entry = i,
          .tensor = py::reinterpret_borrow<py::object>(given_[i].tensor),
          .data = given_[i].data,
          .room = given_[i].room,
          .version = known && versions ? torch_->Version(given_[i].tensor, counters) : TorchReader::kNoVersion,
          .counters = counters};
      // torch's operations on lists of DTensors are counted nowhere.
      const bool uncounted = source.version == TorchReader::kNoVersion || !counters.empty();
      if (ends && table[i].device.kind == DeviceKind::kCpu && (uncounted || is_looked_at(i))) {
        source.ends = EndsOf(table[i].layout);
      }
      // On a GPU what is freed is not unmapped.
      if (torch_ != nullptr && table[i].device.kind == DeviceKind::kCpu) {
        source.storage = torch_->Storage(given_[i].tensor);
      }
      sources.push_back(std::move(source));
    }
  }
  return sources;
}

void BindTreeTensors(py::module_& module) {
  using namespace py::literals;
  py::class_<TorchReader, std::shared_ptr<TorchReader>>(module, "TorchReader")
      .def(py::init<py::type, py::type, const py::dict&, bool>(), "tensor"_a, "parameter"_a, "dtypes"_a, "dlpack"_a)
      .def_property_readonly("has_dlpack", &TorchReader::has_dlpack);

  module.def("items_of", &ItemsOf, "of"_a);
  py::class_<TreeTensors>(module, "TreeTensors")
      .def(py::init<std::shared_ptr<TorchReader>>(), "torch"_a)
      .def("add", &TreeTensors::Add, "view"_a, "part"_a, "tensor"_a)
      .def("count_by", &TreeTensors::CountBy, "counters"_a)
      .def("add_part", &TreeTensors::AddPart, "name"_a, "tensor"_a, "part"_a)
      .def("add_all", &TreeTensors::AddAll, "keys"_a, "values"_a, "prefix"_a, "mark"_a, "nests"_a, "node"_a)
      .def_property_readonly("given", &TreeTensors::given)
      .def("freeze", &TreeTensors::Freeze, "names"_a)
      .def("match_all", &TreeTensors::MatchAll, "keys"_a, "nodes"_a, "like"_a, "prefix"_a, "stored"_a)
      .def("shared_memory", &TreeTensors::SharedMemory, "more"_a)
      .def_property_readonly("cuda_devices", &TreeTensors::cuda_devices);
}

}  // namespace cairn
