#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "base64.h"
#include "plain_kinds.h"
#include "plain_values.h"

namespace py = pybind11;

namespace cairn {
namespace {

// Objects that Python code will own; and what was made so far goes if something fails.
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Drop(0); }
  void Push(PyObject* made) {
    if (made == nullptr) throw py::error_already_set();
    all_.push_back(made);
  }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] PyObject* Pop() {
    PyObject* const last = all_.back();
    all_.pop_back();
    return last;
  }
  /// A list of those from `begin` on.
  [[nodiscard]] PyObject* PopList(std::size_t begin) {
    PyObject* const list = PyList_New(static_cast<Py_ssize_t>(all_.size() - begin));
    if (list == nullptr) throw py::error_already_set();
    for (std::size_t i = begin; i < all_.size(); ++i) {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i - begin), all_[i]);
    }
    all_.resize(begin);
    return list;
  }

 private:
  void Drop(std::size_t begin) {
    for (std::size_t i = begin; i < all_.size(); ++i) Py_DECREF(all_[i]);
    all_.resize(begin);
  }
  std::vector<PyObject*> all_;
};

// Of a text that may be hostile. Throws value_error.
class TreeParser {
 public:
  TreeParser(std::string_view text, py::handle tensor, bool unpack)
      : at_(text.data()), begin_(text.data()), end_(text.data() + text.size()), tensor_(tensor), unpack_(unpack) {}

  py::object Parse(int levels) {
    Value(levels);
    SkipSpace();
    if (at_ != end_) Fail("the end");
    return py::reinterpret_steal<py::object>(made_.Pop());
  }

 private:
  [[noreturn]] void Fail(std::string_view expected) const {
    throw py::value_error(fmt::format("expected {} at byte {} of {}", expected, at_ - begin_, end_ - begin_));
  }
  [[nodiscard]] bool Has(std::string_view next) const {
    return std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(next);
  }
  void SkipSpace() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool Take(char c) {
    SkipSpace();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  // Pushes a value.
  void Value(int levels) {
    SkipSpace();
    if (at_ == end_) Fail("a value");
    switch (*at_) {
      case '"':
        return made_.Push(Str());
      case '{':
        return Object(levels);
      case '[':
        return Array(levels);
      case 'n':
        return Word("null", Py_None);
      case 't':
        return Word("true", Py_True);
      case 'f':
        return Word("false", Py_False);
      default:
        return made_.Push(Number());
    }
  }

  void Word(std::string_view word, PyObject* value) {
    if (!Has(word)) Fail("a value");
    at_ += word.size();
    made_.Push(Py_NewRef(value));
  }

  void CheckLevels(int levels) const {
    if (levels == 0) throw py::value_error("nested too deep");
  }

  void Object(int levels) {
    CheckLevels(levels);
    ++at_;
    PyObject* const dict = PyDict_New();
    made_.Push(dict);
    if (Take('}')) return;
    do {
      SkipSpace();
      if (at_ == end_ || *at_ != '"') Fail("a key");
      made_.Push(Key());
      if (!Take(':')) Fail("a colon");
      Value(levels - 1);
      const auto value = py::reinterpret_steal<py::object>(made_.Pop());
      const auto key = py::reinterpret_steal<py::object>(made_.Pop());
      if (PyDict_SetItem(dict, key.ptr(), value.ptr()) != 0) throw py::error_already_set();
    } while (Take(','));
    if (!Take('}')) Fail("a comma or the end of an object");
  }

  void Array(int levels) {
    constexpr std::string_view kTensor = R"(["t"])";
    if (Has(kTensor)) {
      at_ += kTensor.size();
      return made_.Push(Py_NewRef(tensor_.ptr()));
    }
    CheckLevels(levels);
    ++at_;
    const std::size_t begin = made_.size();
    SkipSpace();
    if (unpack_ && Has("\"packed\"") && Packed()) return;
    if (Take(']')) return made_.Push(made_.PopList(begin));
    do {
      Value(levels - 1);
    } while (Take(','));
    if (!Take(']')) Fail("a comma or the end of a list");
    made_.Push(made_.PopList(begin));
  }

  // Pushes what the node of the list or tuple would be without it. False, with nothing done, if this is none.
  bool Packed() {
    const char* const begin = at_;
    std::array<std::string_view, 4> texts;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const bool quoted = (i == 0 || Take(',')) && Take('"');
      const void* const quote = quoted ? std::memchr(at_, '"', static_cast<std::size_t>(end_ - at_)) : nullptr;
      if (quote == nullptr) {
        at_ = begin;
        return false;
      }
      const char* const end = static_cast<const char*>(quote);
      texts[i] = {at_, static_cast<std::size_t>(end - at_)};
      at_ = end + 1;
    }
    const auto& [_, tag, dtype, digits] = texts;
    const bool closed = Take(']') && (tag == "list" || tag == "tuple");
    const bool unpacked = closed && ((dtype == "<i4" && Numbers<std::int32_t>(tag, digits, &PyLong_FromLong)) ||
                                     (dtype == "<i8" && Numbers<std::int64_t>(tag, digits, &PyLong_FromLongLong)) ||
                                     (dtype == "<f8" && Numbers<double>(tag, digits, &PyFloat_FromDouble)));
    if (!unpacked) at_ = begin;
    return unpacked;
  }

