#include "advice/place/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "advice/json_field.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr double kMostDelay = 1e9;   // Milliseconds.
constexpr double kMostBytes = 1e18;  // Of a message, or in a second.

// The network.

/// The name of the rate's member, and what its unit is in bytes per second.
struct RateUnit {
  const char* name;
  double bytes;
};

Result<RateUnit> FindRate(const JsonField& place) {
  const RateUnit gigabits{"bandwidth_gbps", 1e9 / 8};
  const RateUnit plain{"bytes_per_second", 1};
  if (place.Has(gigabits.name) != place.Has(plain.name)) return place.Has(plain.name) ? plain : gigabits;
  return place.Wrong(fmt::format("expected either {} or {}, found {}", gigabits.name, plain.name,
                                 place.Has(plain.name) ? "both" : "none"));
}

Result<double> ReadRate(const JsonField& place, const RateUnit& unit) {
  Result<double> rate = place.Number(0, kMostBytes / unit.bytes);
  if (!rate.ok()) return rate;
  if (*rate * unit.bytes < 1) return place.Expected("at least 1 byte per second");
  return *rate * unit.bytes;
}

Result<Network::Link> ReadLink(const JsonField& place) {
  CAIRN_ASSIGN_OR_RETURN(const RateUnit unit, FindRate(place));
  Network::Link link;
  CAIRN_ASSIGN_OR_RETURN(const double delay, place.At("delay_ms").Number(0, kMostDelay));
  CAIRN_ASSIGN_OR_RETURN(link.bytes_per_second, ReadRate(place.At(unit.name), unit));
  link.delay_seconds = delay / 1e3;
  return link;
}

/// Names and failure domains of devices, in the order in which they come.
struct Devices {
  std::vector<std::string> names;
  std::vector<std::size_t> domains;
  std::vector<std::string> domain_names;
  std::map<std::string, std::size_t> by_name;

  [[nodiscard]] Status Add(const std::string& name, const std::string& domain, const JsonField& place) {
    if (!by_name.emplace(name, names.size()).second) {
      return place.Wrong(fmt::format("the device {} is there twice", name));
    }
    std::size_t at = 0;
    while (at < domain_names.size() && domain_names[at] != domain) ++at;
    if (at == domain_names.size()) domain_names.push_back(domain);
    names.push_back(name);
    domains.push_back(at);
    return Status::Ok();
  }
  [[nodiscard]] Status CheckCount(const JsonField& place) const {
    if (names.size() >= 2 && names.size() <= kMostDevices) return Status::Ok();
    return place.Wrong(fmt::format("expected 2 to {} devices, found {}", kMostDevices, names.size()));
  }
};

/// A name and its failure domain, which is the name itself if the file has none.
Result<std::pair<std::string, std::string>> ReadName(const JsonField& place) {
  CAIRN_ASSIGN_OR_RETURN(std::string name, place.At("name").Name());
  if (!place.Has("domain")) return std::pair(name, name);
  CAIRN_ASSIGN_OR_RETURN(std::string domain, place.At("domain").Name());
  return std::pair(std::move(name), std::move(domain));
}

/// One number of a symmetric matrix.
Result<double> Symmetric(const JsonField& matrix, std::size_t i, std::size_t j, const Devices& devices,
                         const auto& read) {
  const auto cell = [&](std::size_t from, std::size_t to) {
    return matrix.At(from).At(to).Named(fmt::format("{} to {}", devices.names[from], devices.names[to]));
  };
  CAIRN_ASSIGN_OR_RETURN(const double there, read(cell(i, j)));
  CAIRN_ASSIGN_OR_RETURN(const double back, read(cell(j, i)));
  if (there == back) return there;
  return cell(i, j).Wrong(
      fmt::format("expected the same number as in the other direction, found {:g} and {:g}", there, back));
}

Status CheckMatrix(const JsonField& matrix, std::size_t devices) {
  CAIRN_RETURN_IF_ERROR(matrix.CheckArray(devices, devices, "rows"));
  for (std::size_t i = 0; i < devices; ++i) CAIRN_RETURN_IF_ERROR(matrix.At(i).CheckArray(devices, devices, "numbers"));
  return Status::Ok();
}

