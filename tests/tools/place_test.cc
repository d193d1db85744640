#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The real command on the topology that docs/planning.md prints.
class PlaceCommandTest : public ::testing::Test {
 protected:
  PlaceCommandTest() {
    const std::string page = ReadWholeFile(std::string(CAIRN_DOCS) + "/planning.md");
    const std::string begin = "```json\n";
    const std::size_t at = page.find(begin) + begin.size();
    printed_ = json::parse(page.substr(at, page.find("```", at) - at));
  }
  [[nodiscard]] Ran Place(const std::string& text, const std::vector<std::string>& more = {}) const {
    WriteWholeFile(path_, text);
    std::vector<std::string> arguments{"place", path_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(CAIRN_CLI, arguments);
  }

  json printed_;
  TempDir directory_;
  const std::string path_ = directory_ / "topology.json";
};

TEST_F(PlaceCommandTest, TheDocumentedTopologyIsPlaced) {
  const Ran ran = Place(printed_.dump(), {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  const json out = ran.parsed();
  EXPECT_EQ(out["devices"], 8);
  const json& placement = out["placement"];
  EXPECT_LE(placement["found"]["total_seconds"], placement["contiguous"]["total_seconds"]);
  EXPECT_LE(placement["found"]["total_seconds"], placement["one_per_block"]["total_seconds"]);
  std::set<std::string> placed;
  for (const json& stage : placement["stages"]) {
    EXPECT_EQ(stage.size(), 4);
    for (const json& device : stage) placed.insert(device);
  }
  EXPECT_EQ(placement["stages"].size(), 2);
  EXPECT_EQ(placed.size(), 8);
  const auto location = [](const json& name) { return name.get<std::string>().substr(0, 4); };
  for (const json& one : out["replicas"]["keepers"]) EXPECT_NE(location(one["device"]), location(one["keeper"]));
  EXPECT_EQ(out["replicas"]["losses"].size(), 3);
  // Half of oslo's replicas go to rome, at 1.1 Gbit/s.
  EXPECT_NEAR(out["replicas"]["replication_seconds"], 0.022 + 64 / 1.1, 1e-9);
}

TEST_F(PlaceCommandTest, ItIsPrintedAsText) {
  const Ran ran = Place(printed_.dump());

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("PLACEMENT"), HasSubstr("one_per_block"), HasSubstr("DEVICES, BY REPLICA"),
                             HasSubstr("KEEPER OF ITS REPLICA"), HasSubstr("replication takes 58.2 s"),
                             HasSubstr("LOST"), HasSubstr("rome/1")));
}

TEST_F(PlaceCommandTest, OnlyWhatTheFileAsksForIsComputed) {
  json only_replicas = printed_;
  for (const std::string name : {"stages", "gradient_bytes", "activation_bytes"}) only_replicas.erase(name);
  json only_placement = printed_;
  only_placement.erase("state_bytes");

  EXPECT_FALSE(Place(only_replicas.dump(), {"--json"}).parsed().contains("placement"));
  EXPECT_THAT(Place(only_placement.dump()).out, Not(HasSubstr("KEEPER")));
}

TEST_F(PlaceCommandTest, WhatTheCommandLineSaysPrecedesTheFile) {
  const json twice = Place(printed_.dump(), {"--json", "--state-bytes", "16GB"}).parsed();
  json network = printed_;
  for (const std::string name : {"stages", "gradient_bytes", "activation_bytes", "state_bytes"}) network.erase(name);
  const Ran job = Place(network.dump(), {"--json", "--stages=2", "--gradient-bytes=1.3GB", "--activation-bytes=200MB"});

  EXPECT_NEAR(twice["replicas"]["replication_seconds"], 0.022 + 128 / 1.1, 1e-9);
  ASSERT_EQ(job.code, 0) << job.err;
  EXPECT_EQ(job.parsed()["placement"], Place(printed_.dump(), {"--json"}).parsed()["placement"]);
  EXPECT_THAT(Place(network.dump(), {"--stages=2"}).err, HasSubstr("gradient_bytes: expected beside stages"));
  EXPECT_THAT(Place(network.dump(), {"--state-bytes=much"}).err, HasSubstr("--state-bytes"));
  EXPECT_THAT(Place("[]", {"--state-bytes=1GB"}).err, HasSubstr("expected an object"));
}

TEST_F(PlaceCommandTest, ThePresentPlacementIsPricedToo) {
  printed_["current"] = json::array(
      {json::array({"oslo/0", "rome/0", "oslo/1", "bonn/0"}), json::array({"oslo/2", "rome/1", "oslo/3", "bonn/1"})});

  const json placement = Place(printed_.dump(), {"--json"}).parsed()["placement"];

  EXPECT_GT(placement["current"]["total_seconds"], placement["found"]["total_seconds"]);
}

TEST_F(PlaceCommandTest, EqualSeedsGiveEqualOutput) {
  const std::string first = Place(printed_.dump(), {"--json", "--seed", "5", "--evaluations", "200"}).out;

  EXPECT_EQ(Place(printed_.dump(), {"--json", "--seed", "5", "--evaluations", "200"}).out, first);
  EXPECT_THAT(first, HasSubstr("\"seed\": 5"));
}

TEST_F(PlaceCommandTest, BadInputIsNamedWithFileAndPlace) {
  const auto refused = [&](const std::string& text, const std::string& why) {
    const Ran ran = Place(text);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_THAT(ran.err, AllOf(HasSubstr(path_), HasSubstr(why)));
    EXPECT_THAT(ran.out, IsEmpty());
  };
  refused("", "expected a topology, found an empty file");
  refused("not JSON", "expected JSON");
  printed_["pairs"][1]["bandwidth_gbps"] = -1;
  refused(printed_.dump(), "pairs[1].bandwidth_gbps: expected a number from 0");
  printed_["pairs"].erase(1);
  refused(printed_.dump(), "pairs: expected one between oslo and bonn, found none");

  const Ran absent = RunProgram(CAIRN_CLI, {"place", directory_ / "absent.json"});
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.err, HasSubstr("absent.json: No such file or directory"));
  EXPECT_THAT(RunProgram(CAIRN_CLI, {"place", directory_.path()}).err, HasSubstr("Is a directory"));
  EXPECT_EQ(Place(printed_.dump(), {"--evaluations", "0"}).code, 2);
}

TEST_F(PlaceCommandTest, ADomainThatIsTooLargeForReplicasIsNamed) {
  printed_["locations"][1]["domain"] = "oslo";

  const Ran ran = Place(printed_.dump());

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("expected at most half of the 8 devices in oslo, found 6"));
}

}  // namespace
}  // namespace cairn
