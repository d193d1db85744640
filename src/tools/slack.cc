#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "advice/energy.h"
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

Result<std::vector<InstructionFile>> ReadFiles(const std::vector<std::string>& paths, std::string_view what) {
  std::vector<InstructionFile> files;
  for (const std::string& path : paths) {
    CAIRN_ASSIGN_OR_RETURN(std::string text, ReadInputFile(path, what, kMostRecordBytes));
    files.push_back({path, std::move(text)});
  }
  return files;
}

bool HasSpeeds(const InstructionFile& file) {
  return file.text.substr(0, file.text.find('\n')).find("frequency_mhz") != std::string::npos;
}

/// What a stage's ranks spend in an iteration, and of that while they wait.
struct StageEnergy {
  double joules = 0;
  double waiting = 0;
};

/// By stage. Without `waiting_watts` a stage that waits is taken to draw as much as on average, which is the most.
Result<std::vector<StageEnergy>> ReadStageEnergies(const std::vector<InstructionFile>& files,
                                                   const RecordedPipeline& recorded, const PipelineSchedule& schedule,
                                                   const std::optional<double>& waiting_watts) {
  std::vector<StageEnergy> stages(schedule.stages.size());
  std::set<std::uint64_t> ranks;
  for (const InstructionFile& file : files) {
    std::uint64_t rank = 0;
    const std::size_t dash = file.name.rfind('-');
    const char* const begin = file.name.data() + (dash == std::string::npos ? 0 : dash + 1);
    const auto [end, error] = std::from_chars(begin, file.name.data() + file.name.size(), rank);
    const auto stage = recorded.stage_of_rank.find(rank);
    if (error != std::errc() || std::string_view(end) != ".csv" || stage == recorded.stage_of_rank.end()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: expected time-energy-<rank>.csv of a rank whose instructions are given", file.name);
    }
    if (!ranks.insert(rank).second) {
      return Error(StatusCode::kInvalidArgument, "{}: rank {} is there twice", file.name, rank);
    }
    CAIRN_ASSIGN_OR_RETURN(const RankEnergy energy, ReadEnergy(file));
    const double waits = std::max(0.0, schedule.seconds - BusySeconds(schedule.stages[stage->second]));
    stages[stage->second].joules += energy.joules / static_cast<double>(recorded.steps);
    stages[stage->second].waiting += waits * waiting_watts.value_or(energy.joules / energy.seconds);
  }
  if (ranks.size() != recorded.stage_of_rank.size()) {
    return Error(StatusCode::kInvalidArgument, "--energy: expected the files of {} ranks, found {}",
                 recorded.stage_of_rank.size(), ranks.size());
  }
  return stages;
}

json ToJson(const std::vector<StageEnergy>& stages) {
  json out = json::array();
  for (const StageEnergy& stage : stages) out.push_back({{"joules", stage.joules}, {"waiting_joules", stage.waiting}});
  return out;
}

void Print(const std::vector<StageEnergy>& stages, bool at_most) {
  std::vector<std::vector<std::string>> rows{
      {"\nSTAGE", "ENERGY OF A STEP", at_most ? "AT MOST WHILE IT WAITS" : "WHILE IT WAITS"}};
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    rows.push_back({fmt::to_string(stage), fmt::format("{:.4g} J", stages[stage].joules),
                    fmt::format("{:.4g} J", stages[stage].waiting)});
  }
  PrintTable(rows);
}

/// The clocks of a stage's instructions, by micro-batch.
std::vector<double> Clocks(const std::vector<std::size_t>& chosen, const std::vector<Speed>& speeds) {
  std::vector<double> clocks;
  for (const std::size_t speed : chosen) clocks.push_back(speeds[speed].mhz);
  return clocks;
}

json ToJson(const SlowedPipeline& slowed, const std::vector<StageSpeeds>& speeds) {
  json stages = json::array();
  for (std::size_t stage = 0; stage < speeds.size(); ++stage) {
    stages.push_back({{"forward_mhz", Clocks(slowed.forward[stage], speeds[stage].forward)},
                      {"backward_mhz", Clocks(slowed.backward[stage], speeds[stage].backward)}});
  }
  return {{"joules", slowed.joules}, {"fastest_joules", slowed.fastest_joules}, {"stages", std::move(stages)}};
}

void Print(const SlowedPipeline& slowed, const std::vector<StageSpeeds>& speeds) {
  fmt::print(
      "\nwith the slowest clocks that leave the longest path as it is: {:.5g} J an iteration instead of {:.5g} J, "
      "{:.1f} % less\n\n",
      slowed.joules, slowed.fastest_joules, 100 * (1 - slowed.joules / slowed.fastest_joules));
  const auto range = [](const std::vector<double>& clocks) {
    const auto [least, most] = std::ranges::minmax(clocks);
    return least == most ? fmt::format("{:g}", least) : fmt::format("{:g} to {:g}", least, most);
  };
  std::vector<std::vector<std::string>> rows{{"STAGE", "FORWARD MHz", "BACKWARD MHz"}};
  for (std::size_t stage = 0; stage < speeds.size(); ++stage) {
    rows.push_back({fmt::to_string(stage), range(Clocks(slowed.forward[stage], speeds[stage].forward)),
                    range(Clocks(slowed.backward[stage], speeds[stage].backward))});
  }
  PrintTable(rows);
}

/// The part of --energy, after the schedule.
Status AddEnergy(const SlackOptions& options, const RecordedPipeline& recorded, const PipelineSchedule& schedule,
                 json& out) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<InstructionFile> files, ReadFiles(options.energy, "energies"));
  if (std::ranges::none_of(files, HasSpeeds)) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<StageEnergy> stages,
                           ReadStageEnergies(files, recorded, schedule, options.waiting_watts));
    out["energy"] = ToJson(stages);
    if (!options.json) Print(stages, !options.waiting_watts);
    return Status::Ok();
  }
  if (files.size() != 1 || !options.waiting_watts) {
    return Error(StatusCode::kInvalidArgument,
                 "--energy: expected one file with frequency_mhz, and --waiting-watts, found {} files{}", files.size(),
                 options.waiting_watts ? "" : " without it");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StageSpeeds> speeds, ReadSpeeds(files[0]));
  CAIRN_ASSIGN_OR_RETURN(const SlowedPipeline slowed, SlowWithinSlack(recorded.times, speeds, *options.waiting_watts));
  out["slowed"] = ToJson(slowed, speeds);
  if (!options.json) Print(slowed, speeds);
  return Status::Ok();
}

}  // namespace

Result<int> Slack(const SlackOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<InstructionFile> files, ReadFiles(options.files, "instructions"));
  CAIRN_ASSIGN_OR_RETURN(const RecordedPipeline recorded, ReadInstructions(files));
  CAIRN_ASSIGN_OR_RETURN(const PipelineSchedule schedule, Schedule1F1B(recorded.times));
  json out = ToJson(recorded, schedule);
  if (!options.json) Print(recorded, schedule);
  if (!options.energy.empty()) CAIRN_RETURN_IF_ERROR(AddEnergy(options, recorded, schedule, out));
  if (options.json) PrintJson(out);
  return kGood;
}

}  // namespace cairn::tools
