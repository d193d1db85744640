#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// Prints the broken promise and aborts, which libFuzzer reports.
void Require(bool holds, std::string_view promise, std::string_view detail = {});

/// A refusal must be Corrupt or Unsupported, with a message of bounded length that names `file`.
void RequireRefusal(const Status& status, std::string_view file);

}  // namespace cairn

/// libFuzzer's entry point.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
