#include "advice/place/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr double kMostDelay = 1e9;   // Milliseconds.
constexpr double kMostBytes = 1e18;  // Of a message, or in a second.

/// A value of the document, and its path for messages: "topology.json: locations[2].count".
class Place {
 public:
  Place(const json& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  /// What a message about it begins with.
  [[nodiscard]] std::string Prefix() const { return path_ + (IsRoot() ? "" : ": "); }
  [[nodiscard]] std::size_t size() const { return value_.size(); }
  [[nodiscard]] bool Has(const char* name) const { return value_.contains(name); }
  /// They must be there.
  [[nodiscard]] Place At(const char* name) const { return {value_.at(name), path_ + (IsRoot() ? "" : ".") + name}; }
  [[nodiscard]] Place At(std::size_t index) const { return {value_.at(index), fmt::format("{}[{}]", path_, index)}; }

  /// With words that explain the path.
  [[nodiscard]] Place Named(const std::string& words) const { return {value_, fmt::format("{} ({})", path_, words)}; }

  [[nodiscard]] Status Expected(std::string_view what) const {
    std::string found = value_.dump(-1, ' ', true, json::error_handler_t::replace);
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    return Error(StatusCode::kInvalidArgument, "{}expected {}, found {}", Prefix(), what, found);
  }

  using Names = std::initializer_list<std::string_view>;
  /// An object with all of `required`, and beyond them only `optional`.
  [[nodiscard]] Status CheckObject(Names required, Names optional = {}) const {
    if (!value_.is_object()) return Expected("an object");
    const std::string before = path_ + (IsRoot() ? "" : ".");
    std::set<std::string_view> known(optional);
    known.insert(required.begin(), required.end());
    for (const auto& [name, value] : value_.items()) {
      if (known.contains(name)) continue;
      std::string names;
      for (const std::string_view one : known) names += (names.empty() ? "" : ", ") + std::string(one);
      return Error(StatusCode::kInvalidArgument, "{}{}: unknown; expected {}", before, name, names);
    }
    for (const std::string_view name : required) {
      if (!value_.contains(name)) {
        return Error(StatusCode::kInvalidArgument, "{}{}: expected, found nothing", before, name);
      }
    }
    return Status::Ok();
  }
  [[nodiscard]] Status CheckArray(std::size_t least, std::size_t most, std::string_view of) const {
    if (!value_.is_array()) return Expected(fmt::format("a list of {}", of));
    if (size() >= least && size() <= most) return Status::Ok();
    const std::string range = least == most ? fmt::to_string(least) : fmt::format("{} to {}", least, most);
    return Error(StatusCode::kInvalidArgument, "{}: expected {} {}, found {}", path_, range, of, size());
  }
  [[nodiscard]] Result<std::string> Text() const {
    if (!value_.is_string() || value_.get_ref<const std::string&>().empty()) return Expected("a name");
    return value_.get<std::string>();
  }
  [[nodiscard]] Result<double> Number(double least, double most) const {
    const double number = value_.is_number() ? value_.get<double>() : -1;
    if (value_.is_number() && number >= least && number <= most) return number;
    return Expected(fmt::format("a number from {:g} to {:g}", least, most));
  }
  [[nodiscard]] Result<std::size_t> Whole(std::size_t least, std::size_t most) const {
    if (value_.is_number_unsigned()) {
      const std::uint64_t number = value_.get<std::uint64_t>();
      if (number >= least && number <= most) return static_cast<std::size_t>(number);
    }
    return Expected(fmt::format("a whole number from {} to {}", least, most));
  }

 private:
  // The root's path is "topology.json: ".
  [[nodiscard]] bool IsRoot() const { return path_.ends_with(": "); }

  const json& value_;
  std::string path_;
};

Result<json> ParseJson(std::string_view text, const std::string& where) {
  if (IsNestedTooDeeply(text)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected at most {} levels of lists and objects, found more", where,
                 kMostJsonLevels);
  }
  std::vector<std::set<std::string>> names;
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  try {
    json parsed = json::parse(text, watch);
    if (!twice.empty()) return Error(StatusCode::kInvalidArgument, "{}: the name \"{}\" is there twice", where, twice);
    return parsed;
  } catch (const json::exception& error) {
    return Error(StatusCode::kInvalidArgument, "{}: expected JSON, found: {}", where, error.what());
  }
}

// The network.

/// The name of the rate's member, and what its unit is in bytes per second.
struct RateUnit {
  const char* name;
  double bytes;
};

Result<RateUnit> FindRate(const Place& place) {
  const RateUnit gigabits{"bandwidth_gbps", 1e9 / 8};
  const RateUnit plain{"bytes_per_second", 1};
  if (place.Has(gigabits.name) != place.Has(plain.name)) return place.Has(plain.name) ? plain : gigabits;
  return Error(StatusCode::kInvalidArgument, "{}expected either {} or {}, found {}", place.Prefix(), gigabits.name,
               plain.name, place.Has(plain.name) ? "both" : "none");
}

