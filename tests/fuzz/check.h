#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// Says what does not hold and aborts: for libFuzzer that is a finding.
void Require(bool holds, std::string_view promise, std::string_view detail = {});

/// A refusal says why in a message of bounded length that names `file`, and means the input: Corrupt, or Unsupported.
void RequireRefusal(const Status& status, std::string_view file);

}  // namespace cairn

/// libFuzzer's entry.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
