#include "store/list.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

Result<std::vector<StoredCheckpoint>> Checkpoints(const std::string& root) {
  CAIRN_RETURN_IF_ERROR(CheckRoot(root));
  return ListCheckpoints(root);
}

void PrintList(const std::string& root, const std::vector<StoredCheckpoint>& list) {
  if (list.empty()) {
    fmt::print("there is no checkpoint under {}\n", Printable(root));
    return;
  }
  std::vector<std::vector<std::string>> rows{{"STEP", "GENERATION", "WORLD", "SIZE", "PINNED", "PATH"}};
  for (const StoredCheckpoint& checkpoint : list) {
    const CheckpointInfo& info = checkpoint.info;
    if (info.status.ok()) {
      rows.push_back({std::to_string(info.step), std::to_string(info.generation), std::to_string(info.world),
                      HumanBytes(info.bytes), info.pinned ? "yes" : "no", Printable(info.path)});
    } else {
      rows.push_back(
          {std::to_string(info.step), "-", "-", "-", "-", Coloured(Printable(info.status.ToString()), Colour::kRed)});
    }
  }
  PrintTable(rows);
}

}  // namespace

int List(const std::vector<std::string>& roots, bool json) {
  int exit_code = kGood;
  nlohmann::json objects = nlohmann::json::array();
  for (const std::string& root : roots) {
    const Result<std::vector<StoredCheckpoint>> list = Checkpoints(root);
    if (!list.ok()) {
      exit_code = std::max(exit_code, ReportError(list.status()));
      continue;
    }
    for (const StoredCheckpoint& checkpoint : *list) {
      objects.push_back(ToJson(checkpoint.info));
      if (!checkpoint.info.status.ok()) exit_code = std::max(exit_code, kDamagedOrDifferent);
    }
    if (json) continue;
    if (roots.size() > 1) fmt::print("{}{}:\n", &root == &roots.front() ? "" : "\n", Printable(root));
    PrintList(root, *list);
  }
  // One list, however many roots: each checkpoint has its path.
  if (json && (exit_code != kFailed || roots.size() > 1)) PrintJson(objects);
  return exit_code;
}

}  // namespace cairn::tools
