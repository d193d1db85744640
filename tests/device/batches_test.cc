// How pieces are split into batches for devices with streams, with and without kernels.
#include <gtest/gtest.h>

#include <random>

#include "base/worker_pool.h"
#include "device/cuda_kernel_plan.h"
#include "device/device_contract.h"
#include "device/host_device.h"
#include "testing/forwarding_device.h"

namespace cairn {
namespace {

class WithKernels final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  [[nodiscard]] bool has_kernels() const override { return true; }
};

class Batches : public testing::Test {
 protected:
  // Contiguous pieces of these sizes, back to back.
  std::vector<CopyPiece> Pieces(const std::vector<std::uint64_t>& sizes) {
    std::vector<CopyPiece> pieces;
    std::byte* at = memory_.data();
    for (const std::uint64_t size : sizes) {
      pieces.push_back({&tensor_, 0, size, at});
      at += size;
    }
    return pieces;
  }
  static std::vector<std::size_t> Sizes(const std::vector<std::vector<CopyPiece>>& batches) {
    std::vector<std::size_t> sizes;
    for (const auto& batch : batches) sizes.push_back(batch.size());
    return sizes;
  }
  // How many operations the device would enqueue.
  static std::uint64_t Operations(std::vector<CopyPiece> pieces) {
    CopyBatch batch{.pieces = std::move(pieces)};
    const std::size_t launches = TakeForKernels(batch).size();
    return launches + batch.pieces.size();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1U << 20);
  StridedLayout tensor_ = Contiguous(memory_.data(), memory_.size());
  WorkerPool workers_{"workers", 1};
  std::shared_ptr<Device> copies_ =
      HostDevice::Make({.id = {DeviceKind::kCuda, 0}, .lanes = 1, .streams = true}, workers_);
  std::shared_ptr<Device> kernels_ = std::make_shared<WithKernels>(copies_);
};

TEST_F(Batches, WithoutKernelsEachPieceIsAnOperation) {
  EXPECT_EQ(Sizes(InBatches(*copies_, Pieces(std::vector<std::uint64_t>(300, 100)))),
            (std::vector<std::size_t>{128, 128, 44}));
}

TEST_F(Batches, SmallPiecesBackToBackAreFewOperationsOfKernels) {
  EXPECT_EQ(Sizes(InBatches(*kernels_, Pieces(std::vector<std::uint64_t>(8000, 100)))), std::vector<std::size_t>{8000});
}

TEST_F(Batches, RowsAtAnyPlaceAreOneOperationOfAKernel) {
  const StridedLayout rows = Rows(memory_.data(), 7, 10'000, 9);
  const CopyPiece piece{&rows, 0, 5, memory_.data(), 5000, 6, 5};

  EXPECT_EQ(Sizes(InBatches(*kernels_, {piece, piece})), std::vector<std::size_t>{2});
  EXPECT_GT(InBatches(*copies_, {piece, piece}).size(), 2U);
}

// Nothing is lost or reordered, and no batch has too many operations, whatever the mixture.
TEST_F(Batches, OfAnyMixtureHaveAtMostTheMostOperations) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint64_t> sizes(2000);
    const unsigned int large = 1 + random() % 9;
    for (std::uint64_t& size : sizes) size = random() % 10 < large ? 1 + random() % 50 : 0;
    std::vector<CopyPiece> pieces = Pieces(sizes);
    std::erase_if(pieces, [](const CopyPiece& piece) { return piece.begin == piece.end; });
    // Gaps in memory, and pieces that are not small, end a run.
    for (CopyPiece& piece : pieces) {
      if (random() % 20 == 0) piece.memory += 1;
      if (random() % 20 == 0) piece.end = piece.begin + (128U << 10);
    }

    std::vector<CopyPiece> joined;
    for (const std::vector<CopyPiece>& batch : InBatches(*kernels_, pieces)) {
      EXPECT_LE(Operations(batch), kMaxBatchOperations);
      joined.insert(joined.end(), batch.begin(), batch.end());
    }

    ASSERT_EQ(joined.size(), pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) ASSERT_EQ(joined[i].memory, pieces[i].memory);
  }
}

}  // namespace
}  // namespace cairn
