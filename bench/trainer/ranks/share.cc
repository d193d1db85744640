#include "ranks/share.h"

#include <utility>

namespace cairn::trainer {

Share NextShare(Sampler& sampler, std::uint64_t count, int rank, int world) {
  Share share;
  for (int other = 0; other < world; ++other) {
    const DataPosition from = sampler.position();
    std::vector<std::uint64_t> drawn = sampler.Next(count);
    if (other == rank) share = {std::move(drawn), from};
  }
  return share;
}

std::uint64_t SeedOf(const DataPosition& position) {
  // splitmix64's mixing, once for each number.
  std::uint64_t seed = 0;
  for (const std::uint64_t number : {position.shuffle_seed, position.epoch, position.position}) {
    seed += number + 0x9E3779B97F4A7C15ULL;
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBULL;
    seed ^= seed >> 31;
  }
  return seed;
}

}  // namespace cairn::trainer
