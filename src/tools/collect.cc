#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "store/list.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/reading.h"
#include "tools/removal.h"

namespace cairn::tools {
namespace {

struct Collected {
  std::vector<CheckpointInfo> chosen;
  WritableRoot::Removed removed;
};

Result<std::vector<CheckpointInfo>> Choose(const CollectOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoot(options.root));
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> list, ListCheckpoints(options.root));
  CheckShardsAndSay(list, options.keep_last, /*doomed=*/{});
  std::vector<const CheckpointInfo*> infos;
  for (const StoredCheckpoint& checkpoint : list) infos.push_back(&checkpoint.info);
  const std::vector<std::uint64_t> steps = ChooseRetired(infos, options.keep_last, options.keep_every);
  std::vector<CheckpointInfo> chosen;
  for (StoredCheckpoint& checkpoint : list) {
    if (std::ranges::find(steps, checkpoint.info.step) != steps.end()) chosen.push_back(std::move(checkpoint.info));
  }
  return chosen;
}

Result<Collected> ChooseAndRemove(const CollectOptions& options) {
  // Without the lock: a job may start while somebody thinks.
  std::optional<std::vector<CheckpointInfo>> shown;
  if (Asks(options.yes)) {
    CAIRN_ASSIGN_OR_RETURN(shown, Choose(options));
    if (!shown->empty()) CAIRN_RETURN_IF_ERROR(Confirm(*shown, ""));
  }
  CAIRN_ASSIGN_OR_RETURN(WritableRoot root, WritableRoot::Open(options.root));
  Collected collected;
  CAIRN_ASSIGN_OR_RETURN(collected.chosen, Choose(options));
  std::erase_if(collected.chosen, [&shown](const CheckpointInfo& info) {
    return shown &&
           std::ranges::none_of(*shown, [&info](const CheckpointInfo& one) { return one.attempt == info.attempt; });
  });
  collected.removed = root.Remove(collected.chosen);
  return collected;
}

Result<Collected> DryRun(const CollectOptions& options) {
  Collected collected;
  CAIRN_ASSIGN_OR_RETURN(collected.chosen, Choose(options));
  return collected;
}

}  // namespace

Result<int> Collect(const CollectOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Collected collected, options.dry_run ? DryRun(options) : ChooseAndRemove(options));
  const auto& counted = options.dry_run ? collected.chosen : collected.removed.steps;
  if (options.json) {
    PrintJson({{"dry_run", options.dry_run},
               {"chosen", Steps(collected.chosen)},
               {"removed", Steps(collected.removed.steps)},
               {"bytes", TotalBytes(counted)}});
  } else {
    for (const CheckpointInfo& info : counted) {
      fmt::print("{} step {}, {}\n", options.dry_run ? "would remove" : "removed", info.step, HumanBytes(info.bytes));
    }
    fmt::print("{}, {}\n", Count(counted.size(), "checkpoint"), HumanBytes(TotalBytes(counted)));
  }
  CAIRN_RETURN_IF_ERROR(collected.removed.failure);
  return kGood;
}

}  // namespace cairn::tools
