#include "group/node_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
namespace {

constexpr const char* kNamesKey = "node";
constexpr const char* kCountsKey = "nodes";
constexpr std::uint64_t kMost = 1'000'000;  // Of ranks, and of nodes: products fit.

/// The variables of a launcher: how many ranks it has started on this node, how many in all, and which one this is.
struct Launcher {
  const char* local;
  const char* all;
  const char* rank = nullptr;
  const char* node = nullptr;  // Where `local` has the numbers of all nodes: which of them this is.
};
constexpr Launcher kLaunchers[] = {
    {"LOCAL_WORLD_SIZE", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK"},
    {"PMI_LOCAL_SIZE", "PMI_SIZE", "PMI_RANK"},
    {"SLURM_STEP_TASKS_PER_NODE", nullptr, "SLURM_PROCID", "SLURM_NODEID"},
};

std::string_view Variable(const char* name) {
  const char* const found = name == nullptr ? nullptr : std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read only
  return found == nullptr ? std::string_view() : found;
}

/// Removes a number from the beginning of the text.
std::optional<std::uint64_t> TakeNumber(std::string_view& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<std::uint64_t> Number(std::string_view text) {
  const std::optional<std::uint64_t> number = TakeNumber(text);
  return text.empty() ? number : std::nullopt;
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// How many ranks there are on this node, and in all, if that is said.
struct Counts {
  std::uint64_t local = 0;
  std::optional<std::uint64_t> all = std::nullopt;
};

/// SLURM has a number for each node of the step, with repetitions: "8(x2),4". SLURM_NODEID says which node this is.
std::optional<Counts> ParseTasksPerNode(std::string_view text, std::optional<std::uint64_t> node) {
  Counts counts{.all = 0};
  std::uint64_t nodes = 0;
  do {
    const std::optional<std::uint64_t> tasks = TakeNumber(text);
    std::optional<std::uint64_t> times = 1;
    if (Take(text, "(x")) {
      times = TakeNumber(text);
      if (!Take(text, ")")) return std::nullopt;
    }
    if (!tasks || !times || *times == 0 || *tasks > kMost || *times > kMost) return std::nullopt;
    if (node && *node >= nodes && *node < nodes + *times) counts.local = *tasks;
    nodes += *times;
    *counts.all += *tasks * *times;
  } while (Take(text, ","));
  return text.empty() && counts.local != 0 ? std::optional(counts) : std::nullopt;
}

/// What the variable says, which is set.
std::optional<Counts> Parse(const Launcher& launcher) {
  const std::string_view text = Variable(launcher.local);
  if (launcher.node != nullptr) return ParseTasksPerNode(text, Number(Variable(launcher.node)));
  const std::optional<std::uint64_t> local = Number(text);
  if (!local || *local == 0) return std::nullopt;
  return Counts{*local, Number(Variable(launcher.all))};
}

/// Why the group does not believe it; empty if it does.
std::string Doubt(const Launcher& launcher, const std::optional<Counts>& counts, int rank, int size) {
  if (!counts) return "no number of ranks on this node";
  const auto group = static_cast<std::uint64_t>(size);
  const std::uint64_t all = counts->all.value_or(size > 1 ? group : counts->local);
  if (counts->local > all) return fmt::format("expected 1 to {}", all);
  if (size == 1) return {};
  // torchrun's ranks may form several groups. What another launcher starts may itself start the ranks of a group.
  if (launcher.rank == nullptr ? all < group : all != group) {
    return fmt::format("the launcher has started {} ranks, the group has {}", all, size);
  }
  const std::optional<std::uint64_t> said = Number(Variable(launcher.rank));
  if (said && *said != static_cast<std::uint64_t>(rank)) {
    return fmt::format("{} is {}, the rank in the group is {}", launcher.rank, *said, rank);
  }
  return {};
}

/// "LOCAL_WORLD_SIZE=8"
std::string Said(const Launcher& launcher) {
  std::string said = fmt::format("{}={}", launcher.local, Variable(launcher.local));
  if (launcher.node != nullptr) said += fmt::format(", {}={}", launcher.node, Variable(launcher.node));
  return said;
}

/// What the variables of the environment say.
struct Launched {
  std::optional<NodeRanks> ranks;
  /// Which one is not believed, and why; or empty.
  std::string doubt;
};

Launched FindLaunched(int rank, int size) {
  for (const Launcher& launcher : kLaunchers) {
    if (Variable(launcher.local).empty()) continue;
    const std::optional<Counts> counts = Parse(launcher);
    const std::string doubt = Doubt(launcher, counts, rank, size);
    if (doubt.empty()) return {.ranks = NodeRanks{.count = counts->local, .source = Said(launcher)}, .doubt = {}};
    return {.ranks = std::nullopt, .doubt = fmt::format("; not by {}: {}", Said(launcher), doubt)};
  }
  return {};
}

/// "<count> <name>\n" for each node.
std::string CountNames(const std::vector<std::string>& names) {
  std::map<std::string, int> counts;
  for (const std::string& name : names) ++counts[name];
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{} {}\n", count, name);
  return text;
}

NodeRanks Guess(int size, const std::string& doubt, std::string_view why) {
  return {.count = static_cast<std::uint64_t>(size),
          .source = fmt::format("the size of the group, because {}{}", why, doubt),
          .guessed = true};
}

/// By what CountNames has made of the names of all ranks.
NodeRanks FindCount(std::string_view text, const std::string& name, int size, const std::string& doubt) {
  while (!text.empty()) {
    const std::optional<std::uint64_t> count = TakeNumber(text);
    if (count && Take(text, " ") && Take(text, name) && text.starts_with('\n') && *count > 0 &&
        *count <= static_cast<std::uint64_t>(size)) {
      return {.count = *count, .source = "the names of the ranks' nodes" + doubt};
    }
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  return Guess(size, doubt, "rank 0 does not know the ranks' nodes");
}

}  // namespace

std::string NodeName() {
  std::string name;
  if (std::ifstream file("/proc/sys/kernel/random/boot_id"); std::getline(file, name) && !name.empty()) return name;
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "unknown";
}

void MeetNodeRanks(Group& group, const std::string& name, bool needed, Deadline deadline,
                   std::function<void(NodeRanks)> then) {
  const int size = group.size();
  const Launched launched = FindLaunched(group.rank(), size);
  const bool asks = needed && size > 1 && !launched.ranks;
  if (group.rank() != 0) group.Send(kNamesKey, name);
  if (!asks) {
    if (group.rank() == 0 && size > 1) group.Announce(kCountsKey, "");
    if (launched.ranks) return then(*launched.ranks);
    if (size > 1) return then(Guess(size, launched.doubt, "nobody asked"));
    return then({.source = launched.doubt.empty() ? "" : "this process alone" + launched.doubt});
  }
  if (group.rank() != 0) {
    return group.Await(kCountsKey, deadline, [=, doubt = launched.doubt](const Result<std::string>& counts) {
      then(counts.ok() ? FindCount(*counts, name, size, doubt) : Guess(size, doubt, counts.status().message()));
    });
  }
  const auto names = std::make_shared<std::vector<std::string>>(static_cast<std::size_t>(size), name);
  group.Collect(
      kNamesKey, deadline,
      [names](int rank, std::string said) { (*names)[static_cast<std::size_t>(rank)] = std::move(said); },
      [=, &group, doubt = launched.doubt](const Status& end) {
        const std::string counts = end.ok() ? CountNames(*names) : std::string();
        if (end.code() != StatusCode::kCancelled)
          group.Announce(kCountsKey, counts);  // Otherwise it is being destroyed.
        then(end.ok() ? FindCount(counts, name, size, doubt) : Guess(size, doubt, end.message()));
      });
}

std::future<NodeRanks> FindNodeRanks(Group& group, bool needed, Deadline deadline) {
  const auto found = std::make_shared<std::promise<NodeRanks>>();
  MeetNodeRanks(group, NodeName(), needed, deadline, [found](NodeRanks ranks) { found->set_value(std::move(ranks)); });
  return found->get_future();
}

}  // namespace cairn
