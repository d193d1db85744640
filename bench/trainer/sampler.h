#pragma once

#include <cstdint>
#include <vector>

namespace cairn::trainer {

/// The position of training in its data. Part of every checkpoint.
struct DataPosition {
  std::uint64_t shuffle_seed = 0;
  std::uint64_t epoch = 0;
  /// Number of samples already drawn in this epoch.
  std::uint64_t position = 0;
};

enum class Order : std::uint8_t {
  /// A new order in each epoch.
  kShuffled,
  /// For samples that continue one another.
  kByNumber,
};

/// Draws samples without replacement, epoch after epoch.
///
/// The order of an epoch depends only on its number and the shuffle seed, and is the same on every machine. So a
/// DataPosition is all that a resumed run needs to neither repeat nor skip a sample.
class Sampler {
 public:
  /// `samples` is the size of the data set, at least 1. Throws std::invalid_argument for a position outside it.
  Sampler(std::uint64_t samples, DataPosition start, Order order = Order::kShuffled);
  /// The numbers of the next `count` samples; a batch may extend into the next epoch.
  std::vector<std::uint64_t> Next(std::uint64_t count);
  /// The position after everything drawn so far.
  [[nodiscard]] const DataPosition& position() const { return at_; }

 private:
  void Shuffle();

  const Order kind_;
  DataPosition at_;
  /// The sample numbers of this epoch.
  std::vector<std::uint64_t> order_;
};

}  // namespace cairn::trainer
