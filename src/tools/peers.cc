// `cairn doctor --peers`: the ranks' environment, rank 0's coordinator beside its own rank, and the file.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "advice/output_file.h"
#include "advice/peers/coordinator.h"
#include "advice/peers/member.h"
#include "advice/place/topology.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/quantities.h"

namespace cairn::tools {
namespace {

using nlohmann::json;
using peers::PeersMeasured;
using std::chrono::nanoseconds;

/// A rank that answers does so sooner.
constexpr nanoseconds kMostPatience = std::chrono::seconds(10);
constexpr const char* kDomainVariable = "CAIRN_FAILURE_DOMAIN";

const char* Find(const char* name) { return std::getenv(name); }  // NOLINT(concurrency-mt-unsafe): nobody sets it.

Status Wrong(const char* name, const std::string& expected) {
  const char* const found = Find(name);
  return Error(StatusCode::kInvalidArgument, "doctor --peers: the environment's {}: expected {}, found {}", name,
               expected, found == nullptr ? "none" : Printable(found));
}

Result<int> Number(const char* name, int least, int most) {
  const char* const found = Find(name);
  const std::string_view text = found == nullptr ? "" : found;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && number <= most) return number;
  return Wrong(name, fmt::format("a number from {} to {}", least, most));
}

/// torchrun's own store has MASTER_PORT; the next one is as good.
Result<int> FindPort(const std::optional<int>& given) {
  if (given) return *given;
  const char* const runs = Find("TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = runs != nullptr && std::string_view(runs) == "True";
  CAIRN_ASSIGN_OR_RETURN(const int port, Number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max() - 1));
  return taken ? port + 1 : port;
}

std::string FindHost() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0' || !IsUtf8(name.data())) return "unknown";
  return name.data();
}

Result<std::string> FindDomain(const std::string& given, const std::string& host) {
  const char* const found = Find(kDomainVariable);
  const std::string domain = !given.empty() ? given : found != nullptr && *found != '\0' ? found : host;
  if (domain.size() <= 255 && IsUtf8(domain)) return domain;
  return Error(StatusCode::kInvalidArgument, "{}: expected at most 255 bytes of UTF-8",
               given.empty() ? kDomainVariable : "--domain");
}

struct Set {
  peers::MemberOptions rank;
  peers::Pace pace;
};

Result<Set> ReadSet(const PeersOptions& options) {
  Set set;
  peers::MemberOptions& rank = set.rank;
  CAIRN_ASSIGN_OR_RETURN(rank.world, Number("WORLD_SIZE", 2, static_cast<int>(kMostDevices)));
  CAIRN_ASSIGN_OR_RETURN(rank.rank, Number("RANK", 0, rank.world - 1));
  const char* const master = Find("MASTER_ADDR");
  if (master == nullptr || *master == '\0') return Wrong("MASTER_ADDR", "the host of rank 0");
  // Rank 0 reaches itself, whatever the world calls it.
  rank.master = rank.rank == 0 ? "127.0.0.1" : master;
  CAIRN_ASSIGN_OR_RETURN(rank.port, FindPort(options.port));
  rank.host = FindHost();
  CAIRN_ASSIGN_OR_RETURN(rank.domain, FindDomain(options.domain, rank.host));
  CAIRN_ASSIGN_OR_RETURN(rank.timeout, ParseTime("--timeout", options.timeout, "100ms", "1d"));
  CAIRN_ASSIGN_OR_RETURN(set.pace.rate_time, ParseTime("--pair-time", options.pair_time, "10ms", "1m"));
  rank.patience = set.pace.patience = std::min(rank.timeout, kMostPatience);
  return set;
}

Result<PeersMeasured> LeadAndMeasure(const Set& set) {
  Result<UniqueFd> listener = peers::ListenAt(set.rank.port);
  if (!listener.ok()) {
    return Error(listener.status().code(), "rank 0: {}; --port, the same on all ranks, chooses another",
                 listener.status().message());
  }
  peers::Coordinator coordinator(set.rank.world, peers::Lobby(std::move(*listener)), set.pace, set.rank.timeout);
  std::optional<Result<PeersMeasured>> measured;
  CAIRN_ASSIGN_OR_RETURN(std::thread leading, StartThread("cairn-peers", [&] { measured.emplace(coordinator.Run()); }));
  const Status own = RunMember(set.rank);
  leading.join();
  // A rank hears the beginning of a long message.
  if (own.ok() || measured->status().message().starts_with(own.message())) return *std::move(measured);
  if (measured->ok()) return own;
  return Error(own.code(), "{}; on rank 0: {}", measured->status().message(), own.message());
}

