#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Makes hostile text pass the checks that a mutation hardly ever passes: digests, sums, lengths. What lies behind them
// is then in reach. Everything else of the text stays as it is.

/// The parts between lines that say %%.
[[nodiscard]] std::vector<std::string_view> Sections(std::string_view input);

/// The text of a manifest up to its digest, with the tail that verifies.
[[nodiscard]] std::string SealManifest(std::string_view text);

/// Of each tensor spelled as Cairn's writer spells it, the data_offsets follow from dtype and shape, one behind the
/// other, as long as they stay up to `limit`. Returns where the data then ends by the text: the largest offset.
std::uint64_t LayOutTensors(std::string& json, std::uint64_t limit);

/// Puts `sums` where the text has cairn.crc32c.
void FillSums(std::string& json, const std::vector<std::uint32_t>& sums);

/// A header's bytes as they stand in a file: the length word, the text, spaces up to a multiple of 4096.
[[nodiscard]] std::string HeaderBytes(std::string_view json);

/// What a manifest says of the file `name`, wherever it is spelled as Cairn's writer spells it.
void FillShard(std::string& manifest, std::string_view name, std::uint64_t length, std::uint32_t header_digest);

}  // namespace cairn
