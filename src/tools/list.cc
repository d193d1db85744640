#include "store/list.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/output.h"

namespace cairn::tools {

int List(const std::string& root, bool json) {
  const Result<std::vector<StoredCheckpoint>> list = ListCheckpoints(root);
  if (!list.ok()) return ReportError(list.status());
  bool damaged = false;
  nlohmann::json objects = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"STEP", "GENERATION", "WORLD", "SIZE", "PINNED", "PATH"}};
  for (const StoredCheckpoint& checkpoint : *list) {
    const CheckpointInfo& info = checkpoint.info;
    damaged = damaged || !info.status.ok();
    objects.push_back(ToJson(info));
    if (info.status.ok()) {
      rows.push_back({std::to_string(info.step), std::to_string(info.generation), std::to_string(info.world),
                      HumanBytes(info.bytes), info.pinned ? "yes" : "no", Printable(info.path)});
    } else {
      rows.push_back({std::to_string(info.step), "-", "-", "-", "-", Printable(info.status.ToString())});
    }
  }
  if (json) {
    PrintJson(objects);
  } else if (list->empty()) {
    fmt::print("there is no checkpoint under {}\n", Printable(root));
  } else {
    PrintTable(rows);
  }
  return damaged ? kDamagedOrDifferent : kGood;
}

}  // namespace cairn::tools
