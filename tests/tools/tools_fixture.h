#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "store/list.h"
#include "store/names.h"
#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {

/// The real command, with checkpoints of two steps and two ranks.
class ToolsTest : public ::testing::Test {
 protected:
  ToolsTest() {
    std::filesystem::create_directory(root_);
    weight_ = MakeTensor("layer.weight", DType::kF32, {300, 1000}, 1);
    bias_ = MakeTensor("layer.bias", DType::kBF16, {7}, 2);
    moment_ = MakeTensor("optimizer.moment", DType::kF32, {5000}, 3);
    Write(1000);
    Write(2000);
  }
  std::string Write(std::uint64_t step) {
    return WriteCheckpoint(
        root_,
        {.step = step,
         .shards = {
             {.tensors = {weight_, bias_}, .aliases = {{"head.weight", "layer.weight"}}, .values = {{"lr", 0.25}}},
             {.tensors = {moment_}, .values = {{"note", std::string("a\x1b[31m")}}}}});
  }
  [[nodiscard]] Ran Run(const std::vector<std::string>& arguments) const { return RunProgram(CAIRN_CLI, arguments); }
  [[nodiscard]] std::string StepFolder(std::uint64_t step) const { return root_ + "/" + StepName(step); }
  // Flips one bit of the last tensor of the step's first shard.
  void Damage(std::uint64_t step) const {
    const std::string path = StepFolder(step) + "/shard-00000.safetensors";
    std::string bytes = ReadWholeFile(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    WriteWholeFile(path, bytes);
  }
  [[nodiscard]] std::vector<std::uint64_t> StepsLeft() const {
    std::vector<std::uint64_t> steps;
    const auto list = ListCheckpoints(root_);
    EXPECT_TRUE(list.ok()) << list.status();
    for (const StoredCheckpoint& checkpoint : *list) steps.push_back(checkpoint.info.step);
    return steps;
  }

  TempDir directory_;
  const std::string root_ = directory_ / "run";
  SavedTensor weight_;
  SavedTensor bias_;
  SavedTensor moment_;
};

}  // namespace cairn
