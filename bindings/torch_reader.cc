#include "torch_reader.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace py = pybind11;

namespace cairn {
namespace {

// The part of DLPack 1.x that is used here, laid out as its specification says.
struct DlpackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};
struct DlpackExchange {
  DlpackVersion version;
  const DlpackExchange* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*tensor_from_object)(void* tensor, void* to);  // May be null. 0, or -1 with a Python exception set.
  void* current_stream;
};
struct DlpackTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t dimensions;
  std::uint8_t dtype_code;
  std::uint8_t dtype_bits;
  std::uint16_t dtype_lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;  // In elements.
  std::uint64_t byte_offset;
};
constexpr std::uint32_t kDlpackMajor = 1;
constexpr std::int32_t kDlpackCpu = 1;
constexpr std::int32_t kDlpackCuda = 2;
constexpr std::int32_t kDlpackCudaHost = 3;

std::optional<DType> DTypeFromDlpack(const DlpackTensor& tensor) {
  const auto sized = [bits = tensor.dtype_bits](DType of8, DType of16, DType of32, DType of64) -> std::optional<DType> {
    switch (bits) {
      case 8:
        return of8;
      case 16:
        return of16;
      case 32:
        return of32;
      case 64:
        return of64;
      default:
        return std::nullopt;
    }
  };
  if (tensor.dtype_lanes != 1) return std::nullopt;
  switch (tensor.dtype_code) {
    case 0:
      return sized(DType::kI8, DType::kI16, DType::kI32, DType::kI64);
    case 1:
      return sized(DType::kU8, DType::kU16, DType::kU32, DType::kU64);
    case 2:
      return tensor.dtype_bits < 16 ? std::nullopt : sized(DType::kU8, DType::kF16, DType::kF32, DType::kF64);
    case 4:
      return tensor.dtype_bits == 16 ? std::optional(DType::kBF16) : std::nullopt;
    case 5:
      return tensor.dtype_bits == 64 ? std::optional(DType::kC64) : std::nullopt;
    case 6:
      return tensor.dtype_bits == 8 ? std::optional(DType::kBool) : std::nullopt;
    case 10:
      return DType::kF8E4M3;
    case 12:
      return DType::kF8E5M2;
    case 14:
      return DType::kF8E8M0;
    default:
      return std::nullopt;
  }
}

bool IsContiguous(const DlpackTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  bool fits = true;
  for (std::int32_t d = tensor.dimensions - 1; d >= 0; --d) {
    if (tensor.shape[d] == 0) return true;
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) fits = false;
    expected *= tensor.shape[d];
  }
  return fits;
}

int (*FindDlpack(const py::object& tensor_type))(void*, void*) {
  const py::object capsule = py::getattr(tensor_type, "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* api = static_cast<const DlpackExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != kDlpackMajor) api = api->previous;
  return api == nullptr ? nullptr : api->tensor_from_object;
}

}  // namespace

TorchReader::Method::Method(const py::object& tensor_type, const char* name)
    : name_(name), descriptor_(py::getattr(tensor_type, name, py::none())) {
  if (!Py_IS_TYPE(descriptor_.ptr(), &PyMethodDescr_Type)) return;
  const PyMethodDef& method = *reinterpret_cast<const PyMethodDescrObject*>(descriptor_.ptr())->d_method;
  if (method.ml_flags == METH_NOARGS) call_ = method.ml_meth;
}

py::object TorchReader::Method::operator()(py::handle tensor) const {
  return py::reinterpret_steal<py::object>(call_ != nullptr ? call_(tensor.ptr(), nullptr)
                                                            : PyObject_CallMethodNoArgs(tensor.ptr(), name_.ptr()));
}

TorchReader::TorchReader(py::type tensor, py::type parameter, const py::dict& dtypes, bool dlpack)
    : tensor_(std::move(tensor)),
      parameter_(std::move(parameter)),
      is_neg_(tensor_, "is_neg"),
      is_conj_(tensor_, "is_conj"),
      untyped_storage_(tensor_, "untyped_storage"),
      offset_(tensor_, "storage_offset") {
  for (const auto& [dtype, name] : dtypes) {
    if (const std::optional<DType> known = DTypeFromName(py::cast<std::string>(name))) {
      dtypes_.emplace_back(py::reinterpret_borrow<py::object>(dtype), *known);
    }
  }
  if (dlpack) to_dlpack_ = FindDlpack(tensor_);
  version_ = py::getattr(tensor_, "_version", py::none());
  if (Py_IS_TYPE(version_.ptr(), &PyGetSetDescr_Type)) {
    get_version_ = reinterpret_cast<const PyGetSetDescrObject*>(version_.ptr())->d_getset;
  }
  FindTorchCalls();
}

