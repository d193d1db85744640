#include "advice/place/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Locations() {
  return json::parse(R"({
    "locations": [{"name": "oslo", "count": 2}, {"name": "rome", "count": 1}, {"name": "bonn", "count": 1, "domain": "eu"}],
    "within": {"delay_ms": 0.5, "bandwidth_gbps": 80},
    "pairs": [{"between": ["oslo", "rome"], "delay_ms": 20, "bandwidth_gbps": 8},
              {"between": ["bonn", "oslo"], "delay_ms": 10, "bytes_per_second": 2e9},
              {"between": ["rome", "bonn"], "delay_ms": 5, "bandwidth_gbps": 4}],
    "stages": 2, "gradient_bytes": 1e9, "activation_bytes": 5e8, "state_bytes": 4e9})");
}

json Matrices() {
  return json::parse(R"({
    "devices": [{"name": "a", "domain": "x"}, {"name": "b", "domain": "x"}, {"name": "c"}],
    "delay_ms": [[null, 1, 2], [1, null, 3], [2, 3, null]],
    "bytes_per_second": [[0, 1e9, 2e9], [1e9, 0, 4e9], [2e9, 4e9, 0]],
    "state_bytes": 1e9})");
}

Topology Read(const json& text) {
  const Result<Topology> topology = ParseTopology(text.dump(), "net.json");
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

void ExpectRefused(const std::string& text, const std::string& why) {
  const Result<Topology> topology = ParseTopology(text, "net.json");
  EXPECT_EQ(topology.status().code(), StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(topology.status().message(), HasSubstr(why));
}

void ExpectRefused(const json& text, const std::string& why) { ExpectRefused(text.dump(), "net.json: " + why); }

/// `text` with the value at the JSON pointer changed.
json With(json text, const std::string& pointer, json value) {
  text[json::json_pointer(pointer)] = std::move(value);
  return text;
}

json Without(json text, const std::string& name) {
  text.erase(name);
  return text;
}

TEST(Topology, LocationsHaveLinksWithinAndBetween) {
  const Topology topology = Read(Locations());

  const Network& network = topology.network;
  ASSERT_EQ(network.devices(), 4);
  EXPECT_EQ(network.name(0), "oslo/0");
  EXPECT_EQ(network.name(2), "rome");
  EXPECT_THAT(network.domain_names(), ElementsAre("oslo", "rome", "eu"));
  EXPECT_EQ(network.domain(0), network.domain(1));
  EXPECT_DOUBLE_EQ(network.Seconds(0, 1, 1e9), 0.0005 + 0.1);
  EXPECT_DOUBLE_EQ(network.Seconds(1, 2, 1e9), 0.02 + 1);
  EXPECT_DOUBLE_EQ(network.Seconds(2, 1, 1e9), 0.02 + 1);
  EXPECT_DOUBLE_EQ(network.Seconds(3, 0, 1e9), 0.01 + 0.5);
  EXPECT_EQ(topology.job->stages, 2);
  EXPECT_EQ(topology.job->gradient_bytes, 1e9);
  EXPECT_EQ(topology.job->activation_bytes, 5e8);
  EXPECT_EQ(topology.state_bytes, 4e9);
}

TEST(Topology, MatricesHaveALinkForEachPair) {
  const Topology topology = Read(Matrices());

  const Network& network = topology.network;
  EXPECT_EQ(network.domain(0), network.domain(1));
  EXPECT_EQ(network.domain_names()[network.domain(2)], "c");
  EXPECT_DOUBLE_EQ(network.Seconds(0, 2, 1e9), 0.002 + 0.5);
  EXPECT_DOUBLE_EQ(network.Seconds(2, 1, 1e9), 0.003 + 0.25);
  EXPECT_FALSE(topology.job.has_value());
}

TEST(Topology, ThePresentPlacementIsRead) {
  const json current = json::parse(R"([["bonn", "oslo/1"], ["oslo/0", "rome"]])");

  const Topology topology = Read(With(Locations(), "/current", current));

  EXPECT_THAT(*topology.current, ElementsAre(ElementsAre(3, 1), ElementsAre(0, 2)));
  ExpectRefused(With(Locations(), "/current", json::parse(R"([["bonn", "oslo/1"], ["bonn", "rome"]])")),
                "current[1][0]: expected each device once, found \"bonn\"");
  ExpectRefused(With(Locations(), "/current", json::parse(R"([["bonn", "oslo/9"], ["oslo/0", "rome"]])")),
                "current[0][1]: expected the name of a device, found \"oslo/9\"");
  ExpectRefused(With(Locations(), "/current", json::parse(R"([["bonn"], ["oslo/0", "rome"]])")),
                "current[0]: expected 2 devices, found 1");
}

TEST(Topology, WhatIsNotJsonIsNamedWithItsPlace) {
  ExpectRefused(std::string("{\"stages\": 2,"),
                "net.json: expected JSON, found: [json.exception.parse_error.101] parse error at");
  ExpectRefused(std::string(), "net.json: expected JSON");
  ExpectRefused(std::string("\xff"), "net.json: expected JSON");
  ExpectRefused(std::string("{\"state_bytes\": 1e999}"),
                "net.json: expected JSON, found: [json.exception.out_of_range");
  ExpectRefused(std::string("[]"), "net.json: expected an object, found []");
  ExpectRefused(std::string(R"({"devices": [], "devices": []})"), "net.json: the member \"devices\" is there twice");
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  ExpectRefused("{\"locations\": " + deep + "}",
                "net.json: expected at most 100 levels of lists and objects, found more");
  ExpectRefused(With(Locations(), "/locations/0/name", {{"a]\\\"", "["}}),
                "locations[0].name: expected a name, found {");
}

TEST(Topology, AHoleIsNamed) {
  ExpectRefused(With(Matrices(), "/delay_ms/1/2", nullptr),
                "delay_ms[1][2] (b to c): expected a number from 0 to 1e+09, found null");
  ExpectRefused(With(Matrices(), "/delay_ms/1", {1, nullptr}), "delay_ms[1]: expected 3 numbers, found 2");
  ExpectRefused(With(Matrices(), "/bytes_per_second", {{0, 1, 1}, {1, 0, 1}}),
                "bytes_per_second: expected 3 rows, found 2");
  json pairs = Locations();
  pairs["pairs"].erase(1);
  ExpectRefused(pairs, "pairs: expected one between oslo and bonn, found none");
  ExpectRefused(Without(Locations(), "pairs"), "locations: beside them, expected either across or pairs, found none");
  ExpectRefused(Without(Locations(), "within"), "within: expected an object, found nothing");
  ExpectRefused(Without(Matrices(), "delay_ms"), "delay_ms: expected a list of rows, found nothing");
  ExpectRefused(Without(Matrices(), "bytes_per_second"),
                "expected either bandwidth_gbps or bytes_per_second, found none");
}

TEST(Topology, AnAsymmetricLinkIsNamed) {
  ExpectRefused(With(Matrices(), "/delay_ms/2/1", 4),
                "delay_ms[2][1] (c to b): expected the same number as in the other direction, found 4 and 3");
  ExpectRefused(With(Matrices(), "/bytes_per_second/0/2", 1e9), "bytes_per_second[2][0] (c to a): expected the same");
  json pairs = Locations();
  pairs["pairs"].push_back(pairs["pairs"][0]);
  ExpectRefused(pairs, "pairs[3].between: expected each pair once, found [\"oslo\",\"rome\"]");
}

TEST(Topology, ANumberOutOfRangeIsNamed) {
  ExpectRefused(With(Matrices(), "/delay_ms/0/1", -1), "delay_ms[0][1] (a to b): expected a number from 0");
  ExpectRefused(With(Matrices(), "/bytes_per_second/0/1", 0),
                "bytes_per_second[0][1] (a to b): expected at least 1 byte per second, found 0");
  ExpectRefused(With(Locations(), "/pairs/0/bandwidth_gbps", -8), "pairs[0].bandwidth_gbps: expected a number from 0");
  ExpectRefused(With(Locations(), "/within/delay_ms", "1"), "within.delay_ms: expected a number");
  ExpectRefused(With(Locations(), "/gradient_bytes", -1), "gradient_bytes: expected a number from 0");
  ExpectRefused(With(Locations(), "/stages", 0), "stages: expected a whole number from 1 to 12, found 0");
  ExpectRefused(With(Locations(), "/stages", 2.5), "stages: expected a whole number");
  ExpectRefused(With(Locations(), "/stages", 3), "stages: expected a divisor of the 4 devices, found 3");
  ExpectRefused(With(Locations(), "/locations/0/count", 0),
                "locations[0].count: expected a whole number from 1 to 512");
  ExpectRefused(With(Locations(), "/locations/0/count", 511), "locations: expected 2 to 512 devices, found 513");
}

TEST(Topology, ANameThatIsUnknownOrThereTwiceIsNamed) {
  ExpectRefused(With(Locations(), "/bandwith", 1), "bandwith: unknown; expected across, activation_bytes, current");
  ExpectRefused(With(Locations(), "/pairs/0/bandwidth", 1), "pairs[0].bandwidth: unknown");
  ExpectRefused(With(Locations(), "/pairs/0/between/1", "pisa"),
                "pairs[0].between[1]: expected the name of a location, found \"pisa\"");
  ExpectRefused(With(Locations(), "/pairs/0/between/1", "oslo"), "pairs[0].between: expected two locations");
  ExpectRefused(With(Locations(), "/locations/1/name", "oslo"), "locations[1].name: expected each location once");
  ExpectRefused(With(Matrices(), "/devices/1/name", "a"), "devices[1]: the device a is there twice");
  ExpectRefused(With(Matrices(), "/devices/1/name", ""), "devices[1].name: expected a name, found \"\"");
  ExpectRefused(With(Locations(), "/across", Locations()["within"]), "locations: beside them, expected either");
  ExpectRefused(With(Matrices(), "/bandwidth_gbps", Matrices()["bytes_per_second"]),
                "expected either bandwidth_gbps or bytes_per_second, found both");
}

TEST(Topology, AFileThatAsksForNothingIsRefused) {
  ExpectRefused(Without(Matrices(), "state_bytes"), "expected stages (a placement), state_bytes (partners) or both");
  ExpectRefused(With(Matrices(), "/gradient_bytes", 5), "gradient_bytes: expected stages beside it, found 5");
  ExpectRefused(Without(Locations(), "activation_bytes"), "activation_bytes: expected beside stages, found nothing");
}

}  // namespace
}  // namespace cairn
