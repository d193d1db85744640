#include "stored_tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace py = pybind11;

namespace cairn {
namespace {

py::object FromPart(const std::optional<TensorPart>& part) {
  if (!part) return py::none();
  return py::make_tuple(part->logical_name, py::tuple(py::cast(part->global_shape)), py::tuple(py::cast(part->offset)));
}

}  // namespace

const TensorInfo* StoredTensors::Find(std::string_view name) const {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& tensor, std::string_view other) { return tensor.name < other; });
  return at == tensors_.end() || at->name != name ? nullptr : &*at;
}

py::object StoredTensors::Get(std::string_view name) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) return py::none();
  return py::make_tuple(std::string(DTypeName(tensor->dtype)), py::tuple(py::cast(tensor->shape)));
}

py::list StoredTensors::Names() const {
  py::list names;
  for (const TensorInfo& tensor : tensors_) names.append(tensor.name);
  return names;
}

py::dict StoredTensors::Tied() const {
  py::dict tied;
  for (const TensorInfo& tensor : tensors_) {
    if (!tensor.alias_of.empty()) tied[py::str(tensor.name)] = tensor.alias_of;
  }
  return tied;
}

py::list StoredTensors::Rows() const {
  py::list rows;
  for (const TensorInfo& tensor : tensors_) {
    rows.append(py::make_tuple(tensor.name, std::string(DTypeName(tensor.dtype)), py::tuple(py::cast(tensor.shape)),
                               tensor.bytes, tensor.file, tensor.alias_of, FromPart(tensor.part)));
  }
  return rows;
}

void BindStoredTensors(py::module_& module) {
  py::class_<StoredTensors, std::shared_ptr<StoredTensors>>(module, "StoredTensors")
      .def("get", &StoredTensors::Get)
      .def("names", &StoredTensors::Names)
      .def("tied", &StoredTensors::Tied)
      .def("__len__", &StoredTensors::size)
      .def("__iter__", [](const StoredTensors& self) { return py::iter(self.Rows()); });
}

}  // namespace cairn
