#include "base/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/utf8.h"

namespace cairn {
namespace {

// Walks over a text that may be hostile, without recursion. It may have many megabytes.
class JsonWalk {
 public:
  explicit JsonWalk(std::string_view text) : left_(text) {}

  bool IsOneValue() {
    std::string open;  // The brackets that will close what is open.
    while (true) {
      SkipSpace();
      if (left_.empty()) return false;
      const char c = left_.front();
      if (c == '{' || c == '[') {
        left_.remove_prefix(1);
        open += c == '{' ? '}' : ']';
        SkipSpace();
        if (!Take(open.back())) {
          if (c == '{' && !Key()) return false;
          continue;
        }
        open.pop_back();
      } else if (!Scalar()) {
        return false;
      }
      // Behind a value.
      for (SkipSpace(); !open.empty() && Take(open.back()); SkipSpace()) open.pop_back();
      if (open.empty()) return left_.empty();
      if (!Take(',')) return false;
      SkipSpace();
      if (open.back() == '}' && !Key()) return false;
    }
  }

 private:
  void SkipSpace() {
    const std::size_t at = left_.find_first_not_of(" \t\n\r");
    left_.remove_prefix(at == std::string_view::npos ? left_.size() : at);
  }
  bool Take(std::string_view word) {
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  bool Take(char c) { return Take(std::string_view(&c, 1)); }

  bool Key() {
    if (!String()) return false;
    SkipSpace();
    return Take(':');
  }

  bool Scalar() {
    if (left_.front() == '"') return String();
    return Take("null") || Take("true") || Take("false") || Number();
  }

  // Whether one of eight characters needs a closer look: a quote, a backslash, a control character, or no ASCII.
  static bool IsSpecial(std::uint64_t eight) {
    constexpr std::uint64_t kOnes = 0x0101'0101'0101'0101;
    constexpr std::uint64_t kHigh = 0x80 * kOnes;
    const auto has_zero = [](std::uint64_t word) { return (word - kOnes) & ~word; };
    return ((has_zero(eight ^ '"' * kOnes) | has_zero(eight ^ '\\' * kOnes) | (eight - 0x20 * kOnes) | eight) &
            kHigh) != 0;
  }

  bool String() {
    if (!Take('"')) return false;
    while (true) {
      std::uint64_t eight = 0;
      while (left_.size() >= sizeof(eight)) {
        std::memcpy(&eight, left_.data(), sizeof(eight));
        if (IsSpecial(eight)) break;
        left_.remove_prefix(sizeof(eight));
      }
      if (left_.empty()) return false;
      const auto c = static_cast<unsigned char>(left_.front());
      if (c == '"') return Take('"');
      if (c == '\\') {
        if (!Escape()) return false;
        continue;
      }
      const std::size_t bytes = c < 0x20 ? 0 : CharacterBytes(left_);
      if (bytes == 0) return false;
      left_.remove_prefix(bytes);
    }
  }

  bool Escape() {
    if (left_.size() < 2) return false;
    left_.remove_prefix(1);
    if (std::string_view("\"\\/bfnrt").find(left_.front()) != std::string_view::npos) {
      left_.remove_prefix(1);
      return true;
    }
    std::uint32_t code = 0;
    if (!Unit(code)) return false;
    if (code < 0xd800 || code > 0xdfff) return true;
    const bool first = code < 0xdc00;  // Of the two halves of a character.
    return first && Take('\\') && Unit(code) && code >= 0xdc00 && code <= 0xdfff;
  }
  bool Unit(std::uint32_t& code) {
    constexpr std::size_t kLength = 5;
    if (left_.size() < kLength || left_.front() != 'u') return false;
    const char* const end = left_.data() + kLength;
    const auto read = std::from_chars(left_.data() + 1, end, code, 16);
    left_.remove_prefix(kLength);
    return read.ptr == end;
  }

  bool Digits() {
    const std::size_t end = std::min(left_.find_first_not_of("0123456789"), left_.size());
    left_.remove_prefix(end);
    return end > 0;
  }
  bool Number() {
    const char* const begin = left_.data();
    Take('-');
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    bool real = false;
    if (Take('e') || Take('E')) {
      real = true;
      if (!Take('+')) Take('-');
      if (!Digits()) return false;
    }
    const auto length = static_cast<std::size_t>(left_.data() - begin);
    constexpr std::size_t kFinite = 300;  // So many digits are.
    if (!real && length < kFinite) return true;
    // Readers refuse what is beyond the range of doubles.
    return std::isfinite(std::strtod(std::string(begin, length).c_str(), nullptr));
  }

  std::string_view left_;
};

}  // namespace

void AppendJsonString(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kEscaped = "\"\\\n\r\t";
  constexpr std::string_view kLetters = "\"\\nrt";
  out += '"';
  std::size_t plain = 0;  // Start of the bytes that need no escape and are not appended yet.
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, plain, at - plain);
    plain = at + 1;
    out += '\\';
    if (const std::size_t i = kEscaped.find(text[at]); i != std::string_view::npos) {
      out += kLetters[i];
    } else {
      out += "u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  out.append(text, plain);
  out += '"';
}

bool IsJson(std::string_view text) { return JsonWalk(text).IsOneValue(); }

bool IsNestedTooDeeply(std::string_view text) {
  int levels = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++levels > kMostJsonLevels) return true;
    } else if (c == ']' || c == '}') {
      --levels;
    }
  }
  return false;
}

}  // namespace cairn