void TorchReader::FindTorchCalls() {
  void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  FindVersionCounter(library);
  for (const py::object& type : {tensor_, parameter_}) {
    const py::object made = type();
    if (*reinterpret_cast<void* const*>(made.ptr() + 1) != PyLong_AsVoidPtr(made.attr(cdata_).ptr())) return;
  }
  impl_is_first_ = true;
  FindStorageOffset();
  storage_offset_ = reinterpret_cast<AskTorch>(dlsym(library, "aoti_torch_get_storage_offset"));
  if (storage_offset_ == nullptr) return;
  storage_bytes_ = reinterpret_cast<AskTorch>(dlsym(library, "aoti_torch_get_storage_size"));
}

// It has no C interface, so it is believed only if it tells tensors with one count from those with two.
void TorchReader::FindVersionCounter(void* library) {
  version_counter_ =
      reinterpret_cast<AskCounter>(dlsym(library, "_ZN5torch8autograd4impl15version_counterERKN2at6TensorE"));
  if (version_counter_ == nullptr) return;
  const py::object made = parameter_();
  const void* const counter = VersionCounter(made);
  if (counter == nullptr || VersionCounter(made.attr("detach")()) != counter ||
      VersionCounter(made.attr("data")) == counter) {
    version_counter_ = nullptr;
    return;
  }
  torch_version_ = reinterpret_cast<AskVersion>(dlsym(library, "_ZNK2at10TensorBase8_versionEv"));
}

// Nothing of torch's tells it without making objects. Behind the tensor's table of functions and its counts, and
// believed only if it is in one place, the same in tensors with different storages.
void TorchReader::FindStorageOffset() {
  constexpr std::size_t kWords = 4;
  std::size_t found = 0;
  for (const py::object& type : {tensor_, parameter_, tensor_}) {
    const py::object made = type();
    const auto* const words = static_cast<const void* const*>(Impl(made));
    const void* const storage = PyLong_AsVoidPtr(py::object(untyped_storage_(made).attr(cdata_)).ptr());
    const auto* const at = std::find(words + 1, words + kWords, storage);
    if (at == words + kWords || (found != 0 && words + found != at)) return;
    found = static_cast<std::size_t>(at - words);
  }
  storage_word_ = found;
}

const void* TorchReader::StorageId(py::handle tensor) const {
  if (storage_word_ != 0 && Knows(tensor)) return static_cast<const void* const*>(Impl(tensor))[storage_word_];
  const py::object storage = Storage(tensor);
  return storage ? PyLong_AsVoidPtr(py::object(storage.attr(cdata_)).ptr()) : nullptr;
}

const void* TorchReader::Impl(py::handle tensor) const {
  if (impl_is_first_) return *reinterpret_cast<const void* const*>(tensor.ptr() + 1);
  const auto impl = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), cdata_.ptr()));
  const void* found = impl ? PyLong_AsVoidPtr(impl.ptr()) : nullptr;
  PyErr_Clear();
  return found;
}

const void* TorchReader::VersionCounter(py::handle tensor) const {
  const void* const impl = version_counter_ == nullptr ? nullptr : Impl(tensor);
  return impl == nullptr ? nullptr : *version_counter_(&impl);  // An at::Tensor is that pointer.
}

py::object TorchReader::HoldVersionCounter(py::handle tensor) const {
  try {
    py::object held = tensor.attr("detach")();
    held.attr("data") = tensor.attr("new_empty")(0);  // Which leaves it its count.
    return VersionCounter(held) == VersionCounter(tensor) ? held : py::object();
  } catch (const py::error_already_set&) {
    return {};
  }
}

std::int64_t TorchReader::Room(py::handle tensor, std::size_t item) const {
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  const void* const held = tensor.ptr() + 1;
  if (storage_bytes_ == nullptr || storage_bytes_(held, &bytes) != 0 || storage_offset_(held, &offset) != 0) {
    const py::object storage = untyped_storage_(tensor);
    const auto size =
        py::reinterpret_steal<py::object>(storage ? PyObject_CallMethodNoArgs(storage.ptr(), nbytes_.ptr()) : nullptr);
    const py::object at = size ? offset_(tensor) : py::object();
    bytes = at ? PyLong_AsLongLong(size.ptr()) : 0;
    offset = at ? PyLong_AsLongLong(at.ptr()) : 0;
    PyErr_Clear();
  }
  return bytes - offset * static_cast<std::int64_t>(item);
}

py::object TorchReader::Storage(py::handle tensor) const {
  if (!IsTensor(tensor)) return {};
  py::object storage = untyped_storage_(tensor);
  if (!storage) PyErr_Clear();  // A subclass may have none.
  return storage;
}

std::int64_t TorchReader::Version(py::handle tensor) const {
  if (torch_version_ != nullptr && Knows(tensor)) {
    const void* const impl = Impl(tensor);
    return *version_counter_(&impl) == nullptr ? kNoVersion : torch_version_(&impl);
  }
  if (get_version_ == nullptr || !IsTensor(tensor)) return kNoVersion;
  const auto version = py::reinterpret_steal<py::object>(get_version_->get(tensor.ptr(), get_version_->closure));
  if (version) return PyLong_AsLongLong(version.ptr());
  PyErr_Clear();
  return kNoVersion;
}

