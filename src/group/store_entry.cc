#include "group/store_entry.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <vector>

namespace cairn {
namespace {

// By kind.
constexpr std::array<std::string_view, 5> kNames = {"message", "closed", "filled", "refused", "late"};

bool HasText(StoreEntry::Kind kind) { return kind != StoreEntry::Kind::kClosed && kind != StoreEntry::Kind::kFilled; }
std::size_t PartsOf(StoreEntry::Kind kind) { return kind == StoreEntry::Kind::kMessage ? 3 : HasText(kind) ? 2 : 1; }

void AppendPart(std::string& bytes, std::string_view part) {
  bytes += std::to_string(part.size());
  bytes += ':';
  bytes += part;
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view digits) {
  Number number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<std::string_view> TakePart(std::string_view& bytes) {
  const std::size_t colon = bytes.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto length = ParseNumber<std::size_t>(bytes.substr(0, colon));
  bytes.remove_prefix(colon + 1);
  if (!length || *length > bytes.size()) return std::nullopt;
  const std::string_view part = bytes.substr(0, *length);
  bytes.remove_prefix(*length);
  return part;
}

}  // namespace

std::string PackEntry(const StoreEntry& entry) {
  std::string bytes;
  AppendPart(bytes, kNames[static_cast<std::size_t>(entry.kind)]);
  AppendPart(bytes, std::to_string(entry.number));
  if (entry.kind == StoreEntry::Kind::kMessage) AppendPart(bytes, entry.key);
  if (HasText(entry.kind)) AppendPart(bytes, entry.text);
  return bytes;
}

std::optional<StoreEntry> UnpackEntry(std::string_view bytes) {
  std::vector<std::string_view> parts;
  while (!bytes.empty()) {
    const auto part = TakePart(bytes);
    if (!part) return std::nullopt;
    parts.push_back(*part);
  }
  for (std::size_t kind = 0; kind < kNames.size(); ++kind) {
    StoreEntry entry{.kind = static_cast<StoreEntry::Kind>(kind)};
    if (parts.size() != 1 + PartsOf(entry.kind) || parts[0] != kNames[kind]) continue;
    const auto number = ParseNumber<int>(parts[1]);
    if (!number || *number < 0) return std::nullopt;
    entry.number = *number;
    if (entry.kind == StoreEntry::Kind::kMessage) entry.key = parts[2];
    if (HasText(entry.kind)) entry.text = parts.back();
    return entry;
  }
  return std::nullopt;
}

}  // namespace cairn
