#pragma once

#include <memory>

#include "bench/harness/training_loop.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Keeps a device busy as forward and backward do, by libtorch's matrix products in its current stream. [interface]
class Products {
 public:
  virtual ~Products() = default;
  /// As many products as take about so many seconds on an idle device, and waits for them.
  virtual Status Run(double seconds) = 0;
};
/// On the CPU, or on GPU 0, where nothing else may run yet: it measures how long a product takes. Unsupported in a
/// build without libtorch, or without a GPU that it can use.
[[nodiscard]] Result<std::unique_ptr<Products>> OpenProducts(bool cuda);

/// Forward and backward are matrix products, as many as would take the time of PacedCompute's wait: what slows the GPU
/// down makes the iteration longer. The update is PacedCompute's.
class ProductsCompute : public PacedCompute {
 public:
  /// All of them outlive it.
  ProductsCompute(const LoopSettings& settings, const LoopClock& clock, TrainingState& state, Products& products)
      : PacedCompute(settings, clock, state), settings_(settings), products_(products) {}
  Status Forward(double /*began*/) override {
    return products_.Run(settings_.iteration_seconds - settings_.update_seconds);
  }

 private:
  const LoopSettings& settings_;
  Products& products_;
};

}  // namespace cairn::bench
