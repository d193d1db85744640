#include <gtest/gtest.h>

#include "cairn/cairn.h"
#include "support/temp_dir.h"
#include "support/tensors.h"

namespace cairn {
namespace {

using namespace literals;

TEST(RoundTrip, RestoresEveryBitOfASaveThatIsDurable) {
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

}  // namespace
}  // namespace cairn
