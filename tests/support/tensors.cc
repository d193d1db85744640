#include "support/tensors.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

// SplitMix64: a few instructions a word, because tests fill and compare gigabytes.
class Words {
 public:
  explicit Words(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t word = state_ += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
  }

 private:
  std::uint64_t state_;
};

// Calls use(offset, word, bytes) for each word of a tensor of `size` bytes until it returns false.
template <typename Use>
bool EachWord(Words& words, std::size_t size, Use use) {
  for (std::size_t at = 0; at < size; at += 8) {
    if (!use(at, words.Next(), std::min<std::size_t>(8, size - at))) return false;
  }
  return true;
}

}  // namespace

void Tensors::Fill(std::uint64_t seed) {
  Words words(seed);
  for (auto& memory : memory_) {
    EachWord(words, memory.size(), [&](std::size_t at, std::uint64_t word, std::size_t bytes) {
      std::memcpy(memory.data() + at, &word, bytes);
      return true;
    });
  }
}

bool Tensors::Holds(std::uint64_t seed) const {
  Words words(seed);
  return std::ranges::all_of(memory_, [&](const auto& memory) {
    return EachWord(words, memory.size(), [&](std::size_t at, std::uint64_t word, std::size_t bytes) {
      return std::memcmp(memory.data() + at, &word, bytes) == 0;
    });
  });
}

}  // namespace cairn