Result<Network> ReadMatrices(const JsonField& root, Devices& devices) {
  const JsonField list = root.At("devices");
  CAIRN_RETURN_IF_ERROR(list.CheckArray(2, kMostDevices, "devices"));
  for (std::size_t i = 0; i < list.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(list.At(i).CheckObject({"name", "domain"}));
    CAIRN_ASSIGN_OR_RETURN(const auto name, ReadName(list.At(i)));
    CAIRN_RETURN_IF_ERROR(devices.Add(name.first, name.second, list.At(i)));
  }
  CAIRN_ASSIGN_OR_RETURN(const RateUnit unit, FindRate(root));
  const JsonField delays = root.At("delay_ms");
  const JsonField rates = root.At(unit.name);
  CAIRN_RETURN_IF_ERROR(CheckMatrix(delays, list.size()));
  CAIRN_RETURN_IF_ERROR(CheckMatrix(rates, list.size()));
  Network network(devices.names, devices.domains, devices.domain_names);
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto delay = [](const JsonField& place) { return place.Number(0, kMostDelay); };
      const auto rate = [&](const JsonField& place) { return ReadRate(place, unit); };
      CAIRN_ASSIGN_OR_RETURN(const double delay_ms, Symmetric(delays, i, j, devices, delay));
      CAIRN_ASSIGN_OR_RETURN(const double bytes_per_second, Symmetric(rates, i, j, devices, rate));
      network.SetLink(i, j, {.delay_seconds = delay_ms / 1e3, .bytes_per_second = bytes_per_second});
    }
  }
  return network;
}

using LocationLinks = std::map<std::pair<std::size_t, std::size_t>, Network::Link>;

/// The links between locations: `across` for all of them, or `pairs`, one for each pair.
Result<LocationLinks> ReadLocationLinks(const JsonField& root, const std::vector<std::string>& names) {
  LocationLinks links;
  if (root.Has("across")) {
    CAIRN_RETURN_IF_ERROR(root.At("across").CheckObject({"delay_ms", "bandwidth_gbps", "bytes_per_second"}));
    CAIRN_ASSIGN_OR_RETURN(const Network::Link link, ReadLink(root.At("across")));
    for (std::size_t p = 0; p < names.size(); ++p) {
      for (std::size_t q = p + 1; q < names.size(); ++q) links[{p, q}] = link;
    }
    return links;
  }
  const JsonField pairs = root.At("pairs");
  CAIRN_RETURN_IF_ERROR(pairs.CheckArray(0, names.size() * names.size(), "pairs"));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const JsonField pair = pairs.At(i);
    CAIRN_RETURN_IF_ERROR(pair.CheckObject({"between", "delay_ms", "bandwidth_gbps", "bytes_per_second"}));
    const JsonField between = pair.At("between");
    CAIRN_RETURN_IF_ERROR(between.CheckArray(2, 2, "locations"));
    std::vector<std::size_t> ends;
    for (const std::size_t end : {0, 1}) {
      CAIRN_ASSIGN_OR_RETURN(const std::string name, between.At(end).Name());
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) return between.At(end).Expected("the name of a location");
      ends.push_back(static_cast<std::size_t>(found - names.begin()));
    }
    if (ends[0] == ends[1]) return between.Expected("two locations");
    CAIRN_ASSIGN_OR_RETURN(const Network::Link link, ReadLink(pair));
    if (!links.emplace(std::minmax(ends[0], ends[1]), link).second) return between.Expected("each pair once");
  }
  for (std::size_t p = 0; p < names.size(); ++p) {
    for (std::size_t q = p + 1; q < names.size(); ++q) {
      if (links.contains({p, q})) continue;
      return pairs.Wrong(fmt::format("expected one between {} and {}, found none", names[p], names[q]));
    }
  }
  return links;
}

Result<Network> ReadLocations(const JsonField& root, Devices& devices) {
  const JsonField list = root.At("locations");
  CAIRN_RETURN_IF_ERROR(list.CheckArray(1, kMostDevices, "locations"));
  std::vector<std::string> names;
  std::vector<std::size_t> locations;  // Of the devices.
  for (std::size_t at = 0; at < list.size(); ++at) {
    const JsonField location = list.At(at);
    CAIRN_RETURN_IF_ERROR(location.CheckObject({"name", "count", "domain"}));
    CAIRN_ASSIGN_OR_RETURN(const auto name, ReadName(location));
    CAIRN_ASSIGN_OR_RETURN(const std::size_t count, location.At("count").Whole(1, kMostDevices));
    if (std::ranges::find(names, name.first) != names.end()) {
      return location.At("name").Expected("each location once");
    }
    names.push_back(name.first);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string device = count == 1 ? name.first : fmt::format("{}/{}", name.first, i);
      CAIRN_RETURN_IF_ERROR(devices.Add(device, name.second, location));
      locations.push_back(at);
    }
  }
  CAIRN_RETURN_IF_ERROR(devices.CheckCount(list));
  if (root.Has("across") == root.Has("pairs")) {
    return list.Wrong(
        fmt::format("beside them, expected either across or pairs, found {}", root.Has("pairs") ? "both" : "none"));
  }
  CAIRN_RETURN_IF_ERROR(root.At("within").CheckObject({"delay_ms", "bandwidth_gbps", "bytes_per_second"}));
  CAIRN_ASSIGN_OR_RETURN(const Network::Link within, ReadLink(root.At("within")));
  CAIRN_ASSIGN_OR_RETURN(const LocationLinks links, ReadLocationLinks(root, names));
  Network network(devices.names, devices.domains, devices.domain_names);
  for (std::size_t i = 0; i < locations.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = locations[i] == locations[j];
      network.SetLink(i, j, together ? within : links.at(std::minmax(locations[i], locations[j])));
    }
  }
  return network;
}

