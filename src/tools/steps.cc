// Commands for steps that are named one by one: rm, pin and unpin.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "store/list.h"
#include "store/pins.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tools/reading.h"
#include "tools/removal.h"

namespace cairn::tools {
namespace {

/// The files of Cairn's defaults.
constexpr unsigned kFileMode = 0644;

struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

Result<Range> ParseRange(const std::string& word) {
  const std::size_t dash = word.find('-');
  const std::optional<std::uint64_t> first = ParseStep(std::string_view(word).substr(0, dash));
  const std::optional<std::uint64_t> last =
      dash == std::string::npos ? first : ParseStep(std::string_view(word).substr(dash + 1));
  if (first && last && *first <= *last) return Range{*first, *last};
  return Error(StatusCode::kInvalidArgument, "expected a step such as 35 or a range such as 10-40, found \"{}\"", word);
}

/// The steps of `chosen`, as few words of the command line: "10-40 60". A range spans no other step that `also` has.
std::string Ranges(const std::set<std::uint64_t>& chosen, const std::set<std::uint64_t>& also) {
  std::vector<std::string> words;
  for (auto first = chosen.begin(); first != chosen.end();) {
    auto last = first;
    auto end = std::next(first);
    while (end != chosen.end() && also.upper_bound(*last) == also.find(*end)) last = end++;
    words.push_back(first == last ? std::to_string(*first) : fmt::format("{}-{}", *first, *last));
    first = end;
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<CheckpointInfo> Infos(const std::vector<StoredCheckpoint>& list) {
  std::vector<CheckpointInfo> infos;
  for (const StoredCheckpoint& one : list) infos.push_back(one.info);
  return infos;
}

/// The listed checkpoints that the words name, each once, in the list's order. NotFound if a word names none.
Result<std::vector<CheckpointInfo>> Named(const StepsOptions& options, const std::vector<CheckpointInfo>& list) {
  std::vector<bool> named(list.size());
  for (const std::string& word : options.steps) {
    CAIRN_ASSIGN_OR_RETURN(const Range range, ParseRange(word));
    bool found = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].step < range.first || list[i].step > range.last) continue;
      found = named[i] = true;
    }
    if (found) continue;
    return NoSuchStep(options.root, word, list);
  }
  std::vector<CheckpointInfo> infos;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (named[i]) infos.push_back(list[i]);
  }
  return infos;
}

Result<std::vector<StoredCheckpoint>> ListRootOf(const StepsOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoot(options.root));
  return ListCheckpoints(options.root);
}

Status CheckUnpinned(const StepsOptions& options, const std::vector<CheckpointInfo>& list,
                     const std::vector<CheckpointInfo>& doomed) {
  std::set<std::uint64_t> all;
  std::set<std::uint64_t> pinned;
  for (const CheckpointInfo& info : list) {
    if (!IsPinned(PathAt(info.path))) continue;
    all.insert(info.step);
    if (HasStep(doomed, info.step)) pinned.insert(info.step);
  }
  if (pinned.empty()) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "pinned: {}; nothing was removed. First run: cairn unpin {} {}",
               DescribeSteps({pinned.begin(), pinned.end()}), options.root, Ranges(pinned, all));
}

/// What a removal changes for a job that resumes.
struct Consequence {
  /// A sentence; empty if nothing changes.
  std::string text;
  bool none_remains = false;
};

Consequence ConsequenceOf(const std::vector<CheckpointInfo>& list, const std::vector<CheckpointInfo>& doomed) {
  const auto before = std::find_if(list.rbegin(), list.rend(), [](const auto& info) { return info.status.ok(); });
  const auto after = std::find_if(before, list.rend(), [&doomed](const CheckpointInfo& info) {
    return info.status.ok() && !HasStep(doomed, info.step);
  });
  if (before == after) return {};
  if (after == list.rend()) return {"No good checkpoint remains: a job cannot resume.", true};
  return {fmt::format("Step {} is then the newest: a job resumes from it.", after->step)};
}

struct Removed : WritableRoot::Removed {
  std::string consequence;
};

Result<Removed> RemoveNamed(const StepsOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, ListRootOf(options));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> doomed, Named(options, Infos(stored)));
  CheckShardsAndSay(stored, 1, doomed);
  const std::vector<CheckpointInfo> list = Infos(stored);
  CAIRN_RETURN_IF_ERROR(CheckUnpinned(options, list, doomed));
  const Consequence expected = ConsequenceOf(list, doomed);
  if (Asks(options.yes)) {
    CAIRN_RETURN_IF_ERROR(Confirm(doomed, expected.text));
  } else if (expected.none_remains && !options.yes) {
    return Error(
        StatusCode::kFailedPrecondition,
        "no good checkpoint would remain under {}; nothing was removed. Run it with --yes to remove them anyway",
        options.root);
  }
  CAIRN_ASSIGN_OR_RETURN(WritableRoot root, WritableRoot::Open(options.root));
  Removed removed{root.Remove(doomed)};
  removed.consequence = ConsequenceOf(list, removed.steps).text;
  return removed;
}

struct Changed {
  std::uint64_t step = 0;
  std::optional<PinOwner> before;
};

/// The steps that are pinned now, or whose pins ended. Needs no writer's lock: whoever removes a step looks for its pin
/// while no reader, and so nobody who pins, has it.
Result<std::vector<Changed>> PinNamed(const StepsOptions& options, std::optional<PinOwner> owner) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> list, ListRootOf(options));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> named, Named(options, Infos(list)));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, MakeQueue());
  std::vector<Changed> changed;
  for (const CheckpointInfo& info : named) {
    const std::optional<PinOwner> before = FindPin(PathAt(info.path));
    if (!owner && !before) continue;
    changed.push_back({info.step, before});
    CAIRN_RETURN_IF_ERROR(SetPin(*queue, PathAt(options.root), info.step, owner, kFileMode));
  }
  return changed;
}

}  // namespace

Result<int> Remove(const StepsOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Removed removed, RemoveNamed(options));
  if (options.json) {
    PrintJson({{"removed", Steps(removed.steps)}, {"bytes", TotalBytes(removed.steps)}});
  } else {
    for (const CheckpointInfo& info : removed.steps) {
      fmt::print("removed step {}, {}\n", info.step, info.status.ok() ? HumanBytes(info.bytes) : "damaged");
    }
    if (!removed.consequence.empty()) fmt::print("{}\n", removed.consequence);
  }
  CAIRN_RETURN_IF_ERROR(removed.failure);
  return kGood;
}

Result<int> Pin(const StepsOptions& options, bool pinned) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Changed> changed,
                         PinNamed(options, pinned ? std::optional(PinOwner::kUser) : std::nullopt));
  nlohmann::json steps = nlohmann::json::array();
  for (const Changed& one : changed) {
    steps.push_back(one.step);
    if (options.json) continue;
    const bool again = !pinned && one.before == PinOwner::kBest;
    fmt::print("{} step {}{}\n", pinned ? "pinned" : "unpinned", one.step,
               again ? "; keep_best had pinned it, and may do so again" : "");
  }
  if (options.json) {
    PrintJson({{pinned ? "pinned" : "unpinned", steps}});
  } else if (changed.empty()) {
    fmt::print("none of these steps was pinned\n");
  }
  return kGood;
}

}  // namespace cairn::tools
