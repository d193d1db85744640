#include <gtest/gtest.h>

#include <fstream>

#include "cairn/cairn.h"
#include "support/tensors.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;

TEST(RoundTrip, RestoresEveryBit) {
  const TempDir dir;
  Tensors tensors = Tensors::Many(7, 300'001);
  tensors.Add("empty", 0);
  tensors.Add("step", 1, DType::kI64);
  ASSERT_TRUE(tensors.state().Set("epoch", std::int64_t{3}).ok());
  tensors.Fill(1);
  {
    auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();

    auto save = (*checkpointer)->Save(1000, tensors.state());

    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_TRUE(save->WaitDurable().ok()) << save->status();
    EXPECT_EQ(save->stats().phase, SavePhase::kDurable);
  }

  Tensors fresh = Tensors::Many(7, 300'001);
  fresh.Add("empty", 0);
  fresh.Add("step", 1, DType::kI64);
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  auto restored = (*checkpointer)->Restore(Latest(), fresh.state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 1000U);
  EXPECT_TRUE(fresh.Holds(1));
  EXPECT_EQ(restored->values.at("epoch"), Value(std::int64_t{3}));
}

TEST(RoundTrip, IsExactAroundABlockBoundary) {
  for (const std::size_t bytes : {1_MiB - 1, 1_MiB, 1_MiB + 1, 2_MiB + 1}) {
    const TempDir dir;
    Tensors tensors;
    tensors.Add("t", bytes, DType::kU8);
    tensors.Fill(bytes);
    auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
    auto save = (*checkpointer)->Save(1, tensors.state());
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_TRUE(save->WaitDurable().ok()) << save->status();

    Tensors fresh;
    fresh.Add("t", bytes, DType::kU8);
    const auto restored = (*checkpointer)->Restore(Latest(), fresh.state());

    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_TRUE(fresh.Holds(bytes)) << bytes;
    std::fstream shard(dir / "run/step-00000000000000000001/shard-00000.safetensors", std::ios::in | std::ios::out);
    shard.seekg(-1, std::ios::end);
    const int last = shard.peek();
    shard.seekp(-1, std::ios::end);
    shard.put(static_cast<char>(last ^ 1));
    shard.close();
    EXPECT_EQ((*checkpointer)->Verify(Latest()).code(), StatusCode::kCorrupt) << bytes;
  }
}

}  // namespace
}  // namespace cairn
