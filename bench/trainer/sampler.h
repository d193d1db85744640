#pragma once

#include <cstdint>
#include <vector>

namespace cairn::trainer {

/// Where training stands in its data. Part of every checkpoint.
struct DataPosition {
  std::uint64_t shuffle_seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;  ///< Samples of this epoch that were drawn already.
};

enum class Order : std::uint8_t {
  kShuffled,  ///< Anew in each epoch.
  kByNumber,  ///< For samples that continue each other.
};

/// Draws samples without replacement, epoch after epoch.
///
/// The order of an epoch follows from its number and the shuffle seed alone, the same on every machine: a DataPosition
/// is all that a resumed run needs so that no sample is seen twice or left out.
class Sampler {
 public:
  /// `samples` is the size of the data set, at least 1. Throws std::invalid_argument for a position outside it.
  Sampler(std::uint64_t samples, DataPosition start, Order order = Order::kShuffled);
  /// The next `count` samples' numbers; a batch may reach into the next epoch.
  std::vector<std::uint64_t> Next(std::uint64_t count);
  /// What was drawn so far.
  [[nodiscard]] const DataPosition& position() const { return at_; }

 private:
  void Shuffle();

  const Order kind_;
  DataPosition at_;
  std::vector<std::uint64_t> order_;  ///< This epoch's.
};

}  // namespace cairn::trainer
