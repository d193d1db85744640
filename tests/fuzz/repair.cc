#include "fuzz/repair.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "format/fields.h"

namespace cairn {
namespace {

constexpr std::string_view kSeparator = "%%\n";
constexpr std::string_view kTail = ",\n \"digest\":\"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr std::size_t kTailBytes = kTail.size() + 8 + kEnd.size();

// Reads a text from the left. Text that does not match is not consumed.
class Scanner {
 public:
  Scanner(std::string_view text, std::size_t at) : text_(text), at_(at) {}
  [[nodiscard]] std::size_t at() const { return at_; }
  bool Skip(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  std::string_view Until(char end) {
    const std::size_t stop = std::min(text_.find(end, at_), text_.size());
    const std::string_view found = text_.substr(at_, stop - at_);
    at_ = stop;
    return found;
  }
  // Numbers separated by commas.
  std::vector<std::int64_t> Numbers() {
    std::vector<std::int64_t> numbers;
    do {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
      if (error != std::errc()) break;
      numbers.push_back(number);
      at_ = static_cast<std::size_t>(end - text_.data());
    } while (Skip(","));
    return numbers;
  }

 private:
  std::string_view text_;
  std::size_t at_;
};

}  // namespace

std::vector<std::string_view> Sections(std::string_view input) {
  std::vector<std::string_view> sections;
  while (true) {
    const std::size_t end = input.find(kSeparator);
    sections.push_back(input.substr(0, end));
    if (end == std::string_view::npos) return sections;
    input.remove_prefix(end + kSeparator.size());
  }
}

std::string SealManifest(std::string_view text) {
  if (text.size() >= kTailBytes && text.substr(text.size() - kTailBytes).starts_with(kTail)) {
    text.remove_suffix(kTailBytes);
  }
  std::string sealed(text);
  const std::uint32_t digest = Crc32c(std::as_bytes(std::span(sealed)));
  sealed += kTail;
  AppendHex32(sealed, digest);
  sealed += kEnd;
  return sealed;
}

std::uint64_t LayOutTensors(std::string& json, std::uint64_t limit) {
  constexpr std::string_view kStart = "\"dtype\":\"";
  std::uint64_t end = 0;
  std::uint64_t last = 0;
  for (std::size_t at = json.find(kStart); at != std::string::npos; at = json.find(kStart, at)) {
    Scanner scanner(json, at + kStart.size());
    const auto dtype = DTypeFromName(scanner.Until('"'));
    bool spelled = scanner.Skip("\",\"shape\":[");
    const std::vector<std::int64_t> shape = scanner.Numbers();
    spelled = spelled && scanner.Skip("],\"data_offsets\":[");
    at = scanner.at();
    if (!spelled) continue;
    const std::vector<std::int64_t> offsets = scanner.Numbers();
    const auto bytes = dtype ? TensorBytes(*dtype, shape) : std::nullopt;
    if (bytes && *bytes <= limit - end) {
      const std::string numbers = std::to_string(end) + "," + std::to_string(end + *bytes);
      json.replace(at, scanner.at() - at, numbers);
      end += *bytes;
    } else if (!offsets.empty()) {
      last = std::max(last, static_cast<std::uint64_t>(std::max<std::int64_t>(0, offsets.back())));
    }
  }
  return std::max(end, last);
}

void FillSums(std::string& json, const std::vector<std::uint32_t>& sums) {
  constexpr std::string_view kStart = "\"cairn.crc32c\":\"";
  std::string digits;
  for (const std::uint32_t sum : sums) AppendHex32(digits, sum);
  for (std::size_t at = json.find(kStart); at != std::string::npos; at = json.find(kStart, at)) {
    at += kStart.size();
    json.replace(at, std::min(json.find('"', at), json.size()) - at, digits);
    at += digits.size();
  }
}

std::string HeaderBytes(std::string_view json) {
  constexpr std::size_t kLengthWord = 8;
  const std::size_t size = AlignUp(kLengthWord + json.size(), kBlock);
  std::string bytes(kLengthWord, '\0');
  for (std::size_t i = 0; i < kLengthWord; ++i) bytes[i] = static_cast<char>((size - kLengthWord) >> 8 * i & 0xff);
  bytes.append(json);
  bytes.append(size - bytes.size(), ' ');
  return bytes;
}

void FillKept(std::string& manifest, std::string_view name, std::uint64_t length, std::uint32_t header_digest) {
  const std::string start = "{\"file\":\"" + std::string(name) + "\",\"rank\":";
  std::string digits;
  AppendHex32(digits, header_digest);
  for (std::size_t at = manifest.find(start); at != std::string::npos; at = manifest.find(start, at)) {
    at += start.size();
    const auto fill = [&](std::string_view key, std::string_view ends, const std::string& value) {
      const std::size_t found = manifest.find(key, at);
      if (found >= manifest.find('}', at)) return;
      const std::size_t from = found + key.size();
      manifest.replace(from, std::min(manifest.find_first_of(ends, from), manifest.size()) - from, value);
    };
    fill("\"length\":", ",}", std::to_string(length));
    fill("\"header_digest\":\"", "\"", digits);
  }
}

void FillShard(std::string& manifest, std::string_view name, std::uint64_t length, std::uint32_t header_digest) {
  const std::string start = "{\"file\":\"" + std::string(name) + "\",\"length\":";
  for (std::size_t at = manifest.find(start); at != std::string::npos; at = manifest.find(start, at)) {
    at += start.size();
    std::string facts = std::to_string(length) + ",\"header_digest\":\"";
    AppendHex32(facts, header_digest);
    facts += '"';
    manifest.replace(at, std::min(manifest.find('}', at), manifest.size()) - at, facts);
  }
}

}  // namespace cairn
