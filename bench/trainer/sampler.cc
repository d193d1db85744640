#include "sampler.h"

#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace cairn::trainer {

Sampler::Sampler(std::uint64_t samples, DataPosition start, Order order) : kind_(order), at_(start), order_(samples) {
  if (samples == 0) throw std::invalid_argument("the data set has no samples");
  if (start.position > samples) {
    throw std::invalid_argument("data position " + std::to_string(start.position) + " is outside a data set of " +
                                std::to_string(samples) + " samples: was the checkpoint made with other data?");
  }
  Shuffle();
}

std::vector<std::uint64_t> Sampler::Next(std::uint64_t count) {
  std::vector<std::uint64_t> drawn;
  drawn.reserve(count);
  while (drawn.size() < count) {
    if (at_.position == order_.size()) {
      ++at_.epoch;
      at_.position = 0;
      Shuffle();
    }
    drawn.push_back(order_[at_.position++]);
  }
  return drawn;
}

void Sampler::Shuffle() {
  std::iota(order_.begin(), order_.end(), 0);
  if (kind_ == Order::kByNumber) return;
  // std::shuffle gives different results in different standard libraries.
  std::mt19937_64 engine(at_.shuffle_seed + 0x9E3779B97F4A7C15ULL * (at_.epoch + 1));
  for (std::uint64_t left = order_.size(); left > 1; --left) std::swap(order_[left - 1], order_[engine() % left]);
}

}  // namespace cairn::trainer
