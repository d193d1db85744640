// Commands for steps that are named one by one: rm, pin and unpin.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
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

Result<std::vector<CheckpointInfo>> ListRootInfos(const std::string& root) {
  CAIRN_RETURN_IF_ERROR(CheckRoot(root));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> list, ListCheckpoints(root));
  return Infos(list);
}

Status CheckUnpinned(const StepsOptions& options, const std::vector<CheckpointInfo>& doomed) {
  std::vector<std::uint64_t> pinned;
  for (const CheckpointInfo& info : doomed) {
    if (IsPinned(PathAt(info.path))) pinned.push_back(info.step);
  }
  if (pinned.empty()) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "pinned: {}; nothing was removed. First run: cairn unpin {} {}",
               DescribeSteps(pinned), options.root, fmt::join(pinned, " "));
}

/// What a job resumes from without the doomed ones; empty if that does not change.
std::string Consequence(const std::vector<CheckpointInfo>& list, const std::vector<CheckpointInfo>& doomed) {
  const auto newest = [](const CheckpointInfo& info) { return info.status.ok(); };
  const auto before = std::find_if(list.rbegin(), list.rend(), newest);
  const auto after = std::find_if(list.rbegin(), list.rend(), [&](const CheckpointInfo& info) {
    return newest(info) && std::none_of(doomed.begin(), doomed.end(),
                                        [&info](const CheckpointInfo& one) { return one.step == info.step; });
  });
  if (before == after) return "";
  if (after == list.rend()) return "No checkpoint remains: a job begins anew.";
  return fmt::format("Step {} is then the newest: a job resumes from it.", after->step);
}

struct Removed {
  std::vector<CheckpointInfo> steps;
  std::string consequence;
  // The first removal that failed; the others are tried anyway.
  Status failure;
};

Result<Removed> RemoveNamed(const StepsOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListRootInfos(options.root));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> doomed, Named(options, list));
  CAIRN_RETURN_IF_ERROR(CheckUnpinned(options, doomed));
  if (Asks(options.yes)) CAIRN_RETURN_IF_ERROR(Confirm(doomed, Consequence(list, doomed)));
  CAIRN_ASSIGN_OR_RETURN(WritableRoot root, WritableRoot::Open(options.root));
  Removed removed;
  for (const CheckpointInfo& info : doomed) {
    Status status = root.Remove(info);
    if (status.ok()) {
      removed.steps.push_back(info);
    } else if (removed.failure.ok()) {
      removed.failure = std::move(status);
    }
  }
  removed.consequence = Consequence(list, removed.steps);
  return removed;
}

struct Changed {
  std::uint64_t step = 0;
  std::optional<PinOwner> before;
};

/// Needs no writer's lock: whoever removes a step looks for its pin while no reader, and so nobody who pins, has it.
Result<std::vector<Changed>> PinNamed(const StepsOptions& options, std::optional<PinOwner> owner) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListRootInfos(options.root));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> named, Named(options, list));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, MakeQueue());
  std::vector<Changed> changed;
  for (const CheckpointInfo& info : named) {
    changed.push_back({info.step, FindPin(PathAt(info.path))});
    CAIRN_RETURN_IF_ERROR(SetPin(*queue, PathAt(options.root), info.step, owner, kFileMode));
  }
  return changed;
}

}  // namespace

int Remove(const StepsOptions& options) {
  const Result<Removed> removed = RemoveNamed(options);
  if (!removed.ok()) return ReportError(removed.status());
  if (options.json) {
    PrintJson({{"removed", Steps(removed->steps)}, {"bytes", TotalBytes(removed->steps)}});
  } else {
    for (const CheckpointInfo& info : removed->steps) {
      fmt::print("removed step {}, {}\n", info.step, info.status.ok() ? HumanBytes(info.bytes) : "damaged");
    }
    if (!removed->consequence.empty()) fmt::print("{}\n", removed->consequence);
  }
  return removed->failure.ok() ? kGood : ReportError(removed->failure);
}

int Pin(const StepsOptions& options, bool pinned) {
  const Result<std::vector<Changed>> changed =
      PinNamed(options, pinned ? std::optional(PinOwner::kUser) : std::nullopt);
  if (!changed.ok()) return ReportError(changed.status());
  nlohmann::json steps = nlohmann::json::array();
  for (const Changed& one : *changed) {
    steps.push_back(one.step);
    if (options.json) continue;
    const bool again = !pinned && one.before == PinOwner::kBest;
    fmt::print("{} step {}{}\n", pinned ? "pinned" : "unpinned", one.step,
               again ? "; keep_best had pinned it, and may do so again" : "");
  }
  if (options.json) PrintJson({{pinned ? "pinned" : "unpinned", steps}});
  return kGood;
}

}  // namespace cairn::tools