Result<double> ReadRate(const Place& place, const RateUnit& unit) {
  Result<double> rate = place.Number(0, kMostBytes / unit.bytes);
  if (!rate.ok()) return rate;
  if (*rate * unit.bytes < 1) return place.Expected("at least 1 byte per second");
  return *rate * unit.bytes;
}

Result<Network::Link> ReadLink(const Place& place) {
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

  [[nodiscard]] Status Add(const std::string& name, const std::string& domain, const Place& place) {
    if (!by_name.emplace(name, names.size()).second) {
      return Error(StatusCode::kInvalidArgument, "{}: the device {} is there twice", place.path(), name);
    }
    std::size_t at = 0;
    while (at < domain_names.size() && domain_names[at] != domain) ++at;
    if (at == domain_names.size()) domain_names.push_back(domain);
    names.push_back(name);
    domains.push_back(at);
    return Status::Ok();
  }
  [[nodiscard]] Status CheckCount(const Place& place) const {
    if (names.size() >= 2 && names.size() <= kMostDevices) return Status::Ok();
    return Error(StatusCode::kInvalidArgument, "{}: expected 2 to {} devices, found {}", place.path(), kMostDevices,
                 names.size());
  }
};

/// A name and its failure domain, which is the name itself if the file has none.
Result<std::pair<std::string, std::string>> ReadName(const Place& place) {
  CAIRN_ASSIGN_OR_RETURN(std::string name, place.At("name").Text());
  if (!place.Has("domain")) return std::pair(name, name);
  CAIRN_ASSIGN_OR_RETURN(std::string domain, place.At("domain").Text());
  return std::pair(std::move(name), std::move(domain));
}

/// One number of a symmetric matrix.
Result<double> Symmetric(const Place& matrix, std::size_t i, std::size_t j, const Devices& devices, const auto& read) {
  const auto cell = [&](std::size_t from, std::size_t to) {
    return matrix.At(from).At(to).Named(fmt::format("{} to {}", devices.names[from], devices.names[to]));
  };
  CAIRN_ASSIGN_OR_RETURN(const double there, read(cell(i, j)));
  CAIRN_ASSIGN_OR_RETURN(const double back, read(cell(j, i)));
  if (there == back) return there;
  return Error(StatusCode::kInvalidArgument,
               "{}: expected the same number as in the other direction, found {:g} and {:g}", cell(i, j).path(), there,
               back);
}

Status CheckMatrix(const Place& matrix, std::size_t devices) {
  CAIRN_RETURN_IF_ERROR(matrix.CheckArray(devices, devices, "rows"));
  for (std::size_t i = 0; i < devices; ++i) CAIRN_RETURN_IF_ERROR(matrix.At(i).CheckArray(devices, devices, "numbers"));
  return Status::Ok();
}

Result<Network> ReadMatrices(const Place& root, Devices& devices) {
  const Place list = root.At("devices");
  CAIRN_RETURN_IF_ERROR(list.CheckArray(2, kMostDevices, "devices"));
  for (std::size_t i = 0; i < list.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(list.At(i).CheckObject({"name"}, {"domain"}));
    CAIRN_ASSIGN_OR_RETURN(const auto name, ReadName(list.At(i)));
    CAIRN_RETURN_IF_ERROR(devices.Add(name.first, name.second, list.At(i)));
  }
  CAIRN_ASSIGN_OR_RETURN(const RateUnit unit, FindRate(root));
  const Place delays = root.At("delay_ms");
  const Place rates = root.At(unit.name);
  CAIRN_RETURN_IF_ERROR(CheckMatrix(delays, list.size()));
  CAIRN_RETURN_IF_ERROR(CheckMatrix(rates, list.size()));
  Network network(devices.names, devices.domains, devices.domain_names);
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto delay = [](const Place& place) { return place.Number(0, kMostDelay); };
      const auto rate = [&](const Place& place) { return ReadRate(place, unit); };
      CAIRN_ASSIGN_OR_RETURN(const double delay_ms, Symmetric(delays, i, j, devices, delay));
      CAIRN_ASSIGN_OR_RETURN(const double bytes_per_second, Symmetric(rates, i, j, devices, rate));
      network.SetLink(i, j, {.delay_seconds = delay_ms / 1e3, .bytes_per_second = bytes_per_second});
    }
  }
  return network;
}

using LocationLinks = std::map<std::pair<std::size_t, std::size_t>, Network::Link>;

