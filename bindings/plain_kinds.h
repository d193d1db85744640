#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {

/// An ASCII str's text; empty for anything else.
inline std::string_view AsciiOf(PyObject* value) {
  if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_COMPACT_ASCII(value)) return {};
  return {static_cast<const char*>(PyUnicode_DATA(value)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(value))};
}

inline bool IsContainer(PyObject* value) {
  return PyDict_CheckExact(value) || PyList_CheckExact(value) || PyTuple_CheckExact(value);
}
/// What JSON has.
inline bool IsSimple(PyObject* value) {
  return value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyBool_Check(value);
}
inline bool IsPlainKey(PyObject* key) {
  return key == Py_None || PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBool_Check(key);
}

/// Calls take(key or null, child) for the children of a container until it returns false. False if it did.
template <typename Take>
bool ForEach(PyObject* container, Take take) {
  if (PyDict_CheckExact(container)) {
    Py_ssize_t at = 0;
    PyObject* key = nullptr;
    PyObject* child = nullptr;
    while (PyDict_Next(container, &at, &key, &child) != 0) {
      if (!take(key, child)) return false;
    }
    return true;
  }
  const std::span<PyObject* const> children(PySequence_Fast_ITEMS(container),
                                            static_cast<std::size_t>(PySequence_Fast_GET_SIZE(container)));
  return std::ranges::all_of(children, [&](PyObject* child) { return take(nullptr, child); });
}

/// Looks at some children of each container, level by level. So a tree with tensors costs little, whatever comes first.
template <typename Refuses>
bool MayBePlain(PyObject* root, Refuses refuses) {
  constexpr std::size_t kOfEach = 64;
  constexpr std::size_t kInAll = 4096;
  bool plain = !refuses(root);
  const auto look_once = [&](PyObject* /*key*/, PyObject* child) {
    plain = plain && !refuses(child);
    return false;
  };
  if (IsContainer(root)) ForEach(root, look_once);  // Mostly the first says it.
  if (!plain) return false;
  std::vector<PyObject*> seen{root};
  for (std::size_t at = 0; at < seen.size(); ++at) {
    if (refuses(seen[at])) return false;
    if (!IsContainer(seen[at]) || seen.size() > kInAll) continue;
    std::size_t left = kOfEach;
    ForEach(seen[at], [&](PyObject* /*key*/, PyObject* child) {
      seen.push_back(child);
      return --left > 0;
    });
  }
  return true;
}

/// A collection of garbage visits all that was made so far, again and again, and none of it is garbage.
class NoCollections {
 public:
  NoCollections() : was_on_(PyGC_Disable() != 0) {}
  NoCollections(const NoCollections&) = delete;
  NoCollections& operator=(const NoCollections&) = delete;
  ~NoCollections() {
    if (was_on_) PyGC_Enable();
  }

 private:
  const bool was_on_;
};

}  // namespace cairn