/// Names of the ranks as devices: the host, and behind it "/RANK" where several are on one.
std::vector<std::string> DeviceNames(const std::vector<PeersMeasured::Rank>& ranks) {
  std::map<std::string, int> on_host;
  for (const PeersMeasured::Rank& rank : ranks) ++on_host[rank.host];
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string& host = ranks[i].host;
    names.push_back(on_host[host] == 1 ? host : fmt::format("{}/{}", host, i));
  }
  return names;
}

/// What `cairn place` reads (advice/place/topology.h), without a job. Its links are the same in both directions: of the
/// two measured rates it has the lower one.
json ToTopology(const PeersMeasured& measured) {
  const std::vector<std::string> names = DeviceNames(measured.ranks);
  json devices = json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    devices.push_back({{"name", names[i]}, {"domain", measured.ranks[i].domain}});
  }
  const std::vector<std::vector<double>> none(names.size(), std::vector<double>(names.size()));
  std::vector<std::vector<double>> delays = none;
  std::vector<std::vector<double>> rates = none;
  for (const auto& [ranks, link] : measured.pairs) {
    const auto first = static_cast<std::size_t>(ranks.first);
    const auto second = static_cast<std::size_t>(ranks.second);
    delays[first][second] = delays[second][first] = 1e3 * link.delay_seconds;
    rates[first][second] = rates[second][first] = std::min(link.there, link.back);
  }
  return {{"devices", devices}, {"delay_ms", delays}, {"bytes_per_second", rates}};
}

/// Everything, both directions too.
json ToJson(const PeersMeasured& measured) {
  const std::vector<std::string> names = DeviceNames(measured.ranks);
  json ranks = json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    ranks.push_back(
        {{"rank", i}, {"name", names[i]}, {"host", measured.ranks[i].host}, {"domain", measured.ranks[i].domain}});
  }
  json pairs = json::array();
  for (const auto& [pair, link] : measured.pairs) {
    pairs.push_back({{"from", pair.first},
                     {"to", pair.second},
                     {"delay_seconds", link.delay_seconds},
                     {"bytes_per_second", link.there},
                     {"bytes_per_second_back", link.back}});
  }
  return {{"ranks", ranks}, {"rounds", measured.rounds}, {"pairs", pairs}};
}

double Slower(const peers::PairMeasured& link) { return std::min(link.there, link.back); }

/// A table, slowest pairs first.
void Print(const PeersMeasured& measured) {
  const std::vector<std::string> names = DeviceNames(measured.ranks);
  std::vector<PeersMeasured::Pair> pairs = measured.pairs;
  std::ranges::stable_sort(pairs, [](const auto& a, const auto& b) { return Slower(a.link) < Slower(b.link); });
  constexpr std::size_t kMostRows = 28;  // All pairs of 8 ranks.
  const std::size_t shown = std::min(pairs.size(), kMostRows);
  std::vector<std::vector<std::string>> rows{{"RANK", "AND RANK", "DELAY", "THERE", "BACK"}};
  const auto name = [&](int rank) {
    return fmt::format("{} {}", rank, Printable(names[static_cast<std::size_t>(rank)]));
  };
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [ranks, link] = pairs[i];
    rows.push_back({name(ranks.first), name(ranks.second), HumanSeconds(link.delay_seconds), HumanRate(link.there),
                    HumanRate(link.back)});
  }
  PrintTable(rows);
  if (shown < pairs.size()) fmt::print("and {} faster pairs\n", pairs.size() - shown);
}

}  // namespace

Result<int> MeasurePeers(const PeersOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Set set, ReadSet(options));
  if (set.rank.rank != 0) {
    CAIRN_RETURN_IF_ERROR(RunMember(set.rank));
    return kGood;
  }
  CAIRN_RETURN_IF_ERROR(CheckWritable(options.out));
  CAIRN_ASSIGN_OR_RETURN(const PeersMeasured measured, LeadAndMeasure(set));
  Status written = WriteOutputFile(options.out, ToTopology(measured).dump(1) + '\n');
  // What was measured took minutes: print it in any case.
  options.json ? PrintJson(ToJson(measured)) : Print(measured);
  CAIRN_RETURN_IF_ERROR(written);
  if (options.json) return kGood;
  fmt::print("\n{} has the slower direction of each pair: cairn place {} --state-bytes SIZE\n", Printable(options.out),
             Printable(options.out));
  return kGood;
}

}  // namespace cairn::tools
