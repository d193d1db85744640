// torch.save in a training loop, where there is libtorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "bench/strategies/torch_archive.h"
#include "bench/strategy_suite.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(TorchSave, StrategyTest, testing::Values("torch-save"),
                         [](const auto&) { return "TorchSave"; });
INSTANTIATE_TEST_SUITE_P(TorchSave, ResumeTest, testing::Values("torch-save"), [](const auto&) { return "TorchSave"; });

TEST(TorchArchiveTest, RefusesTensorsOfAnotherSize) {
  const TempDir directory;
  std::vector<std::byte> some(100);
  std::vector<std::byte> more(200);
  ASSERT_EQ(WriteTorchArchive(directory / "state.pt", 7, {MutableBytes(some), MutableBytes(more)}), Status::Ok());

  const Result<std::uint64_t> same = ReadTorchArchive(directory / "state.pt", {MutableBytes(some), MutableBytes(more)});
  const Status other = ReadTorchArchive(directory / "state.pt", {MutableBytes(some), MutableBytes(some)}).status();

  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(*same, 7U);
  EXPECT_EQ(other.code(), StatusCode::kCorrupt);
  EXPECT_THAT(other.message(), HasSubstr("tensor1: expected 100 bytes, found 200"));
}

}  // namespace
}  // namespace cairn::bench
