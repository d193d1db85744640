#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cairn/tensor.h"

namespace cairn {

// How numbers and names are spelled in Cairn's files. Each value has one spelling; all others are refused.

/// Appends 8 lower-case hexadecimal digits.
void AppendHex32(std::string& out, std::uint32_t value);
[[nodiscard]] std::optional<std::uint32_t> ParseHex32(std::string_view text);

/// Appends decimal digits.
void AppendDecimal(std::string& out, std::uint64_t value);
/// Digits alone, no leading zero, at most 2^64 - 1.
[[nodiscard]] std::optional<std::uint64_t> ParseDecimal(std::string_view text);

/// Whether `text` can be an attempt's id: 1 to 64 letters, digits, '-' or '_'.
[[nodiscard]] bool IsAttemptId(std::string_view text);

/// Bytes of a tensor, multiplied from the left as safetensors does it: none where a product on the way exceeds 2^62 or
/// an extent is negative.
[[nodiscard]] std::optional<std::uint64_t> TensorBytes(DType dtype, std::span<const std::int64_t> shape);

/// What is wrong with a part of the given tensor, in words; empty where nothing is.
[[nodiscard]] std::string PartProblem(DType dtype, std::span<const std::int64_t> shape, const TensorPart& part);

/// A name out of a file, for messages: quoted, control characters escaped, cut where it is long.
[[nodiscard]] std::string Quoted(std::string_view name);
/// A shape or an offset out of a file, for messages: "[2, 3]", cut where it is long.
[[nodiscard]] std::string Listed(std::span<const std::int64_t> numbers);

}  // namespace cairn
