#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "advice/input_file.h"
#include "advice/place/partners.h"
#include "advice/place/search.h"
#include "advice/place/topology.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/quantities.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

using Priced = std::vector<std::pair<std::string, PlacementCost>>;

struct Placed {
  /// The simple orders and the present one; their names are those of the JSON.
  Priced compared;
  PlacementCost cost;
  /// In the order of the pipeline.
  Groups stages;
  /// The compared one that is as good as the best found; empty if none is.
  std::string same_as;
};

/// Of a topology.
constexpr std::size_t kMostTopologyBytes = 64U << 20;

/// As many as take some seconds: pricing one takes about that many steps for its path and its matchings.
std::size_t UsualEvaluations(std::size_t devices, std::size_t stages) {
  const std::size_t replicas = devices / stages;
  const std::size_t steps = (std::size_t{1} << stages) * stages * stages + 20 * stages * replicas * replicas;
  return std::clamp<std::size_t>(1'000'000'000 / steps, 500, 50'000);
}

Placed FindPlace(const Topology& topology, const PlaceOptions& options) {
  const Network& network = topology.network;
  PlacementModel model(network, *topology.job);
  Placed placed;
  placed.compared = {{"contiguous", model.Cost(Contiguous(network.devices(), topology.job->stages))},
                     {"one_per_block", model.Cost(OnePerBlock(network.devices(), topology.job->stages))}};
  if (topology.current) placed.compared.emplace_back("current", model.Cost(*topology.current));
  const FoundPlacement found = SearchPlacement(
      network, *topology.job,
      {.seed = options.seed,
       .evaluations = options.evaluations.value_or(UsualEvaluations(network.devices(), topology.job->stages))},
      topology.current);
  placed.cost = found.cost;
  placed.stages = model.InOrder(found.groups);
  for (const auto& [name, cost] : placed.compared) {
    if (placed.same_as.empty() && cost.total() <= found.cost.total()) placed.same_as = name;
  }
  return placed;
}

// JSON.

json ToJson(const PlacementCost& cost) {
  return {{"data_seconds", cost.data}, {"pipeline_seconds", cost.pipeline}, {"total_seconds", cost.total()}};
}

json ToJson(const Network& network, const Placed& placed, std::uint64_t seed) {
  json out{{"found", ToJson(placed.cost)}, {"seed", seed}, {"stages", json::array()}};
  out["same_as"] = placed.same_as.empty() ? json(nullptr) : json(placed.same_as);
  for (const auto& [name, cost] : placed.compared) out[name] = ToJson(cost);
  for (const std::vector<std::size_t>& stage : placed.stages) {
    json names = json::array();
    for (const std::size_t device : stage) names.push_back(network.name(device));
    out["stages"].push_back(std::move(names));
  }
  return out;
}

json ToJson(const Network& network, const Partners& partners) {
  json keepers = json::array();
  for (std::size_t i = 0; i < network.devices(); ++i) {
    keepers.push_back({{"device", network.name(i)}, {"keeper", network.name(partners.keepers[i])}});
  }
  json losses = json::array();
  for (const DomainLoss& loss : partners.losses) {
    losses.push_back({{"domain", network.domain_names()[loss.domain]},
                      {"devices", loss.devices},
                      {"recovery_seconds", loss.recovery_seconds},
                      {"safe_again_seconds", loss.safe_again_seconds}});
  }
  return {{"replication_seconds", partners.replication_seconds}, {"keepers", keepers}, {"losses", losses}};
}

// Tables.

std::string Range(const std::vector<std::size_t>& devices, const Network& network) {
  std::vector<std::string> names;
  for (const std::size_t device : devices) names.push_back(Printable(network.name(device)));
  return fmt::format("{}", fmt::join(names, " "));
}

void Print(const Network& network, const Placed& placed) {
  std::vector<std::vector<std::string>> costs{{"PLACEMENT", "GRADIENTS", "PIPELINE, ONE WAY", "ITERATION"}};
  const auto add = [&](const std::string& name, const PlacementCost& cost) {
    costs.push_back({name, HumanSeconds(cost.data), HumanSeconds(cost.pipeline), HumanSeconds(cost.total())});
  };
  for (const auto& [name, cost] : placed.compared) add(name, cost);
  add(placed.same_as.empty() ? "found" : "found, no better than " + placed.same_as, placed.cost);
  PrintTable(costs);
  std::vector<std::vector<std::string>> stages{{"STAGE", "DEVICES, BY REPLICA"}};
  for (std::size_t p = 0; p < placed.stages.size(); ++p) {
    stages.push_back({fmt::to_string(p), Range(placed.stages[p], network)});
  }
  fmt::print("\n");
  PrintTable(stages);
}

void Print(const Network& network, const Partners& partners) {
  std::vector<std::vector<std::string>> keepers{{"DEVICE", "KEEPER OF ITS REPLICA"}};
  for (std::size_t i = 0; i < network.devices(); ++i) {
    keepers.push_back({Printable(network.name(i)), Printable(network.name(partners.keepers[i]))});
  }
  PrintTable(keepers);
  std::vector<std::vector<std::string>> losses{{"LOST", "DEVICES", "RECOVERED AFTER", "ALL REPLICATED AFTER"}};
  for (const DomainLoss& loss : partners.losses) {
    losses.push_back({Printable(network.domain_names()[loss.domain]), fmt::to_string(loss.devices),
                      HumanSeconds(loss.recovery_seconds), HumanSeconds(loss.safe_again_seconds)});
  }
  fmt::print("\nreplication takes {}\n\n", HumanSeconds(partners.replication_seconds));
  PrintTable(losses);
}

/// What the command line says about the job, by the names that the file would have.
Result<std::map<std::string, std::uint64_t>> GivenMembers(const PlaceOptions& options) {
  std::map<std::string, std::uint64_t> given;
  if (options.stages) given["stages"] = *options.stages;
  const std::array<std::array<std::string, 3>, 3> sizes{
      {{"state_bytes", "--state-bytes", options.state_bytes},
       {"gradient_bytes", "--gradient-bytes", options.gradient_bytes},
       {"activation_bytes", "--activation-bytes", options.activation_bytes}}};
  for (const auto& [name, flag, text] : sizes) {
    if (text.empty()) continue;
    CAIRN_ASSIGN_OR_RETURN(given[name], ParseSize(flag, text));
  }
  return given;
}

}  // namespace

Result<int> Place(const PlaceOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const auto given, GivenMembers(options));
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(options.topology, "a topology", kMostTopologyBytes));
  CAIRN_ASSIGN_OR_RETURN(const Topology topology, ParseTopology(text, options.topology, given));
  std::optional<Partners> partners;
  if (topology.state_bytes) {
    CAIRN_ASSIGN_OR_RETURN(partners, ChoosePartners(topology.network, *topology.state_bytes));
  }
  std::optional<Placed> placed;
  if (topology.job) placed = FindPlace(topology, options);
  if (options.json) {
    json out{{"devices", topology.network.devices()}};
    if (placed) out["placement"] = ToJson(topology.network, *placed, options.seed);
    if (partners) out["replicas"] = ToJson(topology.network, *partners);
    PrintJson(out);
    return kGood;
  }
  if (placed) Print(topology.network, *placed);
  if (placed && partners) fmt::print("\n");
  if (partners) Print(topology.network, *partners);
  return kGood;
}

}  // namespace cairn::tools
