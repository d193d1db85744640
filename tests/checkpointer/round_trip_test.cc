#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

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

TEST(RoundTrip, LongValuesAreInTheData) {
  const TempDir dir;
  Tensors tensors = Tensors::Many(2, 1000);
  tensors.Fill(1);
  const std::string text = "[\"" + std::string(3_MiB, 'x') + "\\u0000\xc3\xa9\"]";
  ASSERT_TRUE(tensors.state().Set("log", Json{text}).ok());
  ASSERT_TRUE(tensors.state().Set("short", Json{"[1]"}).ok());
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  auto save = (*checkpointer)->Save(1, tensors.state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->WaitDurable().ok()) << save->status();

  Tensors fresh = Tensors::Many(2, 1000);
  const auto restored = (*checkpointer)->Restore(Latest(), fresh.state());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE(fresh.Holds(1));
  EXPECT_TRUE(restored->values == tensors.state().values());
  const auto details = (*checkpointer)->Inspect(Latest());
  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_TRUE(details->values.at(0) == tensors.state().values());
  EXPECT_EQ(details->tensors.size(), 2U);
  const std::filesystem::path folder = dir / "run/step-00000000000000000001";
  std::ifstream manifest(folder / "manifest.json");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(manifest), {}),
              testing::HasSubstr("\"required_features\":[\"long_values\"]"));
  std::fstream shard(folder / "shard-00000.safetensors", std::ios::in | std::ios::out);
  shard.seekp(-10, std::ios::end);
  shard.put('y');
  shard.close();
  EXPECT_EQ((*checkpointer)->Verify(Latest()).code(), StatusCode::kCorrupt);
  const Status damaged = (*checkpointer)->Restore(Latest(), fresh.state()).status();
  EXPECT_EQ(damaged.code(), StatusCode::kCorrupt);
  EXPECT_THAT(damaged.message(), testing::HasSubstr("value \"log\": expected the digest"));
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

TEST(RoundTrip, ElementsThatShareMemoryOrRunBackwardsAreSavedAndNotRestoredInto) {
  constexpr std::int64_t kMany = 300'000;
  std::vector<std::int32_t> memory(kMany + 10);
  std::iota(memory.begin(), memory.end(), 0);
  struct Case {
    std::string name;
    std::int64_t first;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
  };
  const std::vector<Case> cases = {{"expanded", 7, {kMany}, {0}},
                                   {"expanded rows", 0, {5, kMany}, {0, 1}},
                                   {"windows", 0, {10, kMany}, {1, 1}},
                                   {"reversed", kMany - 1, {kMany}, {-1}},
                                   {"reversed rows", kMany - 10, {kMany / 10, 10}, {-10, 1}},
                                   {"small", 3, {2, 2}, {0, -1}}};
  State state;
  for (const Case& one : cases) {
    const TensorView view{.data = &memory[one.first], .dtype = DType::kI32, .shape = one.shape, .strides = one.strides};
    ASSERT_TRUE(state.Add(one.name, view).ok()) << one.name;
  }
  const TempDir dir;
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  auto save = (*checkpointer)->Save(1, state);
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->WaitDurable().ok()) << save->status();

  State fresh;
  std::vector<std::vector<std::int32_t>> restored;
  for (const Case& one : cases) {
    std::int64_t elements = 1;
    for (const std::int64_t size : one.shape) elements *= size;
    restored.emplace_back(elements);
    ASSERT_TRUE(fresh.Add(one.name, {.data = restored.back().data(), .dtype = DType::kI32, .shape = one.shape}).ok());
  }
  ASSERT_TRUE((*checkpointer)->Restore(Latest(), fresh).ok());

  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    for (std::size_t at = 0; at < restored[i].size(); ++at) {
      std::int64_t element = one.first;
      auto left = static_cast<std::int64_t>(at);
      for (std::size_t d = one.shape.size(); d-- > 0; left /= one.shape[d]) {
        element += left % one.shape[d] * one.strides[d];
      }
      ASSERT_EQ(restored[i][at], memory[element]) << one.name << " " << at;
    }
  }
  const Status into = (*checkpointer)->Restore(Latest(), state).status();
  EXPECT_EQ(into.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(into.message(), ::testing::HasSubstr("tensor \"expanded\": its elements share memory or run backwards"));
}

}  // namespace
}  // namespace cairn
