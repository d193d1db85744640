#include "trainer/write_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace cairn::trainer {
namespace {

/// zlib's CRC-32, implemented here so that the trainer's is not compared with itself.
std::uint32_t Crc32(const std::string& bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

void Append(std::string& bytes, std::uint32_t number, int width) {
  for (int i = 0; i < width; ++i) bytes += static_cast<char>((number >> (8 * i)) & 255U);
}

std::string Checksum(const std::string& bytes) {
  std::array<char, 16> checksum{};
  std::snprintf(checksum.data(), checksum.size(), "crc32:%08x", Crc32(bytes));
  return checksum.data();
}

}  // namespace

void WriteText(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
               const std::map<std::string, std::uint64_t>& special) {
  std::string bytes;
  for (const std::uint16_t token : tokens) Append(bytes, token, 2);
  nlohmann::json about = {{"kind", "text"},
                          {"dtype", "u16"},
                          {"tokens", tokens.size()},
                          {"vocabulary", vocabulary},
                          {"checksum", Checksum(bytes)}};
  if (!special.empty()) about["special_tokens"] = special;
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokens.bin", std::ios::binary) << bytes;
  std::ofstream(folder + "/data.json") << about;
}

void WriteQuestions(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
                    std::uint32_t sequence) {
  WriteText(folder, tokens, vocabulary, kSpecialTokens);
  std::mt19937 random(8);
  std::string features;
  std::uint64_t count = 0;
  for (auto left = static_cast<std::uint32_t>(tokens.size()); left > 0; ++count) {
    const std::uint32_t length = std::min<std::uint32_t>(left, sequence - random() % (sequence / 2));
    const std::uint32_t context = length / 4;
    const bool there = count % 3 != 0;
    const std::uint32_t start = there ? context + random() % (length - context) : 0;
    const std::uint32_t end = there ? start + random() % (length - start) : 0;
    for (const std::uint32_t field : {length, context, start, end}) Append(features, field, 4);
    left -= length;
  }
  nlohmann::json about = nlohmann::json::parse(std::ifstream(folder + "/data.json"));
  about.update(
      {{"kind", "questions"}, {"features", count}, {"sequence", sequence}, {"features_checksum", Checksum(features)}});
  std::ofstream(folder + "/features.bin", std::ios::binary) << features;
  std::ofstream(folder + "/data.json") << about;
}

void ChangeAbout(const std::string& folder, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json about = nlohmann::json::parse(std::ifstream(folder + "/data.json"));
  change(about);
  std::ofstream(folder + "/data.json") << about;
}

std::vector<std::uint16_t> MakeTokens(std::size_t count, std::uint16_t vocabulary) {
  std::mt19937 random(7);
  std::vector<std::uint16_t> tokens(count);
  for (std::size_t i = 1; i < count; ++i) {
    tokens[i] = static_cast<std::uint16_t>((tokens[i - 1] * 5U + random() % 3U) % vocabulary);
  }
  return tokens;
}

}  // namespace cairn::trainer
