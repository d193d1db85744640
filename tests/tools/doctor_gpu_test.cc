// `cairn doctor --gpu`, on the test double of CUDA's driver, which has two GPUs of 256 MiB.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(DoctorGpu, WithoutAGpuSaysSoInOneLineAndFails) {
  const Ran ran = RunProgram("/usr/bin/env", {"CUDA_VISIBLE_DEVICES=", CAIRN_CLI, "doctor", "--gpu"});

  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_THAT(ran.out, IsEmpty());
  EXPECT_THAT(ran.err, HasSubstr("cairn: "));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
}

TEST(DoctorGpu, NeedsADirectoryOrTheFlag) {
  const Ran ran = RunProgram(CAIRN_CLI, {"doctor"});

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("expected a directory, or --gpu, or --peers"));
}

TEST(DoctorGpu, RefusesMemoryThatNoChunkHolds) {
  for (const std::string memory : {"1MiB", "2GiB"}) {
    const Ran ran = RunProgram(CAIRN_CLI, {"doctor", "--gpu", "--gpu-memory=" + memory});

    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, AllOf(HasSubstr("--gpu-memory: expected 4 MiB to 1 GiB"), HasSubstr(memory)));
  }
}

// `set` is how the double is to behave: see tests/device/fake_cuda.h.
Ran OnTheDouble(const std::vector<std::string>& arguments, const std::string& set = "FAKE_CUDA_KERNELS=1",
                const std::string& also = "FAKE_CUDA_BROKEN=") {
  std::vector<std::string> words{"LD_LIBRARY_PATH=" FAKE_CUDA, set, also, CAIRN_CLI, "doctor", "--gpu"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return RunProgram("/usr/bin/env", words);
}

std::map<std::string, nlohmann::json> ByName(const Ran& ran) {
  std::map<std::string, nlohmann::json> findings;
  for (const nlohmann::json& finding : ran.parsed()) findings[finding["name"]] = finding;
  return findings;
}

TEST(DoctorGpu, MeasuresEachGpu) {
  const Ran ran = OnTheDouble({"--gpu-memory=8MiB", "--probe-time=100ms", "--json"});

  ASSERT_TRUE(ran.code == 0) << ran.out << ran.err;
  std::map<std::string, nlohmann::json> findings = ByName(ran);
  for (const auto& [name, finding] : findings) {
    EXPECT_FALSE(finding["found"].get<std::string>().empty()) << finding;
    EXPECT_FALSE(finding["cost"].get<std::string>().empty()) << finding;
  }
  for (const std::string gpu : {"cuda:0", "cuda:1"}) {
    for (const std::string name : {" events", " round trip", " strides"}) {
      EXPECT_EQ(findings[gpu + name]["value"], true) << name;
    }
    for (const std::string name : {" one copy to the host", " one copy from the host", " lanes to the host",
                                   " lanes from the host", " staging", " pinning"}) {
      EXPECT_GT(findings[gpu + name]["value"], 0) << gpu << name;
    }
  }
  EXPECT_EQ(findings.size(), 18U);
}

TEST(DoctorGpu, WhatTheDriverDoesWrongIsNamedAndFails) {
  for (const auto& [broken, name] : {std::pair{"copies", "round trip"}, std::pair{"kernels", "strides"}}) {
    const Ran ran = OnTheDouble({"--gpu-memory=4MiB", "--probe-time=100ms", "--json"}, "FAKE_CUDA_KERNELS=1",
                                std::string("FAKE_CUDA_BROKEN=") + broken);

    EXPECT_EQ(ran.code, 1) << broken << ran.err;
    for (const std::string gpu : {"cuda:0 ", "cuda:1 "}) {
      EXPECT_EQ(ByName(ran)[gpu + name]["state"], "missing") << broken;
    }
  }
}

// Which check notices it depends on how the lanes happen to run.
TEST(DoctorGpu, StreamsThatWaitForNothingFail) {
  const Ran ran = OnTheDouble({"--gpu-memory=8MiB", "--probe-time=100ms", "--json"}, "FAKE_CUDA_KERNELS=1",
                              "FAKE_CUDA_BROKEN=events");

  EXPECT_EQ(ran.code, 1) << ran.out << ran.err;
}

TEST(DoctorGpu, KernelsThatDidNotRunProveNothing) {
  const Ran ran = OnTheDouble({"--gpu-memory=4MiB", "--probe-time=100ms", "--json"}, "FAKE_CUDA_BROKEN=");

  EXPECT_EQ(ran.code, 1) << ran.err;
  const nlohmann::json strides = ByName(ran)["cuda:0 strides"];
  EXPECT_EQ(strides["state"], "missing");
  EXPECT_THAT(strides["found"].get<std::string>(), HasSubstr("this GPU does not run Cairn's kernels"));
}

TEST(DoctorGpu, AlsoExaminesTheDirectoryThatIsGiven) {
  const TempDir root;

  const Ran ran = OnTheDouble({root.path(), "--gpu-memory=8MiB", "--probe-time=100ms"});

  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("O_DIRECT"), HasSubstr("ok       cuda:0 round trip"), HasSubstr("s/GiB")));
}

TEST(DoctorGpu, NamesTheMemoryThatIsLacking) {
  const Ran ran = OnTheDouble({"--gpu-memory=512MiB"});

  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_THAT(ran.out, Not(HasSubstr("cuda:0")));
  EXPECT_THAT(ran.err, HasSubstr("allocating 536870912 bytes of staging memory"));
}

}  // namespace
}  // namespace cairn
