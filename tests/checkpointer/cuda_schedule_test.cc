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

constexpr std::uint64_t kMiB = 1 << 20;

Deadline Soon() { return Deadline::In(std::chrono::seconds(60)); }

std::vector<std::byte> Contents(std::size_t bytes, std::uint32_t step, std::uint32_t tensor) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(step * 16 + tensor));
}

// A model on one GPU, or on two, each with its stream: a large tensor of several chunks, small ones of odd sizes, and
// one with strides.
class Model {
 public:
  // With kernels one more tensor is transposed.
  Model(int gpus, bool kernels) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      std::string why_not;
      gpus_.push_back(CudaUnderTest::Make(why_not, gpu));
      EXPECT_NE(gpus_.back(), nullptr) << why_not;
      streams_.push_back(gpus_.back()->MakeStream());
    }
    for (const std::int64_t bytes : {1'500'000, 300'001, 3, 70'000}) Add(bytes, {bytes}, {});
    Add(100 * 512, {100, 300}, {512, 1});
    if (kernels) Add(250 * 300, {300, 250}, {1, 300});
  }

  const State& state() const { return state_; }
  const std::vector<Stream>& streams() const { return streams_; }
  // In the streams, as an optimizer's step does.
  void Write(std::uint32_t step) {
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      GpuOf(i).LaunchWrite(StreamOf(i), tensors_[i].at, Contents(tensors_[i].bytes, step, i));
    }
  }
  // Of a tensor with strides only the rows are compared.
  void Expect(std::uint32_t step) {
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) gpus_[gpu]->Synchronize(streams_[gpu]);
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
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
    EXPECT_EQ(state_.Add("tensor" + std::to_string(tensors_.size()), {.data = at,
                                                                      .dtype = DType::kU8,
                                                                      .shape = std::move(shape),
                                                                      .strides = std::move(strides),
                                                                      .device = StreamOf(i).device}),
              Status::Ok());
  }

  CudaUnderTest& GpuOf(std::size_t tensor) { return *gpus_[tensor % gpus_.size()]; }
  Stream StreamOf(std::size_t tensor) { return streams_[tensor % streams_.size()]; }

  std::vector<std::unique_ptr<CudaUnderTest>> gpus_;
  std::vector<Stream> streams_;
  std::vector<Tensor> tensors_;
  State state_;
};

struct Machine {
  std::string name;
  int gpus = 1;
  std::uint64_t pool = 0;
  std::uint64_t staging = 0;

  friend std::ostream& operator<<(std::ostream& out, const Machine& machine) { return out << machine.name; }
};

Options OptionsFor(const std::string& root, const Machine& machine) {
  return {.root = root,
          .keep_last = 0,
          .max_in_flight = 2,
          .host_memory_bytes = machine.pool,
          .chunk_bytes = kMiB,
          .queue_depth = 2,
          .worker_threads = 1,
          .staging_bytes = machine.staging,
          .cuda_devices = {0}};
}

class CudaSchedule : public testing::TestWithParam<Machine> {
 protected:
  void Run(std::uint64_t seed) {
    fake_cuda::Reset();
    fake_cuda::SetSchedule(seed);
    const bool kernels = seed % 2 == 0;
    if (kernels) fake_cuda::DefineCairnsKernels();
    Model model(GetParam().gpus, kernels);
    const TempDir directory;
    auto opened = Checkpointer::Open(OptionsFor(directory / "run", GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const std::unique_ptr<Checkpointer> checkpointer = *std::move(opened);
    const auto fence = [&] {
      for (const Stream stream : model.streams()) ASSERT_EQ(checkpointer->Fence(stream, Soon()), Status::Ok());
    };

    for (std::uint32_t step = 1; step <= 2; ++step) {
      fence();
      model.Write(step);
      const auto save = checkpointer->Save(step, model.state(), {.streams = model.streams()});
      ASSERT_TRUE(save.ok()) << save.status();
    }
    fence();
    model.Write(9);
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

    for (std::uint32_t step = 1; step <= 2; ++step) {
      model.Write(10 + step);
      const auto restored = checkpointer->Restore(Step(step), model.state(), {.streams = model.streams()});
      ASSERT_TRUE(restored.ok()) << restored.status();
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

// A busy host may call them seconds late: whoever waits for copies alone must not feel it.
TEST(CudaLateHostFunctions, HoldTheSaveButNeitherTheFenceNorTheTrainersStream) {
  fake_cuda::Reset();
  const Machine machine{"", 2, 16 * kMiB, 0};
  {
    Model model(machine.gpus, false);
    const TempDir directory;
    auto opened = Checkpointer::Open(OptionsFor(directory / "run", machine));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const std::unique_ptr<Checkpointer> checkpointer = *std::move(opened);
    model.Write(1);
    fake_cuda::HoldHostFunctions();

    const auto save = checkpointer->Save(1, model.state(), {.streams = model.streams()});
    ASSERT_TRUE(save.ok()) << save.status();
    for (const Stream stream : model.streams()) ASSERT_EQ(checkpointer->Fence(stream, Soon()), Status::Ok());
    model.Write(2);
    model.Expect(2);
    EXPECT_LT(save->stats().phase, SavePhase::kCaptured);
    fake_cuda::ReleaseHostFunctions();

    EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
    EXPECT_TRUE(checkpointer->Restore(Latest(), model.state(), {.streams = model.streams()}).ok());
    model.Expect(1);
  }
  EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
  fake_cuda::Reset();
}

INSTANTIATE_TEST_SUITE_P(
    Machine, CudaSchedule,
    testing::Values(Machine{"pool_of_the_state", 1, 16 * kMiB, 0}, Machine{"small_pool", 1, 2 * kMiB, 0},
                    Machine{"staged", 1, 2 * kMiB, 8 * kMiB}, Machine{"staged_in_part", 1, 2 * kMiB, 2 * kMiB},
                    Machine{"two_gpus", 2, 16 * kMiB, 0}, Machine{"two_gpus_staged_in_part", 2, 2 * kMiB, 1 * kMiB}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cairn
