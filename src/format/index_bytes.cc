#include "format/index_bytes.h"

#include <fmt/format.h>

#include "format/fields.h"

namespace cairn {

std::optional<std::uint64_t> IndexByteReader::Number() {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes_.size() && i < 10; ++i) {
    const auto byte = std::to_integer<std::uint64_t>(bytes_[i]);
    if (i == 9 && byte > 1) return std::nullopt;
    value |= (byte & 0x7f) << 7 * i;
    if (byte >= 0x80) continue;
    if (byte == 0 && i != 0) return std::nullopt;
    bytes_ = bytes_.subspan(i + 1);
    return value;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> IndexByteReader::Word() {
  if (bytes_.size() < 4) return std::nullopt;
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(bytes_[i]) << 8 * i;
  bytes_ = bytes_.subspan(4);
  return value;
}

std::optional<std::string_view> IndexByteReader::Text(std::uint64_t length) {
  if (length > bytes_.size()) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), length);
  bytes_ = bytes_.subspan(length);
  return text;
}

std::optional<std::size_t> ReadNextName(IndexByteReader& bytes, std::string& name) {
  const auto shared = bytes.Number();
  const auto length = bytes.Number();
  if (!shared || !length || *shared > name.size() || *length > kMaxIndexNameBytes - *shared) return std::nullopt;
  const auto rest = bytes.Text(*length);
  if (!rest) return std::nullopt;
  // The first different byte must be greater: this checks the order, and that no more bytes are shared.
  if (*shared < name.size() &&
      (rest->empty() || static_cast<unsigned char>((*rest)[0]) <= static_cast<unsigned char>(name[*shared]))) {
    return std::nullopt;
  }
  name.resize(*shared);
  name += *rest;
  return *shared;
}

void AppendNextName(std::string& out, std::string_view name, std::size_t shared) {
  AppendVarint(out, shared);
  AppendVarint(out, name.size() - shared);
  out += name.substr(shared);
}

std::string BoxProblem(std::span<const std::int64_t> offset, std::span<const std::int64_t> shape) {
  if (shape.size() > kMaxIndexDimensions) {
    return fmt::format("expected at most {} dimensions, found {}", kMaxIndexDimensions, shape.size());
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    // Both are below 2^63, so the sum is below 2^64.
    if (offset[d] < 0 || shape[d] < 0 ||
        static_cast<std::uint64_t>(offset[d]) + static_cast<std::uint64_t>(shape[d]) > kMaxIndexExtent) {
      return fmt::format("expected an end of at most 2^62, found offset {} and shape {}", Listed(offset),
                         Listed(shape));
    }
  }
  if (!TensorBytes(DType::kU8, shape)) {
    return fmt::format("expected at most 2^62 elements, found shape {}", Listed(shape));
  }
  return {};
}

}  // namespace cairn