// The job.

Result<PlacementJob> ReadJob(const JsonField& root, std::size_t devices) {
  PlacementJob job;
  CAIRN_ASSIGN_OR_RETURN(job.stages, root.At("stages").Whole(1, kMostStages));
  if (devices % job.stages != 0) return root.At("stages").Expected(fmt::format("a divisor of the {} devices", devices));
  for (const char* name : {"gradient_bytes", "activation_bytes"}) {
    if (root.Has(name)) continue;
    return root.At(name).Wrong("expected beside stages, found nothing");
  }
  CAIRN_ASSIGN_OR_RETURN(job.gradient_bytes, root.At("gradient_bytes").Number(0, kMostBytes));
  CAIRN_ASSIGN_OR_RETURN(job.activation_bytes, root.At("activation_bytes").Number(0, kMostBytes));
  return job;
}

/// Each device once, the same number in each stage.
Result<Groups> ReadCurrent(const JsonField& list, const Devices& devices, std::size_t stages) {
  CAIRN_RETURN_IF_ERROR(list.CheckArray(stages, stages, "stages"));
  const std::size_t each = devices.names.size() / stages;
  std::vector<bool> used(devices.names.size());
  Groups groups(stages);
  for (std::size_t p = 0; p < stages; ++p) {
    CAIRN_RETURN_IF_ERROR(list.At(p).CheckArray(each, each, "devices"));
    for (std::size_t i = 0; i < each; ++i) {
      const JsonField place = list.At(p).At(i);
      CAIRN_ASSIGN_OR_RETURN(const std::string name, place.Name());
      const auto found = devices.by_name.find(name);
      if (found == devices.by_name.end()) return place.Expected("the name of a device");
      if (used[found->second]) return place.Expected("each device once");
      used[found->second] = true;
      groups[p].push_back(found->second);
    }
  }
  return groups;
}

Status CheckRoot(const JsonField& root) {
  if (root.Has("locations")) {
    return root.CheckObject({"locations", "within", "across", "pairs", "stages", "gradient_bytes", "activation_bytes",
                             "state_bytes", "current"});
  }
  return root.CheckObject({"devices", "delay_ms", "bandwidth_gbps", "bytes_per_second", "stages", "gradient_bytes",
                           "activation_bytes", "state_bytes", "current"});
}

}  // namespace

Result<Topology> ParseTopology(std::string_view text, const std::string& where,
                               const std::map<std::string, std::uint64_t>& given) {
  CAIRN_ASSIGN_OR_RETURN(json parsed, ParseJson(text, where));
  if (parsed.is_object()) {
    for (const auto& [name, value] : given) parsed[name] = value;
  }
  const JsonField root(parsed, where);
  CAIRN_RETURN_IF_ERROR(CheckRoot(root));
  Devices devices;
  CAIRN_ASSIGN_OR_RETURN(Network network,
                         root.Has("locations") ? ReadLocations(root, devices) : ReadMatrices(root, devices));
  Topology topology{.network = std::move(network)};
  if (root.Has("stages")) {
    CAIRN_ASSIGN_OR_RETURN(topology.job, ReadJob(root, devices.names.size()));
  }
  for (const char* name : {"gradient_bytes", "activation_bytes", "current"}) {
    if (!topology.job && root.Has(name)) return root.At(name).Expected("stages beside it");
  }
  if (root.Has("current")) {
    CAIRN_ASSIGN_OR_RETURN(topology.current, ReadCurrent(root.At("current"), devices, topology.job->stages));
  }
  if (root.Has("state_bytes")) {
    CAIRN_ASSIGN_OR_RETURN(topology.state_bytes, root.At("state_bytes").Number(0, kMostBytes));
  }
  if (topology.job || topology.state_bytes) return topology;
  return root.Wrong("expected stages (a placement), state_bytes (partners) or both, found none");
}

}  // namespace cairn
