#include "tools/removal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/human.h"
#include "base/print_error.h"
#include "base/status_macros.h"
#include "store/memory_folder.h"
#include "store/remove.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {

bool Asks(bool yes) { return !yes && ::isatty(STDIN_FILENO) == 1; }

void CheckShardsAndSay(std::vector<StoredCheckpoint>& list, std::uint64_t enough,
                       const std::vector<CheckpointInfo>& doomed) {
  for (const std::string& why : CheckNewestShards(list, enough, doomed)) PrintError("{}\n", Printable(why));
}

Status Confirm(const std::vector<CheckpointInfo>& doomed, const std::string& consequence) {
  for (const CheckpointInfo& info : doomed) {
    PrintError("  step {}, {}, {}\n", info.step, CommitTime(info),
               info.status.ok() ? HumanBytes(info.bytes) : "damaged");
  }
  if (!consequence.empty()) PrintError("{}\n", consequence);
  PrintError("Remove {}, {}? [y/N] ", Count(doomed.size(), "checkpoint"), HumanBytes(TotalBytes(doomed)));
  std::array<char, 16> answer{};
  if (std::fgets(answer.data(), answer.size(), stdin) != nullptr) {
    const std::string_view said(answer.data());
    if (said == "y\n" || said == "Y\n" || said == "yes\n") return Status::Ok();
  }
  return {StatusCode::kCancelled, "nothing was removed"};
}

bool HasStep(const std::vector<CheckpointInfo>& infos, std::uint64_t step) {
  return std::ranges::any_of(infos, [step](const CheckpointInfo& info) { return info.step == step; });
}

std::uint64_t TotalBytes(const std::vector<CheckpointInfo>& infos) {
  return std::accumulate(infos.begin(), infos.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const CheckpointInfo& info) { return sum + info.bytes; });
}

Result<WritableRoot> WritableRoot::Open(const std::string& path) {
  // Root::Open would make a root of any path.
  CAIRN_RETURN_IF_ERROR(CheckRoot(path));
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, MakeQueue());
  Result<std::unique_ptr<Root>> root = Root::Open(*queue, {.path = path});
  if (root.status().detail() == StatusDetail::kOpenElsewhere) {
    return Error(StatusCode::kFailedPrecondition, "{}: end it first, or call remove(step) of its checkpointer",
                 root.status().message());
  }
  if (!root.ok()) return root.status();
  std::optional<std::vector<std::string>> left;
  Sweep(*queue, (*root)->at(), {}, FindMemoryPlace((*root)->record()),
        [&left](Swept swept) { left = std::move(swept.left); });
  while (!left) CAIRN_RETURN_IF_ERROR(queue->RunOnce(Deadline::Infinite()).status());
  for (const std::string& why : *left) PrintError("{}\n", Printable(why));
  return WritableRoot(std::move(queue), *std::move(root));
}

WritableRoot::Removed WritableRoot::Remove(const std::vector<CheckpointInfo>& doomed) {
  Removed removed;
  for (const CheckpointInfo& info : doomed) {
    Status status =
        RemoveCheckpointBlocking(*queue_, root_->at(), info.step,
                                 {.attempt = info.attempt, .check_writer = [this] { return root_->CheckWriter(); }})
            .status;
    if (status.ok()) {
      removed.steps.push_back(info);
    } else if (removed.failure.ok()) {
      removed.failure = std::move(status);
    }
  }
  return removed;
}

}  // namespace cairn::tools
