#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::trainer {

/// Makes FOLDER as `scripts/prepare-data text` does, of tokens of two bytes each.
void WriteText(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary);

/// A text of `count` tokens that follow each other by a rule and some chance, the same each time.
std::vector<std::uint16_t> MakeTokens(std::size_t count, std::uint16_t vocabulary);

}  // namespace cairn::trainer
