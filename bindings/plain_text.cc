#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/json_text.h"
#include "base64.h"
#include "plain_kinds.h"
#include "plain_values.h"

namespace py = pybind11;

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "packed numbers are little-endian");

constexpr std::size_t kPackedFrom = 1024;        // Numbers in a list.
constexpr std::size_t kLongestText = 64U << 20;  // Of one str or bytes, which writer.py refuses.

// Without a path there is no error: whatever has to be refused makes these return false, and so does a text of more
// than `most` bytes: what is in a tree many times is written as often.
class PlainWriter {
 public:
  PlainWriter(std::string& out, std::size_t most) : out_(out), most_(most) {}

  bool Write(PyObject* value, int levels) {
    if (out_.size() > most_) return false;
    if (PyUnicode_CheckExact(value)) return WriteStr(value);
    if (PyLong_CheckExact(value)) return WriteInt(value);
    if (PyFloat_CheckExact(value)) return WriteFloat(PyFloat_AS_DOUBLE(value));
    if (value == Py_None) return Append("null");
    if (PyBool_Check(value)) return Append(value == Py_True ? "true" : "false");
    if (PyBytes_CheckExact(value)) return WriteBytes(value);
    if (levels == 0 || !IsContainer(value) || std::ranges::find(open_, value) != open_.end()) return false;
    open_.push_back(value);
    const bool written = PyDict_CheckExact(value)   ? WriteDict(value, levels - 1)
                         : PyList_CheckExact(value) ? WriteSequence("list", value, levels - 1)
                                                    : WriteSequence("tuple", value, levels - 1);
    open_.pop_back();
    return written;
  }

  bool WriteRoot(PyObject* value, int levels, std::string_view tag) {
    return tag.empty() || levels == 0 ? Write(value, levels) : WriteSequence(tag, value, levels - 1);
  }
  [[nodiscard]] bool packed() const { return packed_; }
  [[nodiscard]] bool too_long() const { return too_long_ || out_.size() > most_; }

 private:
  bool Append(std::string_view text) {
    out_ += text;
    return true;
  }

