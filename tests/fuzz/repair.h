#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Makes hostile text pass the checks that a mutation rarely passes (digests, checksums, lengths), so that the fuzzer
// reaches the code after them. The rest of the text does not change.

/// The sections between lines of %%.
[[nodiscard]] std::vector<std::string_view> Sections(std::string_view input);

/// The text of a manifest up to its digest, with a valid tail.
[[nodiscard]] std::string SealManifest(std::string_view text);

/// Sets the data_offsets of each tensor in the writer's spelling from dtype and shape, one after the other, up to
/// `limit`. Returns the largest offset: the end of the data.
std::uint64_t LayOutTensors(std::string& json, std::uint64_t limit);

/// Sets cairn.crc32c to `sums`.
void FillSums(std::string& json, const std::vector<std::uint32_t>& sums);

/// A header's bytes in a file: the length word, the text, and spaces up to a multiple of 4096.
[[nodiscard]] std::string HeaderBytes(std::string_view json);

/// Sets the manifest's entry of the file `name`, if it is in the writer's spelling.
void FillShard(std::string& manifest, std::string_view name, std::uint64_t length, std::uint32_t header_digest);
/// The same of a kept file, whose entry has its rank first.
void FillKept(std::string& manifest, std::string_view name, std::uint64_t length, std::uint32_t header_digest);

}  // namespace cairn