/// The links between locations: `across` for all of them, or `pairs`, one for each pair.
Result<LocationLinks> ReadLocationLinks(const Place& root, const std::vector<std::string>& names) {
  LocationLinks links;
  if (root.Has("across")) {
    CAIRN_RETURN_IF_ERROR(root.At("across").CheckObject({"delay_ms"}, {"bandwidth_gbps", "bytes_per_second"}));
    CAIRN_ASSIGN_OR_RETURN(const Network::Link link, ReadLink(root.At("across")));
    for (std::size_t p = 0; p < names.size(); ++p) {
      for (std::size_t q = p + 1; q < names.size(); ++q) links[{p, q}] = link;
    }
    return links;
  }
  const Place pairs = root.At("pairs");
  CAIRN_RETURN_IF_ERROR(pairs.CheckArray(0, names.size() * names.size(), "pairs"));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Place pair = pairs.At(i);
    CAIRN_RETURN_IF_ERROR(pair.CheckObject({"between", "delay_ms"}, {"bandwidth_gbps", "bytes_per_second"}));
    const Place between = pair.At("between");
    CAIRN_RETURN_IF_ERROR(between.CheckArray(2, 2, "locations"));
    std::vector<std::size_t> ends;
    for (const std::size_t end : {0, 1}) {
      CAIRN_ASSIGN_OR_RETURN(const std::string name, between.At(end).Text());
      const auto found = std::find(names.begin(), names.end(), name);
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
      return Error(StatusCode::kInvalidArgument, "{}: expected one between {} and {}, found none", pairs.path(),
                   names[p], names[q]);
    }
  }
  return links;
}

Result<Network> ReadLocations(const Place& root, Devices& devices) {
  const Place list = root.At("locations");
  CAIRN_RETURN_IF_ERROR(list.CheckArray(1, kMostDevices, "locations"));
  std::vector<std::string> names;
  std::vector<std::size_t> locations;  // Of the devices.
  for (std::size_t at = 0; at < list.size(); ++at) {
    const Place location = list.At(at);
    CAIRN_RETURN_IF_ERROR(location.CheckObject({"name", "count"}, {"domain"}));
    CAIRN_ASSIGN_OR_RETURN(const auto name, ReadName(location));
    CAIRN_ASSIGN_OR_RETURN(const std::size_t count, location.At("count").Whole(1, kMostDevices));
    if (std::find(names.begin(), names.end(), name.first) != names.end()) {
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
    return Error(StatusCode::kInvalidArgument, "{}: beside them, expected either across or pairs, found {}",
                 list.path(), root.Has("pairs") ? "both" : "none");
  }
  CAIRN_RETURN_IF_ERROR(root.At("within").CheckObject({"delay_ms"}, {"bandwidth_gbps", "bytes_per_second"}));
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

Result<PlacementJob> ReadJob(const Place& root, std::size_t devices) {
  PlacementJob job;
  CAIRN_ASSIGN_OR_RETURN(job.stages, root.At("stages").Whole(1, kMostStages));
  if (devices % job.stages != 0) return root.At("stages").Expected(fmt::format("a divisor of the {} devices", devices));
  for (const char* name : {"gradient_bytes", "activation_bytes"}) {
    if (root.Has(name)) continue;
    return Error(StatusCode::kInvalidArgument, "{}{}: expected beside stages, found nothing", root.Prefix(), name);
  }
  CAIRN_ASSIGN_OR_RETURN(job.gradient_bytes, root.At("gradient_bytes").Number(0, kMostBytes));
  CAIRN_ASSIGN_OR_RETURN(job.activation_bytes, root.At("activation_bytes").Number(0, kMostBytes));
  return job;
}

/// Each device once, the same number in each stage.
Result<Groups> ReadCurrent(const Place& list, const Devices& devices, std::size_t stages) {
  CAIRN_RETURN_IF_ERROR(list.CheckArray(stages, stages, "stages"));
  const std::size_t each = devices.names.size() / stages;
  std::vector<bool> used(devices.names.size());
  Groups groups(stages);
  for (std::size_t p = 0; p < stages; ++p) {
    CAIRN_RETURN_IF_ERROR(list.At(p).CheckArray(each, each, "devices"));
    for (std::size_t i = 0; i < each; ++i) {
      const Place place = list.At(p).At(i);
      CAIRN_ASSIGN_OR_RETURN(const std::string name, place.Text());
      const auto found = devices.by_name.find(name);
      if (found == devices.by_name.end()) return place.Expected("the name of a device");
      if (used[found->second]) return place.Expected("each device once");
      used[found->second] = true;
      groups[p].push_back(found->second);
    }
  }
  return groups;
}

Status CheckRoot(const Place& root) {
  if (root.Has("locations")) {
    return root.CheckObject({"locations", "within"}, {"across", "pairs", "stages", "gradient_bytes", "activation_bytes",
                                                      "state_bytes", "current"});
  }
  return root.CheckObject({"devices", "delay_ms"}, {"bandwidth_gbps", "bytes_per_second", "stages", "gradient_bytes",
                                                    "activation_bytes", "state_bytes", "current"});
}

}  // namespace

Result<Topology> ParseTopology(std::string_view text, const std::string& where,
                               const std::map<std::string, std::uint64_t>& given) {
  CAIRN_ASSIGN_OR_RETURN(json parsed, ParseJson(text, where));
  if (parsed.is_object()) {
    for (const auto& [name, value] : given) parsed[name] = value;
  }
  const Place root(parsed, where + ": ");
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
  return Error(StatusCode::kInvalidArgument,
               "{}expected stages (a placement), state_bytes (partners) or both, found none", root.Prefix());
}

}  // namespace cairn