  bool WriteInt(PyObject* value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) {
      std::array<char, 20> digits;
      const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
      return Append({digits.data(), static_cast<std::size_t>(end - digits.data())});
    }
    const auto hex = py::reinterpret_steal<py::object>(PyNumber_ToBase(value, 16));
    if (!hex) throw py::error_already_set();
    return Append("[\"int\",\"") && Append(AsciiOf(hex.ptr())) && Append("\"]");
  }

  bool WriteFloat(double value) {
    if (std::isnan(value)) return Append(R"(["float","nan"])");
    if (std::isinf(value)) return Append(value > 0 ? R"(["float","inf"])" : R"(["float","-inf"])");
    const std::size_t begin = out_.size();
    fmt::format_to(std::back_inserter(out_), "{}", value);  // The shortest text that reads back as the same bits.
    if (out_.find_first_of(".e", begin) == std::string::npos) out_ += ".0";
    return true;
  }

  bool WriteStr(PyObject* value) {
    if (static_cast<std::size_t>(PyUnicode_GET_LENGTH(value)) > kLongestText) return false;
    if (PyUnicode_IS_COMPACT_ASCII(value)) {
      AppendJsonString(out_, AsciiOf(value));
      return true;
    }
    // Not PyUnicode_AsUTF8, which would keep its result in the caller's str.
    const auto utf8 = py::reinterpret_steal<py::object>(PyUnicode_AsUTF8String(value));
    if (!utf8) {
      PyErr_Clear();
      return false;
    }
    AppendJsonString(out_, {PyBytes_AS_STRING(utf8.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(utf8.ptr()))});
    return true;
  }

  bool WriteBytes(PyObject* value) {
    const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(value));
    if (size > kLongestText) return false;
    Append(R"(["bytes",")");
    AppendBase64(out_, {reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(value)), size});
    return Append("\"]");
  }

  bool WriteDict(PyObject* dict, int levels) {
    const bool texts = ForEach(dict, [](PyObject* key, PyObject*) { return PyUnicode_CheckExact(key) != 0; });
    Append(texts ? "{" : "[\"dict\"");
    bool first = texts;
    const bool all = ForEach(dict, [&](PyObject* key, PyObject* child) {
      if (!std::exchange(first, false)) out_ += ',';
      if (!IsPlainKey(key) || !WriteKey(key)) return false;
      out_ += texts ? ':' : ',';
      return Write(child, levels);
    });
    return all && Append(texts ? "}" : "]");
  }

  // An int of more bits may be refused.
  bool WriteKey(PyObject* key) {
    int overflow = 0;
    if (PyLong_CheckExact(key)) static_cast<void>(PyLong_AsLongLongAndOverflow(key, &overflow));
    return overflow == 0 && Write(key, 0);
  }

  bool WriteSequence(std::string_view tag, PyObject* sequence, int levels) {
    const std::span<PyObject* const> children(PySequence_Fast_ITEMS(sequence),
                                              static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence)));
    if (children.size() > most_) {  // Each takes more than a byte.
      too_long_ = true;
      return false;
    }
    const bool packs = tag == "list" || tag == "tuple";
    if (packs && children.size() >= kPackedFrom && WritePacked(tag, children)) return true;
    Append("[\"") && Append(tag) && Append("\"");
    for (PyObject* const child : children) {
      out_ += ',';
      if (!Write(child, levels)) return false;
    }
    return Append("]");
  }

  bool WritePacked(std::string_view tag, std::span<PyObject* const> children) {
    if (PyFloat_CheckExact(children[0])) {
      std::vector<double> numbers;
      numbers.reserve(children.size());
      for (PyObject* const child : children) {
        if (!PyFloat_CheckExact(child)) return false;
        numbers.push_back(PyFloat_AS_DOUBLE(child));
      }
      return AppendPacked<double>(tag, "<f8", numbers);
    }
    std::vector<std::int64_t> numbers;
    if (PyLong_CheckExact(children[0])) numbers.reserve(children.size());
    bool narrow = true;
    for (PyObject* const child : children) {
      if (!PyLong_CheckExact(child)) return false;
      int overflow = 0;
      numbers.push_back(PyLong_AsLongLongAndOverflow(child, &overflow));
      if (overflow != 0) return false;
      narrow = narrow && numbers.back() == static_cast<std::int32_t>(numbers.back());
    }
    if (!narrow) return AppendPacked<std::int64_t>(tag, "<i8", numbers);
    return AppendPacked<std::int32_t>(tag, "<i4", std::vector<std::int32_t>(numbers.begin(), numbers.end()));
  }

  template <typename T>
  bool AppendPacked(std::string_view tag, std::string_view dtype, const std::vector<T>& numbers) {
    packed_ = true;
    Append(fmt::format(R"(["packed","{}","{}",")", tag, dtype));
    AppendBase64(out_, {reinterpret_cast<const unsigned char*>(numbers.data()), numbers.size() * sizeof(T)});
    return Append("\"]");
  }

  std::string& out_;
  const std::size_t most_;
  std::vector<PyObject*> open_;  // What is being written: one of them within itself has no end.
  bool packed_ = false;
  bool too_long_ = false;
};

}  // namespace

bool RefusesValue(PyObject* value) { return !IsContainer(value) && !IsSimple(value) && !PyBytes_CheckExact(value); }

py::object PlainText(const py::handle& value, int levels, std::size_t most, std::string_view tag) {
  if (!IsContainer(value.ptr()) || !MayBePlain(value.ptr(), RefusesValue)) return py::none();
  std::string text;
  PlainWriter writer(text, most);
  const bool written = writer.WriteRoot(value.ptr(), levels, tag);
  if (writer.too_long()) return py::make_tuple(py::str(), false);
  if (!written) return py::none();
  return py::make_tuple(py::str(text), writer.packed());
}

}  // namespace cairn