  template <typename T, typename Make>
  bool Numbers(std::string_view tag, std::string_view digits, Make make) {
    const std::optional<std::size_t> bytes = Base64Bytes(digits);
    if (!bytes || *bytes % sizeof(T) != 0) return false;
    PyObject* const list = PyList_New(static_cast<Py_ssize_t>(*bytes / sizeof(T)) + 1);
    made_.Push(list);
    PyList_SET_ITEM(list, 0, Made(Decoded(tag)));
    constexpr std::size_t kAtOnce = 16'384;  // Digits of whole numbers.
    std::array<T, kAtOnce / 4 * 3 / sizeof(T)> numbers;
    Py_ssize_t at = 1;
    for (; !digits.empty(); digits.remove_prefix(std::min(kAtOnce, digits.size()))) {
      const std::string_view some = digits.substr(0, kAtOnce);
      // Only the last piece may be padded: another would leave the list with places that nothing fills.
      const bool padded = some.size() < digits.size() && some.ends_with('=');
      if (padded || !DecodeBase64(some, reinterpret_cast<unsigned char*>(numbers.data()))) {
        Py_DECREF(made_.Pop());
        return false;
      }
      for (const T number : std::span(numbers).first(*Base64Bytes(some) / sizeof(T))) {
        PyList_SET_ITEM(list, at++, Made(make(number)));
      }
    }
    return true;
  }
  static PyObject* Made(PyObject* made) {
    if (made == nullptr) throw py::error_already_set();
    return made;
  }

  // The text between the quotes, and whether it has escapes.
  std::pair<std::string_view, bool> Raw() {
    const char* const begin = ++at_;
    bool escaped = false;
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (static_cast<unsigned char>(*at_) < 0x20) Fail("no control character");
      if (*at_ != '\\') continue;
      escaped = true;
      if (++at_ == end_) break;
    }
    if (at_ == end_) Fail("the end of a text");
    return {{begin, static_cast<std::size_t>(at_++ - begin)}, escaped};
  }

  PyObject* Str() {
    const auto [text, escaped] = Raw();
    return Decoded(escaped ? Unescaped(text) : text);
  }

  static PyObject* Decoded(std::string_view text) {
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  }

  // Objects of one kind have the same keys.
  PyObject* Key() {
    constexpr std::size_t kShort = 64;
    const auto [text, escaped] = Raw();
    if (escaped || text.size() > kShort) return Decoded(escaped ? Unescaped(text) : text);
    if (const auto found = keys_.find(text); found != keys_.end()) return Py_NewRef(found->second.ptr());
    auto key = py::reinterpret_steal<py::object>(Made(Decoded(text)));
    constexpr std::size_t kMost = 4096;
    if (keys_.size() < kMost) keys_.emplace(text, key);
    return key.release().ptr();
  }

  std::string_view Unescaped(std::string_view text) {
    static constexpr std::string_view kEscapes = "\"\\/bfnrt";
    static constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    unescaped_.clear();
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        unescaped_ += text[i];
        continue;
      }
      ++i;
      if (const std::size_t which = kEscapes.find(text[i]); which != std::string_view::npos) {
        unescaped_ += kMeant[which];
        continue;
      }
      std::uint32_t code = Unit(text, i);
      i += 4;
      if (code >= 0xd800 && code < 0xdc00 && text.substr(i + 1).starts_with("\\u")) {
        const std::uint32_t low = Unit(text, i + 2);
        if (low < 0xdc00 || low > 0xdfff) Fail("the second half of a character");
        code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
        i += 6;
      }
      if (!AppendUtf8(unescaped_, code)) Fail("a whole character");
    }
    return unescaped_;
  }
  // The four digits behind the u at `at`.
  [[nodiscard]] std::uint32_t Unit(std::string_view text, std::size_t at) const {
    std::uint32_t code = 0;
    const std::string_view digits = text.substr(std::min(at + 1, text.size()), 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const bool good = text[at] == 'u' && digits.size() == 4 && error == std::errc() && end == digits.data() + 4;
    if (!good) Fail("an escape");
    return code;
  }

  PyObject* Number() {
    const char* const begin = at_;
    if (*at_ == '-') ++at_;
    const char* const digits = at_;
    SkipDigits();
    if (at_ == digits || (*digits == '0' && at_ - digits > 1)) Fail("a value");
    bool real = false;
    if (at_ != end_ && *at_ == '.') {
      real = true;
      ++at_;
      SkipSomeDigits();
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      real = true;
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      SkipSomeDigits();
    }
    if (real) {
      double number = 0;
      const auto [end, error] = std::from_chars(begin, at_, number);
      if (end != at_ || error != std::errc()) return FromPython(begin, PyFloat_FromString);
      return PyFloat_FromDouble(number);
    }
    std::int64_t number = 0;
    if (std::from_chars(begin, at_, number).ec == std::errc()) return PyLong_FromLongLong(number);
    return FromPython(begin, PyNumber_Long);
  }
  // What is beyond 64 bits, or beyond the range of doubles.
  PyObject* FromPython(const char* begin, PyObject* (*make)(PyObject*)) const {
    return make(py::str(begin, static_cast<std::size_t>(at_ - begin)).ptr());
  }
  void SkipDigits() {
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
  }
  void SkipSomeDigits() {
    const char* const begin = at_;
    SkipDigits();
    if (at_ == begin) Fail("a digit");
  }

  const char* at_;
  const char* const begin_;
  const char* const end_;
  const py::handle tensor_;
  const bool unpack_;
  Owned made_;
  std::unordered_map<std::string_view, py::object> keys_;
  std::string unescaped_;
};

}  // namespace

py::object ParseTree(const py::str& text, const py::handle& tensor, int levels, bool unpack) {
  const NoCollections none;
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return TreeParser({data, static_cast<std::size_t>(size)}, tensor, unpack).Parse(levels);
}

}  // namespace cairn
