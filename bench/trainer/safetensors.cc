#include "safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace cairn::trainer {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // The format's limit.

std::uint64_t Count(const json& value, const char* what) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= kMax) return value.get<std::uint64_t>();
  throw std::runtime_error(std::string(what) + ": expected an unsigned integer, found " + value.dump());
}

const json& Field(const json& entry, const char* name, json::value_t type) {
  const auto at = entry.find(name);
  if (at == entry.end() || at->type() != type) {
    throw std::runtime_error(std::string(name) + ": expected " + json(type).type_name() + ", found " +
                             (at == entry.end() ? "none" : at->dump()));
  }
  return *at;
}

FileTensor ParseTensor(const json& entry, std::span<const std::byte> data) {
  if (!entry.is_object() || entry.size() != 3) {
    throw std::runtime_error("expected dtype, shape and data_offsets, found " + entry.dump());
  }
  const auto name = Field(entry, "dtype", json::value_t::string).get<std::string>();
  const auto dtype = DTypeFromName(name);
  if (!dtype) throw std::runtime_error("unknown dtype: " + name);
  FileTensor tensor{.dtype = *dtype};
  std::uint64_t bytes = DTypeSize(*dtype);
  for (const json& extent : Field(entry, "shape", json::value_t::array)) {
    tensor.shape.push_back(static_cast<std::int64_t>(Count(extent, "shape")));
    if (__builtin_mul_overflow(bytes, Count(extent, "shape"), &bytes)) {
      throw std::runtime_error("shape: too large: " + Describe(*dtype, tensor.shape));
    }
  }
  const json& offsets = Field(entry, "data_offsets", json::value_t::array);
  if (offsets.size() != 2) throw std::runtime_error("data_offsets: expected two offsets, found " + offsets.dump());
  const std::uint64_t begin = Count(offsets[0], "data_offsets");
  const std::uint64_t end = Count(offsets[1], "data_offsets");
  if (begin > end || end > data.size() || end - begin != bytes) {
    throw std::runtime_error("data_offsets: expected " + std::to_string(bytes) + " bytes for " +
                             Describe(*dtype, tensor.shape) + " within " + std::to_string(data.size()) + ", found " +
                             offsets.dump());
  }
  tensor.bytes = data.subspan(begin, bytes);
  return tensor;
}

}  // namespace

std::string Describe(cairn::DType dtype, std::span<const std::int64_t> shape) {
  std::string text(DTypeName(dtype));
  text += " [";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text += "]";
}

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)), file_(path_) {
  const auto bytes = file_.bytes();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw std::runtime_error(path_ + ": not a safetensors file: too short");
  for (std::size_t i = 0; i < sizeof length; ++i) length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  const auto rest = bytes.subspan(sizeof length);
  if (length > kMaxHeaderBytes || length > rest.size()) {
    throw std::runtime_error(path_ + ": not a safetensors file: a header of " + std::to_string(length) +
                             " bytes in a file of " + std::to_string(bytes.size()));
  }
  const auto* const text = reinterpret_cast<const char*>(rest.data());
  const json header = json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object())
    throw std::runtime_error(path_ + ": not a safetensors file: its header is not a JSON object");
  const auto data = rest.subspan(length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      tensors_.emplace(name, ParseTensor(entry, data));
    } catch (const std::runtime_error& why) {
      throw std::runtime_error(path_ + ": tensor \"" + name + "\": " + why.what());
    }
  }
  CheckCover(data);
}

void SafetensorsFile::CheckCover(std::span<const std::byte> data) const {
  std::vector<std::span<const std::byte>> pieces;
  for (const auto& [name, tensor] : tensors_) pieces.push_back(tensor.bytes);
  // Sorts empty tensors before others at the same offset.
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return std::pair(a.data(), a.size()) < std::pair(b.data(), b.size()); });
  const std::byte* at = data.data();
  for (const auto& piece : pieces) {
    if (piece.data() != at) throw std::runtime_error(path_ + ": tensors overlap or leave a gap");
    at += piece.size();
  }
  if (at != data.data() + data.size()) throw std::runtime_error(path_ + ": bytes after the last tensor");
}

}  // namespace cairn::trainer
