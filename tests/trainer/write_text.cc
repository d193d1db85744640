#include "trainer/write_text.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace cairn::trainer {
namespace {

/// As zlib has it, and the format: spelt out, so that the trainer's is not held against itself.
std::uint32_t Crc32(const std::string& bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

}  // namespace

void WriteText(const std::string& folder, const std::vector<std::uint16_t>& tokens, std::uint64_t vocabulary,
               const std::map<std::string, std::uint64_t>& special) {
  std::string bytes;
  for (const std::uint16_t token : tokens) {
    bytes += static_cast<char>(token & 255U);
    bytes += static_cast<char>(token >> 8U);
  }
  std::array<char, 16> checksum{};
  std::snprintf(checksum.data(), checksum.size(), "crc32:%08x", Crc32(bytes));
  nlohmann::json about = {{"kind", "text"},
                          {"dtype", "u16"},
                          {"tokens", tokens.size()},
                          {"vocabulary", vocabulary},
                          {"checksum", checksum.data()}};
  if (!special.empty()) about["special_tokens"] = special;
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokens.bin", std::ios::binary) << bytes;
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
