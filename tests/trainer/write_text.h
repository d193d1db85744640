#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cairn::trainer {

/// As `scripts/prepare-data text --kind wordpiece` numbers them.
inline const std::map<std::string, std::uint64_t> kSpecialTokens = {
    {"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2}, {"[SEP]", 3}, {"[MASK]", 4}};

/// Makes FOLDER as `scripts/prepare-data text` does, of tokens of two bytes each.
void WriteText(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
               const std::map<std::string, std::uint64_t>& special = {});

/// Makes FOLDER as `scripts/prepare-data squad` does, with special tokens, of features that these are the tokens of:
/// each `sequence` at most, and of every third the answer is not there.
void WriteQuestions(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
                    std::uint32_t sequence);

/// Changes FOLDER/data.json.
void ChangeAbout(const std::string& folder, const std::function<void(nlohmann::json&)>& change);

/// A text of `count` tokens that follow each other by a rule and some chance, the same each time.
std::vector<std::uint16_t> MakeTokens(std::size_t count, std::uint16_t vocabulary);

}  // namespace cairn::trainer
