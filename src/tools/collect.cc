#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/human.h"
#include "base/status_macros.h"
#include "store/list.h"
#include "store/remove.h"
#include "store/root.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

struct Collected {
  // Step -> bytes.
  std::map<std::uint64_t, std::uint64_t> chosen;
  std::map<std::uint64_t, std::uint64_t> removed;
  // The first removal that failed; the others are tried anyway.
  Status failure;
};

// Checks the shards of the checkpoints to keep: others are removed because of them, so a manifest alone is not enough.
void CheckKeptShards(std::vector<StoredCheckpoint>& list, std::uint64_t keep_last) {
  std::uint64_t good = 0;
  for (auto newest = list.rbegin(); newest != list.rend() && good < keep_last; ++newest) {
    CheckpointInfo& info = newest->info;
    if (!info.status.ok()) continue;
    info.status = CheckShardFiles(*newest);
    if (info.status.ok()) {
      ++good;
    } else {
      fmt::print(stderr, "step {} is not counted: {}\n", info.step, Printable(info.status.ToString()));
    }
  }
}

Result<Collected> Choose(const CollectOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> list, ListCheckpoints(options.root));
  CheckKeptShards(list, options.keep_last);
  std::vector<const CheckpointInfo*> infos;
  for (const StoredCheckpoint& checkpoint : list) infos.push_back(&checkpoint.info);
  const std::vector<std::uint64_t> steps = ChooseRetired(infos, options.keep_last, options.keep_every);
  Collected collected;
  for (const StoredCheckpoint& checkpoint : list) {
    const CheckpointInfo& info = checkpoint.info;
    if (std::find(steps.begin(), steps.end(), info.step) != steps.end())
      collected.chosen.emplace(info.step, info.bytes);
  }
  return collected;
}

std::vector<std::uint64_t> Steps(const std::map<std::uint64_t, std::uint64_t>& of) {
  std::vector<std::uint64_t> steps;
  steps.reserve(of.size());
  for (const auto& [step, bytes] : of) steps.push_back(step);
  return steps;
}

Result<Collected> ChooseAndRemove(const CollectOptions& options) {
  // Root::Open would make a root of any path.
  CAIRN_RETURN_IF_ERROR(CheckRoot(options.root));
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice choice, ChooseIoQueue(IoQueueKind::kAuto, 1));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, choice.factory());
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Root> root, Root::Open(*queue, {.path = options.root}));
  const PathAt& at = root->at();
  std::optional<std::vector<std::string>> left;
  Sweep(*queue, at, {}, [&left](Swept swept) { left = std::move(swept.left); });
  while (!left) CAIRN_RETURN_IF_ERROR(queue->RunOnce(Deadline::Infinite()).status());
  for (const std::string& why : *left) fmt::print(stderr, "{}\n", why);
  CAIRN_ASSIGN_OR_RETURN(Collected collected, Choose(options));
  for (const auto& [step, bytes] : collected.chosen) {
    const Status removed =
        RemoveCheckpointBlocking(*queue, at, step, {.check_writer = [&root] { return root->CheckWriter(); }}).status;
    if (removed.ok()) {
      collected.removed.emplace(step, bytes);
    } else if (collected.failure.ok()) {
      collected.failure = removed;
    }
  }
  return collected;
}

}  // namespace

int Collect(const CollectOptions& options) {
  const Result<Collected> collected = options.dry_run ? Choose(options) : ChooseAndRemove(options);
  if (!collected.ok()) return ReportError(collected.status());
  const auto& counted = options.dry_run ? collected->chosen : collected->removed;
  std::uint64_t bytes = 0;
  for (const auto& [step, of_step] : counted) bytes += of_step;
  if (options.json) {
    PrintJson({{"dry_run", options.dry_run},
               {"chosen", Steps(collected->chosen)},
               {"removed", Steps(collected->removed)},
               {"bytes", bytes}});
  } else {
    for (const auto& [step, of_step] : counted) {
      fmt::print("{} step {}\n", options.dry_run ? "would remove" : "removed", step);
    }
    fmt::print("{}, {}\n", Count(counted.size(), "checkpoint"), HumanBytes(bytes));
  }
  return collected->failure.ok() ? kGood : ReportError(collected->failure);
}

}  // namespace cairn::tools