std::int64_t TorchReader::Version(py::handle tensor, const py::tuple& counters) const {
  std::int64_t all = Version(tensor);
  for (const py::handle counter : counters) {
    const std::int64_t one = Version(counter);
    all = all == kNoVersion || one == kNoVersion ? std::max(all, one) : all + one;
  }
  return all;
}

bool TorchReader::Read(py::handle tensor, Dense& dense, std::vector<std::int64_t>& shape, std::int64_t* room) const {
  const std::size_t before = shape.size();
  if (to_dlpack_ != nullptr ? ReadDlpack(tensor, dense, shape) : ReadAttributes(tensor, dense, shape)) {
    const std::size_t item = DTypeSize(dense.dtype);
    auto bytes = static_cast<std::int64_t>(item);
    for (std::size_t d = before; d < shape.size(); ++d) bytes *= shape[d];
    const std::int64_t found = bytes == 0 ? 0 : Room(tensor, item);
    if (room != nullptr) *room = found;
    if (found >= bytes) return true;
  }
  PyErr_Clear();
  shape.resize(before);
  return false;
}

const void* TorchReader::Address(py::handle tensor) const {
  DlpackTensor found{};
  if (to_dlpack_ != nullptr && to_dlpack_(tensor.ptr(), &found) == 0) {
    return static_cast<const std::byte*>(found.data) + found.byte_offset;
  }
  PyErr_Clear();  // Of a dtype, say, that DLPack does not have.
  const auto data = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), data_ptr_.ptr()));
  const void* address = data ? PyLong_AsVoidPtr(data.ptr()) : nullptr;
  PyErr_Clear();
  return address;
}

// DLPack hands over the raw bytes of a lazily negated or conjugated tensor.
bool TorchReader::IsSet(py::handle tensor, const Method& method) {
  return method(tensor).ptr() != Py_False;  // An error counts as set.
}

bool TorchReader::IsDType(py::handle tensor, DType dtype) const {
  const auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), dtype_.ptr()));
  return std::ranges::any_of(dtypes_,
                             [&](const auto& known) { return known.second == dtype && found.is(known.first); });
}

bool TorchReader::ReadDlpack(py::handle tensor, Dense& dense, std::vector<std::int64_t>& shape) const {
  DlpackTensor found{};
  if (to_dlpack_(tensor.ptr(), &found) != 0) return false;
  const std::optional<DType> dtype = DTypeFromDlpack(found);
  if (!dtype || !IsContiguous(found) || IsSet(tensor, is_neg_)) return false;
  if (*dtype == DType::kC64 && IsSet(tensor, is_conj_)) return false;
  // DLPack calls narrower integers so, too.
  if ((*dtype == DType::kI8 || *dtype == DType::kU8) && !IsDType(tensor, *dtype)) return false;
  switch (found.device_type) {
    case kDlpackCpu:
    case kDlpackCudaHost:
      dense.cuda = -1;
      break;
    case kDlpackCuda:
      dense.cuda = found.device_id;
      break;
    default:
      return false;
  }
  dense.data = static_cast<std::byte*>(found.data) + found.byte_offset;
  dense.dtype = *dtype;
  dense.dimensions = found.dimensions;
  shape.insert(shape.end(), found.shape, found.shape + found.dimensions);
  return true;
}

bool TorchReader::ReadAttributes(py::handle tensor, Dense& dense, std::vector<std::int64_t>& shape) const {
  const auto get = [&](const py::str& name) {
    return py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), name.ptr()));
  };
  const auto call = [&](const py::str& name) {
    return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), name.ptr()));
  };
  const py::object dtype = get(dtype_);
  bool known = false;
  for (const auto& [object, value] : dtypes_) {
    if (!dtype.is(object)) continue;
    dense.dtype = value;
    known = true;
    break;
  }
  if (!known || call(is_contiguous_).ptr() != Py_True || IsSet(tensor, is_neg_)) return false;
  if (dense.dtype == DType::kC64 && IsSet(tensor, is_conj_)) return false;
  dense.cuda = -1;
  if (get(is_cpu_).ptr() != Py_True) {
    if (get(is_cuda_).ptr() != Py_True) return false;
    const py::object index = call(get_device_);
    if (!index) return false;
    dense.cuda = static_cast<int>(PyLong_AsLong(index.ptr()));
  }
  const py::object address = call(data_ptr_);  // Raises for what has no memory of its own: sparse, meta.
  const py::object extents = get(shape_);
  if (!address || !extents || !PyTuple_Check(extents.ptr())) return false;
  dense.data = PyLong_AsVoidPtr(address.ptr());
  dense.dimensions = static_cast<std::int32_t>(PyTuple_GET_SIZE(extents.ptr()));
  for (std::int32_t d = 0; d < dense.dimensions; ++d) {
    shape.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(extents.ptr(), d)));
  }
  return PyErr_Occurred() == nullptr;
}

}  // namespace cairn
