// `cairn plan`: forecasts from shapes alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlanCommandTest : public ::testing::Test {
 protected:
  [[nodiscard]] static Ran Plan(const std::string& model, const std::string& from, const std::string& to,
                                const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"plan", model, "--from", from, "--to", to, "--gpus-per-host=4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(CAIRN_CLI, arguments);
  }
  [[nodiscard]] std::string Model(const json& model) const {
    std::string path = directory_ / "model.json";
    WriteWholeFile(path, model.is_string() ? model.get<std::string>() : model.dump());
    return path;
  }
  void ExpectRefused(const json& model, const std::string& why) const {
    const Ran ran = Plan(Model(model), "1,1,1", "1,1,1");
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_THAT(ran.err, HasSubstr("model.json" + why));
    EXPECT_THAT(ran.out, IsEmpty());
  }

  const std::string xl_ = CAIRN_EXAMPLES "/gpt3-xl.json";
  const json tensors_ = {
      {"layers", 2},
      {"tensors",
       {{{"name", "layer.{layer}.weight"}, {"dtype", "F32"}, {"shape", {4, 8}}, {"on", "layers"}, {"cut", 1}},
        {{"name", "norm"}, {"dtype", "BF16"}, {"shape", {8}}, {"on", "last"}}}}};
  TempDir directory_;
};

