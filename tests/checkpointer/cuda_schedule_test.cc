// Saves, fences and restores of GPU tensors through the CUDA code, on the driver's double, in many of the orders in
// which the streams may run: no save may mix two steps, and nothing may be done that the real driver would punish.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "support/sanitizer.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::IsEmpty;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr std::uint64_t kMiB = 1 << 20;

Deadline Soon() { return Deadline::In(std::chrono::seconds(60)); }

std::vector<std::byte> Contents(std::size_t bytes, std::uint32_t step, std::uint32_t tensor) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(step * 16 + tensor));
}

// A model on GPU 0: a large tensor of several chunks, small ones of odd sizes, and one with strides.
class Model {
 public:
  explicit Model(CudaUnderTest& cuda) : cuda_(cuda) {
    for (const std::int64_t bytes : {1'500'000, 300'001, 3, 70'000}) Add(bytes, {bytes}, {});
    Add(100 * 512, {100, 300}, {512, 1});
  }

  const State& state() const { return state_; }
  // In the stream, as an optimizer's step does.
  void Write(Stream stream, std::uint32_t step) {
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      cuda_.LaunchWrite(stream, tensors_[i].at, Contents(tensors_[i].bytes, step, i));
    }
  }
  // Of a tensor with strides only the rows are compared.
  void Expect(std::uint32_t step) {
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      const std::vector<std::byte> found = cuda_.ReadTensor(tensor.at, tensor.bytes);
      const std::vector<std::byte> expected = Contents(tensor.bytes, step, i);
      for (std::size_t row = 0; row < tensor.bytes; row += tensor.pitch) {
        ASSERT_EQ(std::memcmp(&found[row], &expected[row], tensor.width), 0)
            << "tensor " << i << " after step " << step << ", byte " << row;
      }
    }
  }

 private:
  struct Tensor {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    std::size_t width = 0;
    std::size_t pitch = 0;
  };

  void Add(std::int64_t bytes, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    const auto size = static_cast<std::size_t>(bytes);
    std::byte* const at = cuda_.MakeTensor(std::vector<std::byte>(size));
    tensors_.push_back({.at = at, .bytes = size, .width = size, .pitch = size});
    if (shape.size() == 2) {
      tensors_.back().width = static_cast<std::size_t>(shape[1]);
      tensors_.back().pitch = static_cast<std::size_t>(strides[0]);
    }
    EXPECT_EQ(state_.Add("tensor" + std::to_string(tensors_.size()), {.data = at,
                                                                      .dtype = DType::kU8,
                                                                      .shape = std::move(shape),
                                                                      .strides = std::move(strides),
                                                                      .device = kGpu}),
              Status::Ok());
  }

  CudaUnderTest& cuda_;
  std::vector<Tensor> tensors_;
  State state_;
};

struct Memory {
  std::string name;
  std::uint64_t pool = 0;
  std::uint64_t staging = 0;

  friend std::ostream& operator<<(std::ostream& out, const Memory& memory) { return out << memory.name; }
};

class CudaSchedule : public testing::TestWithParam<Memory> {
 protected:
  void Run(std::uint64_t seed) {
    fake_cuda::Reset();
    fake_cuda::SetSchedule(seed);
    std::string why_not;
    const std::unique_ptr<CudaUnderTest> cuda = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda, nullptr) << why_not;
    Model model(*cuda);
    const Stream stream = cuda->MakeStream();
    const TempDir directory;
    auto opened = Checkpointer::Open({.root = directory / "run",
                                      .keep_last = 0,
                                      .max_in_flight = 2,
                                      .host_memory_bytes = GetParam().pool,
                                      .chunk_bytes = kMiB,
                                      .queue_depth = 2,
                                      .worker_threads = 1,
                                      .staging_bytes = GetParam().staging,
                                      .cuda_devices = {0}});
    ASSERT_TRUE(opened.ok()) << opened.status();
    const std::unique_ptr<Checkpointer> checkpointer = *std::move(opened);

    for (std::uint32_t step = 1; step <= 2; ++step) {
      ASSERT_EQ(checkpointer->Fence(stream, Soon()), Status::Ok());
      model.Write(stream, step);
      const auto save = checkpointer->Save(step, model.state(), {.streams = {stream}});
      ASSERT_TRUE(save.ok()) << save.status();
    }
    ASSERT_EQ(checkpointer->Fence(stream, Soon()), Status::Ok());
    model.Write(stream, 9);
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

    for (std::uint32_t step = 1; step <= 2; ++step) {
      model.Write(stream, 10 + step);
      const auto restored = checkpointer->Restore(Step(step), model.state(), {.streams = {stream}});
      ASSERT_TRUE(restored.ok()) << restored.status();
      cuda->Synchronize(stream);
      model.Expect(step);
    }
  }
};

TEST_P(CudaSchedule, SavesMixNoStepsAndRestoresAreExact) {
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 4 : 20); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Run(seed);
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    EXPECT_EQ(fake_cuda::BlockedLaunches(), 0);
    EXPECT_EQ(fake_cuda::LiveObjects(), 0);
    if (HasFailure()) break;
  }
  fake_cuda::Reset();
}

INSTANTIATE_TEST_SUITE_P(Memory, CudaSchedule,
                         testing::Values(Memory{"pool_of_the_state", 16 * kMiB, 0}, Memory{"small_pool", 2 * kMiB, 0},
                                         Memory{"staged", 2 * kMiB, 8 * kMiB},
                                         Memory{"staged_in_part", 2 * kMiB, 2 * kMiB}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cairn
