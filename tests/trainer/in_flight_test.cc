// Later training steps must not change a save in flight.
#include <gtest/gtest.h>

#include "cairn/cairn.h"
#include "testing/temp_dir.h"
#include "trainer/training_process.h"

namespace cairn::trainer {
namespace {

std::vector<std::uint16_t> MemoryOf(const std::string& root, const Selector& selector) {
  const auto reader = Checkpointer::Open({.root = root, .read_only = true, .host_memory_bytes = 64_MiB});
  if (!reader.ok()) {
    ADD_FAILURE() << reader.status();
    return {};
  }
  const std::vector<std::int64_t> shape = {2, 4, 128, 64};  // Layers, batch, memory, hidden.
  std::vector<std::uint16_t> memory(std::size_t{2} * 4 * 128 * 64);
  State state;
  const Status added = state.Add("memory", {.data = memory.data(), .dtype = DType::kBF16, .shape = shape});
  EXPECT_TRUE(added.ok()) << added;
  const auto restored = reader.value()->Restore(selector, state);
  EXPECT_TRUE(restored.ok()) << restored.status();
  return memory;
}

/// A Transformer-XL with many weights but little work: a save reads its masters and moments first, so it reads the
/// memory during the next step. The memory is too large to be copied in the call of Save.
std::vector<std::string> Arguments(const std::string& root, const std::string& steps) {
  return {"--model",          "transformer-xl-base",
          "--data",           "synthetic",
          "--sequence",       "4",
          "--steps",          steps,
          "--optimizer",      "adamw",
          "--precision",      "bf16",
          "--every",          "1",
          "--in-flight",      "3",
          "--keep",           "0",
          "--host-memory",    "32MiB",
          "--checkpoint-dir", root,
          "--size",           "hidden=64",
          "layers=2",         "heads=4",
          "head_size=16",     "ffn=64",
          "memory=128",       "vocabulary=200000",
          "cutoff1=256",      "cutoff2=257"};
}

TEST(SaveInFlight, KeepsTheMemoryOfItsStep) {
  const TempDir root;
  TrainingProcess going_on(Arguments(root / "going-on", "4"));
  ASSERT_EQ(going_on.Finish(), 0) << going_on.output();

  for (const std::uint64_t step : {1, 2, 3}) {
    const std::string alone = root / "to-" + std::to_string(step);
    TrainingProcess ending(Arguments(alone, std::to_string(step)));
    ASSERT_EQ(ending.Finish(), 0) << ending.output();

    const auto kept = MemoryOf(root / "going-on", Step(step));
    EXPECT_EQ(kept, MemoryOf(alone, Step(step))) << "step " << step;
    EXPECT_NE(kept, MemoryOf(root / "going-on", Step(step + 1))) << "the next step has the same";
  }
}

}  // namespace
}  // namespace cairn::trainer
