#include "tune/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "device/host_device.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMiB = 1U << 20;
constexpr std::chrono::milliseconds kTime{200};

class MeasureTest : public ::testing::Test {
 protected:
  MeasureTest() : pool_(*BufferPool::Make(8 * kMiB, kMiB, 8)), tensor_(32 * kMiB, std::byte{1}) {}

  WorkerPool workers_{"test", 2};
  std::unique_ptr<BufferPool> pool_;
  std::vector<std::byte> tensor_;
};

TEST_F(MeasureTest, CopiesOfALimitedDeviceHaveItsRate) {
  for (const bool streams : {false, true}) {
    const auto time = std::make_shared<ModelledTime>();
    const auto device =
        HostDevice::Make({.lanes = 2, .streams = streams, .bytes_per_second = 400e6, .time = time}, workers_);

    const auto rate = ProbeCopy(*device, *pool_, tensor_, kTime, ModelledTime::Source(time));

    ASSERT_TRUE(rate.ok()) << rate.status();
    EXPECT_NEAR(rate->bytes_per_second, 400e6, 1);
    EXPECT_GT(rate->cpu_seconds_per_byte, 0);
    EXPECT_EQ(pool_->peak_bytes(), pool_->total_bytes());
  }
}

TEST_F(MeasureTest, TensorSmallerThanAChunkIsRefused) {
  const auto device = HostDevice::Make({}, workers_);

  EXPECT_EQ(ProbeCopy(*device, *pool_, MutableBytes(tensor_).first(kMiB - 1), kTime).status().code(),
            StatusCode::kInternal);
}

TEST_F(MeasureTest, ChecksumsHaveARate) {
  const auto rate = ProbeChecksum(workers_, *pool_, kTime);

  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_GT(rate->bytes_per_second, 0);
  EXPECT_GT(rate->cpu_seconds_per_byte, 0);
}

TEST(Measure, GivesRatesThatChooseAccepts) {
  const TempDir dir;

  const auto measured =
      Measure({.root = dir.path(), .disk = {.time = std::chrono::milliseconds(300), .file_bytes = 8 * kMiB}});

  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_TRUE(measured->sums_while_copying);
  EXPECT_EQ(measured->rates(false).checksum, 0) << "the copy includes it";
  EXPECT_FALSE(measured->io_queue_reason.empty());
  const auto choice = Choose({.goal = {.iteration_seconds = 1, .slowdown = 0.01, .mtbf_seconds = 3600},
                              .state_bytes = 100 * kMiB,
                              .memory_bytes = 1024 * kMiB,
                              .free_bytes = 1024 * 1024 * kMiB},
                             measured->rates(true));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Measure, RecycledFilesHaveTheRateOfExistingBlocks) {
  const Measured measured{.disk = {.shapes = {{4 * kMiB, 8, 2e9}, {4 * kMiB, 16, 2.2e9}}, .overwrite = 3e9}};

  EXPECT_EQ(measured.rates(false).shapes[0].write_rate, 2e9);
  EXPECT_NEAR(measured.rates(true).shapes[0].write_rate, 3e9, 1);
  EXPECT_NEAR(measured.rates(true).shapes[1].write_rate, 3.3e9, 1);
}

TEST(Measure, MissingDeviceIsAnError) {
  const TempDir dir;

  const auto measured = Measure({.root = dir.path(), .device = {DeviceKind::kCuda, 4000}});

  EXPECT_FALSE(measured.ok());
}

}  // namespace
}  // namespace cairn
