#pragma once

#include <string_view>

namespace cairn {

// The keys in a shard's __metadata__, as docs/format.md describes them. A released key never changes its meaning.
// Readers ignore keys that they do not know.
inline constexpr std::string_view kMetadata = "__metadata__";
inline constexpr std::string_view kCairnPrefix = "cairn.";
inline constexpr std::string_view kVersionKey = "cairn.format_version";
inline constexpr std::string_view kStepKey = "cairn.step";
inline constexpr std::string_view kAttemptKey = "cairn.attempt";
inline constexpr std::string_view kShardKey = "cairn.shard";
inline constexpr std::string_view kBlockKey = "cairn.crc32c_block";
inline constexpr std::string_view kSumsKey = "cairn.crc32c";
inline constexpr std::string_view kPartsKey = "cairn.parts";
inline constexpr std::string_view kAliasesKey = "cairn.aliases";
inline constexpr std::string_view kValuesKey = "cairn.values";

}  // namespace cairn
