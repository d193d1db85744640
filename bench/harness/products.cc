#include "bench/harness/products.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/harness/guarded.h"
#include "device.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSideOnGpu = 4096;
constexpr std::int64_t kSideOnCpu = 256;
// The measured time of as many products as it takes.
constexpr double kMeasured = 0.05;

class LibtorchProducts : public Products {
 public:
  explicit LibtorchProducts(bool cuda) : device_(trainer::PrepareDevice(cuda ? "cuda" : "cpu", 0)) {
    const std::int64_t side = cuda ? kSideOnGpu : kSideOnCpu;
    const at::TensorOptions options = at::TensorOptions().device(device_).dtype(cuda ? at::kBFloat16 : at::kFloat);
    left_ = at::randn({side, side}, options);
    right_ = at::randn({side, side}, options);
    out_ = at::empty_like(left_);
    Multiply(1);  // The first one loads code.
    // One of them may be held up by what else the machine does.
    seconds_of_one_ = std::min({MeasureOne(), MeasureOne(), MeasureOne()});
  }

  Status Run(double seconds) override {
    return Guarded("products", StatusCode::kInternal,
                   [&] { Multiply(std::max(1L, std::lround(seconds / seconds_of_one_))); });
  }

 private:
  double MeasureOne() {
    for (long count = 1;; count *= 2) {
      const auto began = Clock::now();
      Multiply(count);
      const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
      if (seconds >= kMeasured) return seconds / static_cast<double>(count);
    }
  }
  void Multiply(long count) {
    for (long i = 0; i < count; ++i) at::mm_out(out_, left_, right_);
    // On the CPU it has been done by now.
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  }

  const at::Device device_;
  at::Tensor left_;
  at::Tensor right_;
  at::Tensor out_;
  double seconds_of_one_ = 0;
};

}  // namespace

Result<std::unique_ptr<Products>> OpenProducts(bool cuda) {
  std::unique_ptr<Products> opened;
  Status status =
      Guarded("products", StatusCode::kUnsupported, [&] { opened = std::make_unique<LibtorchProducts>(cuda); });
  if (!status.ok()) return status;
  return opened;
}

}  // namespace cairn::bench
