#include "base/json_text.h"

#include <nlohmann/json.hpp>

namespace cairn {

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

bool IsJson(std::string_view text) {
  // The parser stops at a zero byte and skips a byte order mark, but neither is valid JSON.
  if (text.find('\0') != std::string_view::npos || text.starts_with("\xef\xbb\xbf")) return false;
  return nlohmann::json::accept(text.begin(), text.end());
}

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
