#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "device/cuda_under_test.h"

namespace cairn {

/// A model on one GPU, or on two, each with its stream: a large tensor of several chunks, small ones of odd sizes, and
/// one with strides.
class CudaModel {
 public:
  /// With kernels one more tensor is transposed.
  CudaModel(int gpus, bool kernels) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      std::string why_not;
      gpus_.push_back(CudaUnderTest::Make(why_not, gpu));
      EXPECT_NE(gpus_.back(), nullptr) << why_not;
      streams_.push_back(gpus_.back()->MakeStream());
    }
    states_.resize(gpus_.size());
    for (const std::int64_t bytes : {1'500'000, 300'001, 3, 70'000}) Add(bytes, {bytes}, {});
    Add(100 * 512, {100, 300}, {512, 1});
    if (kernels) Add(250 * 300, {300, 250}, {1, 300});
  }

  [[nodiscard]] const State& state() const { return state_; }
  /// The tensors of one GPU.
  [[nodiscard]] const State& state_of(std::size_t gpu) const { return states_[gpu]; }
  [[nodiscard]] const std::vector<Stream>& streams() const { return streams_; }
  /// In the streams, as an optimizer's step does; on one GPU, or on all.
  void Write(std::uint32_t step, std::optional<std::size_t> gpu = {}) {
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      if (gpu && i % gpus_.size() != *gpu) continue;
      GpuOf(i).LaunchWrite(StreamOf(i), tensors_[i].at, Contents(tensors_[i].bytes, step, i));
    }
  }
  /// Of a tensor with strides only the rows are compared.
  void Expect(std::uint32_t step, std::optional<std::size_t> only = {}) {
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      if (!only || gpu == *only) gpus_[gpu]->Synchronize(streams_[gpu]);
    }
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      if (only && i % gpus_.size() != *only) continue;
      const Tensor& tensor = tensors_[i];
      const std::vector<std::byte> found = GpuOf(i).ReadTensor(tensor.at, tensor.bytes);
      const std::vector<std::byte> expected = Contents(tensor.bytes, step, i);
      for (std::size_t row = 0; row < tensor.bytes; row += tensor.pitch) {
        ASSERT_EQ(std::memcmp(&found[row], &expected[row], tensor.width), 0)
            << "tensor " << i << " after step " << step << ", byte " << row;
      }
    }
  }

 private:
  static std::vector<std::byte> Contents(std::size_t bytes, std::uint32_t step, std::uint32_t tensor) {
    return std::vector<std::byte>(bytes, static_cast<std::byte>(step * 16 + tensor));
  }

  struct Tensor {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    std::size_t width = 0;
    std::size_t pitch = 0;
  };

  void Add(std::int64_t bytes, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    const auto size = static_cast<std::size_t>(bytes);
    const std::size_t i = tensors_.size();
    std::byte* const at = GpuOf(i).MakeTensor(std::vector<std::byte>(size));
    tensors_.push_back({.at = at, .bytes = size, .width = size, .pitch = size});
    if (!strides.empty() && strides[0] > strides[1]) {
      tensors_.back().width = static_cast<std::size_t>(shape[1]);
      tensors_.back().pitch = static_cast<std::size_t>(strides[0]);
    }
    const TensorView view{.data = at,
                          .dtype = DType::kU8,
                          .shape = std::move(shape),
                          .strides = std::move(strides),
                          .device = StreamOf(i).device};
    const std::string name = "tensor" + std::to_string(tensors_.size());
    EXPECT_EQ(state_.Add(name, view), Status::Ok());
    EXPECT_EQ(states_[i % gpus_.size()].Add(name, view), Status::Ok());
  }

  CudaUnderTest& GpuOf(std::size_t tensor) { return *gpus_[tensor % gpus_.size()]; }
  Stream StreamOf(std::size_t tensor) { return streams_[tensor % streams_.size()]; }

  std::vector<std::unique_ptr<CudaUnderTest>> gpus_;
  std::vector<Stream> streams_;
  std::vector<Tensor> tensors_;
  State state_;
  std::vector<State> states_;
};

}  // namespace cairn
