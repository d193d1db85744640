#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <string_view>

namespace cairn {

// The texts of trees (see cairn/_tree), made fast: there may be millions of plain values, and the caller of save waits.

/// Whether it is neither a container nor a plain value of those that PlainText takes.
bool RefusesValue(PyObject* value);

/// The node of a dict, list or tuple that has nothing but these, None, bool, int, float, str and bytes in it, all of
/// exactly these types, at most so many levels deep; and whether it packs a long list of numbers. With a tag, that of a
/// list. An empty text if it has more than `most` bytes. None for anything else, and for what has to be refused with
/// its path. Runs no Python code.
pybind11::object PlainText(const pybind11::handle& value, int levels, std::size_t most, std::string_view tag);

/// What json.loads would return, but `tensor` for each ["t"], of which there may be 100,000: a list for each would be
/// visited by the garbage collector. If it is to `unpack`, packed lists are nodes of lists. ValueError for what is no
/// JSON, has more levels, or a bad packed list.
pybind11::object ParseTree(const pybind11::str& text, const pybind11::handle& tensor, int levels, bool unpack);

/// What a node stands for that has only plain values in it, and so has what the caller has there, if anything.
/// NotImplemented for any other, and for names that torch.compile may have changed.
/// If it is not to be `made`, None.
pybind11::object PlainValue(const pybind11::handle& node, const pybind11::handle& like, int levels, bool made);

void BindPlainValues(pybind11::module_& module);

}  // namespace cairn
