// Options::gpu_checksums, on the driver's test double, which runs the kernel's source: what is summed where, and what
// the sums then find.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/wiring.h"
#include "cairn/cairn.h"
#include "device/cuda_device.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "device/sum_kernel.h"
#include "support/patience.h"
#include "testing/forwarding_device.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::HasSubstr;
using testing::IsEmpty;

// Flips a bit of each chunk once it is on the host: after a GPU's sum, and before the host's.
class FlippingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Copy(CopyBatch batch, CopyDone done) override {
    std::byte* const at = batch.pieces.back().memory;
    return ForwardingDevice::Copy(std::move(batch), [at, done = std::move(done)](Status status) {
      *at ^= std::byte{0x10};
      done(std::move(status));
    });
  }
};

class GpuChecksums : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset();
    fake_cuda::DefineCairnsKernels();
    options_ = {.root = dir_ / "run",
                .on_event = [this](const Event& event) { events_.push_back(event); },
                .host_memory_bytes = 8_MiB,
                .chunk_bytes = 2_MiB,
                .queue_depth = 2,
                .cuda_devices = {0},
                .gpu_checksums = true};
  }
  void TearDown() override {
    checkpointer_.reset();
    cuda_.reset();
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    EXPECT_EQ(fake_cuda::LiveObjects(), 0) << fake_cuda::DescribeLiveObjects();
    fake_cuda::Reset();
  }

  // Contiguous tensors of odd sizes and one of several chunks.
  void MakeState() {
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
    for (const std::int64_t bytes : {5'000'003, 1, 70'001, 3, 1'500'000, 17}) Add({bytes}, {});
  }
  void Add(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
    std::size_t storage = 1;
    std::uint64_t bytes = 1;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      storage = strides.empty() ? storage * static_cast<std::size_t>(shape[d])
                                : storage + static_cast<std::size_t>((shape[d] - 1) * strides[d]);
      bytes *= static_cast<std::uint64_t>(shape[d]);
    }
    std::byte* const at = cuda_->MakeTensor(Pattern(storage, 31 + static_cast<std::uint32_t>(names_)));
    AddView({.data = at, .dtype = DType::kU8, .shape = shape, .strides = strides, .device = {DeviceKind::kCuda, 0}});
    bytes_ += bytes;
  }
  void AddView(const TensorView& view) { ASSERT_EQ(state_.Add(fmt::format("t{}", names_++), view), Status::Ok()); }

  void Open(const Wiring& wiring = {}) {
    auto opened = Checkpointer::Open(options_, wiring);
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpointer_ = *std::move(opened);
  }
  SaveHandle Start() {
    auto save = checkpointer_->Save(++step_, state_, {.streams = {cuda_->MakeStream()}});
    EXPECT_TRUE(save.ok()) << save.status();
    return *std::move(save);
  }
  SaveStats Save() {
    const SaveHandle save = Start();
    EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
    return save.stats();
  }
  // As `cairn verify` does, which knows nothing of GPUs.
  Status Verify() { return checkpointer_->Verify(Latest()); }

  static Wiring Flipping(const Options& options) {
    Wiring wiring;
    wiring.cuda = [bytes = options.gpu_checksums ? options.chunk_bytes : 0](
                      DeviceId id, WorkerPool&) -> Result<std::unique_ptr<Device>> {
      auto made = MakeCudaDevice({.index = id.index, .sum_bytes = bytes, .sum_batches = 8});
      if (!made.ok()) return made.status();
      return std::unique_ptr<Device>(std::make_unique<FlippingDevice>(std::shared_ptr<Device>(*std::move(made))));
    };
    return wiring;
  }

  const TempDir dir_;
  std::vector<Event> events_;
  Options options_;
  std::unique_ptr<CudaUnderTest> cuda_;
  State state_;
  int names_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t step_ = 0;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(GpuChecksums, VerifyAsTheHostsDo) {
  MakeState();
  for (const std::uint64_t staging : {0_MiB, 4_MiB}) {
    options_.staging_bytes = staging;
    Open();

    EXPECT_EQ(Save().gpu_checksum_bytes, bytes_);

    EXPECT_EQ(Verify(), Status::Ok());
    EXPECT_THAT(events_, testing::Each(testing::Field(&Event::severity, Severity::kInfo)));
    checkpointer_.reset();
  }
}

TEST_F(GpuChecksums, AreTheHostsUnlessAsked) {
  MakeState();
  options_.gpu_checksums = false;
  Open();

  EXPECT_EQ(Save().gpu_checksum_bytes, 0U);
  EXPECT_EQ(Verify(), Status::Ok());
}

// Which bytes were wrong only in the host's memory.
TEST_F(GpuChecksums, FindABitFlippedBetweenTheGpuAndTheWrite) {
  MakeState();
  Open(Flipping(options_));

  // Of seven blocks the host compares one in each save: the first, then the last. Both have such a bit.
  const Status first = Start().WaitDurable(Soon());
  EXPECT_EQ(first.code(), StatusCode::kCorrupt);
  EXPECT_THAT(first.message(), HasSubstr("step 1: not committed: the GPU's checksum of bytes 0 to 1048576 is 0x"));
  EXPECT_EQ(Start().WaitDurable(Soon()).code(), StatusCode::kCorrupt);
  EXPECT_EQ(Verify().code(), StatusCode::kNotFound);

  // Then the last but one, which has none. The sums that are written find the others.
  EXPECT_EQ(Save().gpu_checksum_bytes, bytes_);
  EXPECT_EQ(Verify().code(), StatusCode::kCorrupt);

  checkpointer_.reset();
  options_.gpu_checksums = false;
  Open(Flipping(options_));
  Save();
  EXPECT_EQ(Verify(), Status::Ok()) << "the host sums up what it got";
}

TEST_F(GpuChecksums, AreWhatTheKernelComputed) {
  fake_cuda::DefineKernel("cairn_sum_slices",
                          {.argument_bytes = {sizeof(kernels::SumTable)}, .run = [](const auto&, void**) {}});
  MakeState();
  Open();

  EXPECT_EQ(Start().WaitDurable(Soon()).code(), StatusCode::kCorrupt);
}

TEST_F(GpuChecksums, WithoutKernelsTheHostComputesThemAndSaysWhy) {
  fake_cuda::Hide("cuModuleLoadData");
  MakeState();
  Open();

  EXPECT_EQ(Save().gpu_checksum_bytes, 0U);

  EXPECT_EQ(Verify(), Status::Ok());
  ASSERT_FALSE(events_.empty());
  EXPECT_EQ(events_.front().severity, Severity::kWarning);
  EXPECT_THAT(events_.front().message, HasSubstr("the host computes the checksums instead of cuda:0"));
  EXPECT_THAT(events_.front().message, HasSubstr("lacks the functions that load kernels"));
}

TEST_F(GpuChecksums, AKernelThatDoesNotLoadCostsOnlyTheSums) {
  MakeState();
  Add({300, 250}, {1, 300});
  fake_cuda::Fail("cuModuleLoadData", CUDA_ERROR_INVALID_PTX, 1);  // The kernels that copy are loaded before.
  Open();

  EXPECT_EQ(Save().gpu_checksum_bytes, 0U);
  EXPECT_EQ(Verify(), Status::Ok());
}

// Chunks of 2 MiB: the first two are of one contiguous tensor, the third also of others.
TEST_F(GpuChecksums, ChunksWithStridesOrCpuTensorsAreTheHosts) {
  MakeState();
  std::vector<std::byte> cpu = Pattern(99, 3);
  AddView({.data = cpu.data(), .dtype = DType::kU8, .shape = {99}});
  Add({300, 250}, {1, 300});
  Open();

  const SaveStats stats = Save();

  EXPECT_GT(stats.gpu_checksum_bytes, 0U);
  EXPECT_LT(stats.gpu_checksum_bytes, bytes_);
  EXPECT_EQ(stats.gpu_checksum_bytes % options_.chunk_bytes, 0U);
  EXPECT_EQ(Verify(), Status::Ok());
}

// Staging gathers them first.
TEST_F(GpuChecksums, StagedChunksHaveNoStrides) {
  MakeState();
  Add({300, 250}, {1, 300});
  options_.staging_bytes = 8_MiB;
  Open();

  EXPECT_EQ(Save().gpu_checksum_bytes, bytes_);
  EXPECT_EQ(Verify(), Status::Ok());
}

TEST_F(GpuChecksums, ThousandsOfTensorsInOneChunk) {
  MakeState();
  for (int i = 0; i < 3000; ++i) Add({1 + i % 97}, {});
  Open();

  EXPECT_EQ(Save().gpu_checksum_bytes, bytes_);
  EXPECT_EQ(Verify(), Status::Ok());
}

// Without the kernels that copy each tensor is an operation of its own.
TEST_F(GpuChecksums, AChunkOfSeveralBatchesIsTheHosts) {
  MakeState();
  for (int i = 0; i < 300; ++i) Add({1 + i % 97}, {});
  fake_cuda::Fail("cuModuleLoadData", CUDA_ERROR_INVALID_PTX);  // The kernel that sums is loaded after them.
  Open();

  const SaveStats stats = Save();

  EXPECT_GT(stats.gpu_checksum_bytes, 0U);
  EXPECT_LT(stats.gpu_checksum_bytes, bytes_);
  EXPECT_EQ(Verify(), Status::Ok());
}

TEST_F(GpuChecksums, ManySavesUseTheSamePlaces) {
  MakeState();
  options_.copy_streams = 3;
  options_.max_in_flight = 4;
  options_.keep_last = 0;
  Open();
  const Stream stream = cuda_->MakeStream();
  std::vector<SaveHandle> saves;
  for (int i = 0; i < 40; ++i) {
    auto save = checkpointer_->Save(++step_, state_, {.streams = {stream}});
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*std::move(save));
  }
  for (const SaveHandle& save : saves) {
    EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
    EXPECT_EQ(save.stats().gpu_checksum_bytes, bytes_);
    EXPECT_EQ(checkpointer_->Verify(Step(save.stats().step)), Status::Ok());
  }
}

TEST_F(GpuChecksums, NeedChecksums) {
  options_.checksums = false;
  EXPECT_EQ(Checkpointer::Open(options_).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
