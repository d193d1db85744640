#include "plain_values.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>

#include "base64.h"
#include "plain_kinds.h"

namespace py = pybind11;

namespace cairn {
namespace {

constexpr std::string_view kCompiled = "_orig_mod";  // In a name: what torch.compile adds, and what readers leave out.

// Whether a value is of the kinds that PlainText takes, all the way down, and no optimizer's or scheduler's state,
// which is compared.
bool IsPlain(PyObject* value, int levels) {
  if (!IsContainer(value)) return !RefusesValue(value);
  if (levels == 0) return false;
  return ForEach(value, [&](PyObject* key, PyObject* child) {
    if (key != nullptr && !IsPlainKey(key)) return false;
    const std::string_view name = key == nullptr ? std::string_view() : AsciiOf(key);
    if (name == "param_groups" || name == "_last_lr" || name.find(kCompiled) != std::string_view::npos) return false;
    return IsPlain(child, levels - 1);
  });
}

// What the node stands for: a new reference, or null for what is no plain value, or has more levels.
PyObject* ValueOf(PyObject* node, int levels);

PyObject* DictOf(PyObject* node, int levels) {
  bool simple = true;
  const bool plain = ForEach(node, [&](PyObject* key, PyObject* child) {
    simple = simple && IsSimple(child);
    return AsciiOf(key).find(kCompiled) == std::string_view::npos;
  });
  if (!plain || simple) return plain ? PyDict_Copy(node) : nullptr;
  auto made = py::reinterpret_steal<py::object>(PyDict_New());
  const bool all = made && ForEach(node, [&](PyObject* key, PyObject* child) {
                     const auto value = py::reinterpret_steal<py::object>(ValueOf(child, levels));
                     return value && PyDict_SetItem(made.ptr(), key, value.ptr()) == 0;
                   });
  return all ? made.release().ptr() : nullptr;
}

// A dict whose keys are not all str. `rest` are keys and values in turn.
PyObject* DictOfPairs(std::span<PyObject* const> rest, int levels) {
  if (rest.size() % 2 != 0) return nullptr;
  auto made = py::reinterpret_steal<py::object>(PyDict_New());
  for (std::size_t i = 0; made && i < rest.size(); i += 2) {
    PyObject* const key = rest[i];
    if (!IsPlainKey(key) || AsciiOf(key).find(kCompiled) != std::string_view::npos) return nullptr;
    // Larger ones may have been chosen so that all have the same hash.
    constexpr long long kLargest = 1LL << 60;
    int overflow = 0;
    const long long number = PyLong_CheckExact(key) ? PyLong_AsLongLongAndOverflow(key, &overflow) : 0;
    if (overflow != 0 || number < -kLargest || number > kLargest) return nullptr;
    const auto value = py::reinterpret_steal<py::object>(ValueOf(rest[i + 1], levels));
    if (!value || PyDict_SetItem(made.ptr(), key, value.ptr()) != 0) return nullptr;
  }
  const bool distinct = made && static_cast<std::size_t>(PyDict_GET_SIZE(made.ptr())) == rest.size() / 2;
  return distinct ? made.release().ptr() : nullptr;
}

PyObject* SequenceOf(bool tuple, std::span<PyObject* const> nodes, int levels) {
  const auto size = static_cast<Py_ssize_t>(nodes.size());
  auto made = py::reinterpret_steal<py::object>(tuple ? PyTuple_New(size) : PyList_New(size));
  for (Py_ssize_t i = 0; made && i < size; ++i) {
    PyObject* const value = ValueOf(nodes[static_cast<std::size_t>(i)], levels);
    if (value == nullptr) return nullptr;
    tuple ? PyTuple_SET_ITEM(made.ptr(), i, value) : PyList_SET_ITEM(made.ptr(), i, value);
  }
  return made.release().ptr();
}

PyObject* BytesOf(PyObject* node) {
  const std::string_view text = AsciiOf(node);
  const std::optional<std::size_t> bytes = Base64Bytes(text);
  if (!PyUnicode_CheckExact(node) || !bytes || (text.empty() && PyUnicode_GET_LENGTH(node) != 0)) return nullptr;
  auto made = py::reinterpret_steal<py::object>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(*bytes)));
  if (!made || !DecodeBase64(text, reinterpret_cast<unsigned char*>(PyBytes_AS_STRING(made.ptr())))) return nullptr;
  return made.release().ptr();
}

PyObject* ValueOf(PyObject* node, int levels) {
  if (IsSimple(node)) return Py_NewRef(node);
  if (levels == 0) return nullptr;
  if (PyDict_CheckExact(node)) return DictOf(node, levels - 1);
  if (!PyList_CheckExact(node) || PyList_GET_SIZE(node) == 0) return nullptr;
  const std::span<PyObject* const> all(PySequence_Fast_ITEMS(node), static_cast<std::size_t>(PyList_GET_SIZE(node)));
  const std::string_view tag = AsciiOf(all[0]);
  if (tag == "list" || tag == "tuple") return SequenceOf(tag == "tuple", all.subspan(1), levels - 1);
  if (tag == "dict") return DictOfPairs(all.subspan(1), levels - 1);
  if (all.size() != 2) return nullptr;
  const std::string_view text = AsciiOf(all[1]);
  if (tag == "bytes") return BytesOf(all[1]);
  if (tag == "int" && !text.empty()) return PyLong_FromUnicodeObject(all[1], 16);
  if (tag != "float") return nullptr;
  if (text == "nan") return PyFloat_FromDouble(std::numeric_limits<double>::quiet_NaN());
  if (text != "inf" && text != "-inf") return nullptr;
  const double infinity = std::numeric_limits<double>::infinity();
  return PyFloat_FromDouble(text == "inf" ? infinity : -infinity);
}

bool RefusesNode(PyObject* node) {
  if (!PyList_CheckExact(node)) return !PyDict_CheckExact(node) && !IsSimple(node);
  constexpr std::array<std::string_view, 6> kTags = {"list", "tuple", "dict", "int", "float", "bytes"};
  return PyList_GET_SIZE(node) == 0 || std::ranges::find(kTags, AsciiOf(PyList_GET_ITEM(node, 0))) == kTags.end();
}

// Whether no tensor, object or class can be in it.
bool IsPlainNode(PyObject* node, int levels) {
  if (RefusesNode(node)) return false;
  if (IsSimple(node)) return true;
  return levels > 0 && ForEach(node, [levels](PyObject*, PyObject* child) { return IsPlainNode(child, levels - 1); });
}

}  // namespace

py::object PlainValue(const py::handle& node, const py::handle& like, int levels, bool made) {
  PyObject* value = nullptr;
  if (MayBePlain(node.ptr(), RefusesNode) && (like.is_none() || IsPlain(like.ptr(), levels))) {
    if (!made && IsPlainNode(node.ptr(), levels)) return py::none();
    const NoCollections none;
    value = ValueOf(node.ptr(), levels);
  }
  if (value != nullptr) return py::reinterpret_steal<py::object>(value);
  PyErr_Clear();  // Whoever reads it otherwise finds it again, and knows the path.
  return py::reinterpret_borrow<py::object>(Py_NotImplemented);
}

void BindPlainValues(py::module_& module) {
  using namespace py::literals;
  module.def("plain_text", &PlainText, "value"_a, "levels"_a, "most"_a, "tag"_a = "");
  module.def("parse_tree", &ParseTree, "text"_a, "tensor"_a, "levels"_a, "unpack"_a);
  module.def("plain_value", &PlainValue, "node"_a, "like"_a, "levels"_a, "made"_a);
}

}  // namespace cairn
