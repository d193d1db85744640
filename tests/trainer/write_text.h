#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cairn::trainer {

/// The numbers that `scripts/prepare-data text --kind wordpiece` gives them.
inline const std::map<std::string, std::uint64_t> kSpecialTokens = {
    {"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2}, {"[SEP]", 3}, {"[MASK]", 4}};

/// Makes FOLDER like `scripts/prepare-data text`, with tokens of two bytes each.
void WriteText(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
               const std::map<std::string, std::uint64_t>& special = {});

/// Makes FOLDER like `scripts/prepare-data squad`, with special tokens. Cuts `tokens` into features of at most
/// `sequence` tokens; every third one has no answer.
void WriteQuestions(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
                    std::uint32_t sequence);

/// Changes FOLDER/data.json.
void ChangeAbout(const std::string& folder, const std::function<void(nlohmann::json&)>& change);

/// A pseudo-random text of `count` tokens with a learnable pattern; the same each time.
std::vector<std::uint16_t> MakeTokens(std::size_t count, std::uint16_t vocabulary);

}  // namespace cairn::trainer
