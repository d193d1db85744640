#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "advice/input_file.h"
#include "advice/instructions.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

/// More than a rank's records of a day.
constexpr std::size_t kMostRecordBytes = 256U << 20;

double BusySeconds(const std::vector<Instruction>& stage) {
  double seconds = 0;
  for (const Instruction& one : stage) seconds += one.end - one.begin;
  return seconds;
}

std::string_view Name(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

json ToJson(const Instruction& one) {
  return {{"instruction", Name(one.pass)},
          {"micro_batch", one.micro_batch},
          {"begin", one.begin},
          {"end", one.end},
          {"slack", one.slack}};
}

json ToJson(const RecordedPipeline& recorded, const PipelineSchedule& schedule) {
  json stages = json::array();
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    json instructions = json::array();
    for (const Instruction& one : schedule.stages[stage]) instructions.push_back(ToJson(one));
    json idle = json::array();
    for (const IdleWindow& window : schedule.idle[stage]) {
      idle.push_back({{"begin", window.begin}, {"end", window.end}});
    }
    stages.push_back({{"busy_seconds", BusySeconds(schedule.stages[stage])},
                      {"idle", std::move(idle)},
                      {"instructions", std::move(instructions)}});
  }
  json path = json::array();
  for (const Instruction& one : schedule.critical_path) {
    path.push_back({{"stage", one.stage}, {"instruction", Name(one.pass)}, {"micro_batch", one.micro_batch}});
  }
  return {{"steps", recorded.steps},          {"recorded_seconds", recorded.seconds},
          {"seconds", schedule.seconds},      {"send_seconds", recorded.times.send},
          {"critical_path", std::move(path)}, {"stages", std::move(stages)}};
}

void Print(const RecordedPipeline& recorded, const PipelineSchedule& schedule) {
  fmt::print(
      "an iteration's forwards and backwards take at least {}: the longest path; recorded {}, the median of {}\n\n",
      HumanSeconds(schedule.seconds), HumanSeconds(recorded.seconds), Count(recorded.steps, "step"));
  std::vector<std::vector<std::string>> rows{{"STAGE", "BUSY", "IDLE", "OF IT", "WINDOWS", "LONGEST", "FROM"}};
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    const std::vector<IdleWindow>& idle = schedule.idle[stage];
    const double busy = BusySeconds(schedule.stages[stage]);
    const double waits = std::max(0.0, schedule.seconds - busy);
    rows.push_back({fmt::to_string(stage), HumanSeconds(busy), HumanSeconds(waits),
                    fmt::format("{:.1f} %", schedule.seconds > 0 ? 100 * waits / schedule.seconds : 0),
                    fmt::to_string(idle.size())});
    if (idle.empty()) {
      rows.back().insert(rows.back().end(), {"-", "-"});
      continue;
    }
    const IdleWindow longest = *std::ranges::max_element(
        idle, [](const IdleWindow& a, const IdleWindow& b) { return a.end - a.begin < b.end - b.begin; });
    rows.back().insert(rows.back().end(), {HumanSeconds(longest.end - longest.begin), HumanSeconds(longest.begin)});
  }
  PrintTable(rows);
  fmt::print("\nlongest path:");
  for (const Instruction& one : schedule.critical_path) {
    fmt::print(" {}{}@{}", one.pass == Pass::kForward ? 'F' : 'B', one.micro_batch, one.stage);
  }
  fmt::print("\n");
}

}  // namespace

Result<int> Slack(const SlackOptions& options) {
  std::vector<InstructionFile> files;
  for (const std::string& path : options.files) {
    CAIRN_ASSIGN_OR_RETURN(std::string text, ReadInputFile(path, "instructions", kMostRecordBytes));
    files.push_back({path, std::move(text)});
  }
  CAIRN_ASSIGN_OR_RETURN(const RecordedPipeline recorded, ReadInstructions(files));
  CAIRN_ASSIGN_OR_RETURN(const PipelineSchedule schedule, Schedule1F1B(recorded.times));
  if (options.json) {
    PrintJson(ToJson(recorded, schedule));
  } else {
    Print(recorded, schedule);
  }
  return kGood;
}

}  // namespace cairn::tools
