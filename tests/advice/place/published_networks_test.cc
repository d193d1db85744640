// DT-FM's five networks of 64 devices (bench/data/README.md), and costs that others have computed for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "advice/place/search.h"
#include "advice/place/topology.h"
#include "support/points.h"

namespace cairn {
namespace {

using nlohmann::json;

json Published() { return json::parse(std::ifstream(std::string(CAIRN_BENCH_DATA) + "/dtfm.json")); }

/// A case of the file, as `cairn place` reads it.
Topology TopologyOf(const json& of, const json& parameters) {
  json topology{{"locations", json::array()},
                {"within", of["within"]},
                {"stages", parameters["stages"]},
                {"gradient_bytes", parameters["g_gigabytes"].get<double>() * 1e9},
                {"activation_bytes", parameters["a_gigabytes"].get<double>() * 1e9}};
  for (const json& one : of["locations"]) {
    topology["locations"].push_back({{"name", one["name"]}, {"count", one["count"]}});
  }
  if (of.contains("across")) topology["across"] = of["across"];
  for (const json& pair : of.value("pairs", json::array())) {
    topology["pairs"].push_back({{"between", {pair[0], pair[1]}}, {"delay_ms", pair[2]}, {"bandwidth_gbps", pair[3]}});
  }
  const Result<Topology> read = ParseTopology(topology.dump(), "dtfm.json");
  EXPECT_TRUE(read.ok()) << read.status();
  return *read;
}

Groups Assignment(const std::string& name) {
  if (name == "contiguous") return Contiguous(64, 8);
  if (name == "one_per_block") return OnePerBlock(64, 8);
  Groups scrambled(8);
  for (std::size_t k = 0; k < 64; ++k) scrambled[k / 8].push_back((37 * k + 11) % 64);
  return scrambled;
}

TEST(PublishedNetworks, EveryLinkIsRead) {
  const json published = Published();
  for (const json& of : published["cases"]) {
    const Topology topology = TopologyOf(of, published["parameters"]);
    double delays = 0;
    double gigabits = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        if (i == j) continue;
        const double delay = topology.network.Seconds(i, j, 0);
        delays += delay * 1e3;
        gigabits += 8e-9 / (topology.network.Seconds(i, j, 1) - delay);
      }
    }
    EXPECT_NEAR(delays, of["check"]["sum_delay_ms_off_diagonal"].get<double>(), 1e-6) << of["title"];
    EXPECT_NEAR(gigabits / of["check"]["sum_bandwidth_gbps_off_diagonal"].get<double>(), 1, 1e-6) << of["title"];
  }
}

TEST(PublishedNetworks, TheCostsAreTheGoldenOnes) {
  const json published = Published();
  for (const json& golden : published["golden"]) {
    const Topology topology = TopologyOf(published["cases"][golden[0].get<std::size_t>() - 1], published["parameters"]);

    const PlacementCost cost = PlacementModel(topology.network, *topology.job).Cost(Assignment(golden[1]));

    EXPECT_NEAR(cost.data, golden[2].get<double>(), 1e-11) << golden;
    EXPECT_NEAR(cost.pipeline, golden[3].get<double>(), 1e-11) << golden;
    EXPECT_NEAR(cost.total(), golden[4].get<double>(), 1e-11) << golden;
  }
  EXPECT_EQ(published["golden"].size(), 15);
}

/// The least total that `cairn place` may need: of the simple orders, or known to be better.
double Reachable(const Topology& topology, std::size_t number) {
  PlacementModel model(topology.network, *topology.job);
  // Network 2 has eight instances of four devices and 32 single ones. If four stages have a device of each instance,
  // three sends of the pipeline stay within instances.
  if (number == 2) return 7.28 + 2 * (3 * model.Send(0, 1) + 4 * model.Send(0, 63));
  return std::min(model.Cost(Contiguous(64, 8)).total(), model.Cost(OnePerBlock(64, 8)).total());
}

TEST(PublishedNetworks, TheSearchReachesTheLeastKnownCostWithoutTheSimpleOrders) {
  const json published = Published();
  Sample tried(5);
  for (const json& of : published["cases"]) {
    if (!tried.Takes()) continue;
    const std::size_t number = of["case"];
    const Topology topology = TopologyOf(of, published["parameters"]);

    const FoundPlacement found =
        SearchPlacement(topology.network, *topology.job, {.seed = 7, .evaluations = 10'000, .simple_orders = false});

    EXPECT_NEAR(found.cost.total(), Reachable(topology, number), 1e-9) << of["title"];
  }
}

}  // namespace
}  // namespace cairn
