#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cairn/tensor.h"

namespace cairn {

// The spelling of numbers and names in Cairn's files. Each value has one spelling; readers refuse all others.

/// Appends 8 lower-case hexadecimal digits.
void AppendHex32(std::string& out, std::uint32_t value);
[[nodiscard]] std::optional<std::uint32_t> ParseHex32(std::string_view text);

/// Appends decimal digits.
void AppendDecimal(std::string& out, std::uint64_t value);
/// Only digits, no leading zero, at most 2^64 - 1.
[[nodiscard]] std::optional<std::uint64_t> ParseDecimal(std::string_view text);

/// Whether `text` can be an attempt's id: 1 to 64 letters, digits, '-' or '_'.
[[nodiscard]] bool IsAttemptId(std::string_view text);

/// The size of a tensor, multiplied from the left as in safetensors. None if a partial product exceeds 2^62 or an
/// extent is negative.
[[nodiscard]] std::optional<std::uint64_t> TensorBytes(DType dtype, std::span<const std::int64_t> shape);

/// The error in a part of the given tensor, for messages; empty if there is none.
[[nodiscard]] std::string PartProblem(DType dtype, std::span<const std::int64_t> shape, const TensorPart& part);

/// A name from a file, for messages: quoted, escaped, and cut if it is long.
[[nodiscard]] std::string Quoted(std::string_view name);
/// A shape or an offset from a file, for messages: "[2, 3]", cut if it is long.
[[nodiscard]] std::string Listed(std::span<const std::int64_t> numbers);

}  // namespace cairn