TEST_F(PlanCommandTest, ForecastsGpt3Xl) {
  const Ran ran = Plan(xl_, "4,2,2", "4,2,1", {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  const json out = ran.parsed();
  EXPECT_EQ(out["from"]["state_bytes"], 20'163'744'416);
  EXPECT_EQ(out["to"]["stage_bytes"], (json{5'813'933'000, 4'297'470'920, 4'297'470'920, 5'754'869'576}));
  EXPECT_EQ(out["ranks"].size(), 8U);
  EXPECT_EQ(out["shards"].size(), 16U);
  ASSERT_EQ(out["hosts"].size(), 2U);
  // The second stage; and the other two.
  EXPECT_EQ(out["hosts"][0]["absent_bytes"], 4'297'470'912);
  EXPECT_EQ(out["hosts"][1]["absent_bytes"], 4'297'470'912 + 5'754'869'568);
  // What the ranks hold but their four-byte loss scales.
  EXPECT_EQ(out["needed_bytes"], 20'163'744'416 - 8 * 4);
  std::uint64_t by_shard = 0;
  for (const json& shard : out["shards"]) by_shard += shard["read_bytes"].get<std::uint64_t>();
  EXPECT_EQ(out["read_bytes"], by_shard);
}

TEST_F(PlanCommandTest, KnowsPublishedModelsByName) {
  const Ran ran = Plan("gpt3-6.7b", "4,1,1", "2,1,1", {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  // Weights and two moments in fp32; and the word embeddings, with their padding, once more for the head.
  constexpr std::uint64_t kPadding = 47ULL * 4096;
  EXPECT_EQ(ran.parsed()["from"]["state_bytes"], (6'654'210'048 + kPadding + 50'304ULL * 4096) * 12);
  EXPECT_EQ(Plan("gpt3-xxl", "1,1,1", "1,1,1").code, 2);
  EXPECT_THAT(Plan("gpt3-xxl", "1,1,1", "1,1,1").err, HasSubstr("unknown model \"gpt3-xxl\"; there are vgg16, "));
}

TEST_F(PlanCommandTest, ForecastsListedTensors) {
  const Ran ran = Plan(Model(tensors_), "2,1,1", "1,2,1", {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  const json out = ran.parsed();
  EXPECT_EQ(out["from"]["stage_bytes"], (json{128, 144}));
  EXPECT_EQ(out["to"]["state_bytes"], 2 * 128 + 2 * 16);
  EXPECT_EQ(out["ranks"][1]["needed_bytes"], 128 + 16);
  // Half of each row; checksums cover whole rows.
  EXPECT_EQ(out["ranks"][1]["shards"][0]["needed_bytes"], 64);
  EXPECT_EQ(out["ranks"][1]["shards"][0]["read_bytes"], 128);
  EXPECT_EQ(out["between_rows_bytes"], 2 * 2 * 3 * 16);
}

TEST_F(PlanCommandTest, ForecastsTensorsWithoutElements) {
  json model = tensors_;
  model["tensors"].push_back({{"name", "empty"}, {"dtype", "F32"}, {"shape", {0, 8}}, {"on", "all"}, {"cut", 1}});

  const Ran ran = Plan(Model(model), "1,2,1", "1,4,1", {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.parsed()["ranks"][3]["needed_bytes"], 2 * 4 * 2 * 4 + 16);
}

TEST_F(PlanCommandTest, PrintsRanksShardsAndHosts) {
  const Ran ran = Plan(xl_, "4,2,1", "2,2,1");

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("4,2,1: 8 ranks, 20163744416 bytes of state in a replica"));
  for (const std::string table : {"\nRANK ", "\nSHARD ", "\nHOST "}) EXPECT_THAT(ran.out, HasSubstr(table));
}

TEST_F(PlanCommandTest, RefusesLayoutsByName) {
  EXPECT_THAT(Plan(xl_, "4,2", "1,1,1").err, HasSubstr(R"(--from: expected pipeline, tensor and data parallel ranks)"));
  EXPECT_THAT(Plan(xl_, "4,2,1", "4,0,1").err, HasSubstr(R"(found "4,0,1")"));
  EXPECT_THAT(Plan(xl_, "4,2,1", "5,1,1").err, HasSubstr("--to: expected stages of equal size, found 24 layers"));
  EXPECT_EQ(Plan(xl_, "4,2,1", "5,1,1").code, 2);
}

TEST_F(PlanCommandTest, RefusesModelsByFileAndMember) {
  const auto changed = [&](const std::string& member, const json& value) {
    json model = tensors_;
    model["tensors"][0][member] = value;
    return model;
  };
  ExpectRefused("{", ": expected JSON");
  ExpectRefused(json::array(), ": expected an object, found []");
  ExpectRefused({{"gpt", {{"layers", 2}}}}, ": gpt.hidden: expected a whole number from 1 to 16777216, found nothing");
  ExpectRefused({{"gpt", {{"layer", 2}}}}, ": gpt.layer: unknown; expected feed_forward, heads");
  ExpectRefused({{"layers", 2}}, ": tensors: expected a list of tensors, or \"gpt\", found nothing");
  ExpectRefused(changed("dtype", "F31"),
                ": tensors[0].dtype: expected a dtype such as \"BF16\" or \"F32\", found \"F31\"");
  ExpectRefused(changed("shape", {4, -1}), ": tensors[0].shape[1]: expected a whole number");
  ExpectRefused(changed("on", "middle"), ": tensors[0].on: expected \"layers\"");
  ExpectRefused(changed("on", "first"), ": tensors[0].name: expected no {layer} in it");
  ExpectRefused(changed("cut", 2), ": tensors[0].cut: expected a whole number from 0 to 1, found 2");
  json twice = tensors_;
  twice["tensors"][1] = twice["tensors"][0];
  ExpectRefused(twice, ": tensors[1]: \"layer.0.weight\" is there twice");
  json same_name = tensors_;
  same_name["tensors"][1]["name"] = "layer.1.weight";
  ExpectRefused(same_name, ": tensors[1]: \"layer.1.weight\" is there twice");
  ExpectRefused(changed("name", "{layer}.padding-to-8"), ": tensors[0].name: expected none that padding has");
  ExpectRefused(R"({"layers": 1, "layers": 2, "tensors": []})", ": the member \"layers\" is there twice");
  EXPECT_THAT(Plan(directory_ / "none.json", "1,1,1", "1,1,1").err, HasSubstr("none.json: No such file or directory"));
  EXPECT_THAT(Plan(directory_.path(), "1,1,1", "1,1,1").err, HasSubstr("Is a directory"));
}

TEST_F(PlanCommandTest, RefusesModelsThatNoShardCanHold) {
  // Each has 2^60 bytes.
  json model = {{"layers", 20}, {"tensors", json::array()}};
  model["tensors"].push_back(
      {{"name", "{layer}"}, {"dtype", "F32"}, {"shape", {1 << 24, 1 << 24, 1 << 10}}, {"on", "layers"}});

  EXPECT_THAT(Plan(Model(model), "1,1,1", "1,1,1").err, HasSubstr("shard 0: expected at most 2^64 bytes, found more"));
}

TEST_F(PlanCommandTest, RefusesDeepJson) {
  const std::string deep(100'000, '[');
  const std::string end(100'000, ']');
  ExpectRefused(R"({"layers": 1, "tensors": )" + deep + end + "}",
                ": expected at most 100 levels of lists and objects, found more");
  ExpectRefused(deep + end, ": expected at most 100 levels of lists and objects, found more");
}

}  // namespace
}  // namespace cairn
