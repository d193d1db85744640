#include "advice/energy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "advice/csv_cells.h"
#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

/// Lines of a CSV file without quotes, with columns by name.
class Table {
 public:
  static Result<Table> Read(const InstructionFile& file, std::span<const std::string_view> columns) {
    Table table(file);
    std::string_view rest = file.text;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      table.rows_.push_back(CsvCells(line));
    }
    for (const std::string_view column : columns) {
      const auto& head = table.rows_.empty() ? std::vector<std::string_view>() : table.rows_[0];
      const auto at = std::ranges::find(head, column);
      if (at == head.end()) {
        return Error(StatusCode::kInvalidArgument, "{}:1: expected a column {}, found none", file.name, column);
      }
      table.places_.push_back(static_cast<std::size_t>(at - head.begin()));
    }
    return table;
  }

  [[nodiscard]] std::size_t size() const { return rows_.size(); }
  [[nodiscard]] bool IsEmpty(std::size_t row) const { return rows_[row].size() == 1 && rows_[row][0].empty(); }
  /// Empty if the line is too short.
  [[nodiscard]] std::string_view Cell(std::size_t row, std::size_t column) const {
    return places_[column] < rows_[row].size() ? rows_[row][places_[column]] : std::string_view();
  }
  [[nodiscard]] Status Wrong(std::size_t row, std::string_view expected, std::string_view found) const {
    return Error(StatusCode::kInvalidArgument, "{}:{}: expected {}, found {}", file_.name, row + 1, expected,
                 Quoted(found));
  }
  [[nodiscard]] Result<double> Number(std::size_t row, std::size_t column) const {
    const std::string_view text = Cell(row, column);
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && std::isfinite(number) && number >= 0) return number;
    return Wrong(row, "a number of 0 or more", text);
  }

 private:
  explicit Table(const InstructionFile& file) : file_(file) {}

  const InstructionFile& file_;
  std::vector<std::vector<std::string_view>> rows_;
  std::vector<std::size_t> places_;
};

/// Whether going from a through b to c saves more for each second in the second part than in the first: then b is
/// beaten by a mixture of a and c.
bool IsBeaten(const Speed& a, const Speed& b, const Speed& c) {
  return (b.joules - c.joules) * (b.seconds - a.seconds) >= (a.joules - b.joules) * (c.seconds - b.seconds);
}

/// Leaves those that nothing beats, the fastest first.
void KeepEfficient(std::vector<Speed>& speeds) {
  std::ranges::sort(speeds, [](const Speed& a, const Speed& b) {
    return std::pair(a.seconds, a.joules) < std::pair(b.seconds, b.joules);
  });
  std::vector<Speed> kept;
  for (const Speed& speed : speeds) {
    if (!kept.empty() && speed.joules >= kept.back().joules) continue;
    while (kept.size() > 1 && IsBeaten(kept.end()[-2], kept.back(), speed)) kept.pop_back();
    kept.push_back(speed);
  }
  speeds = std::move(kept);
}

/// Chooses speeds.
class Slowing {
 public:
  Slowing(const PipelineTimes& times, const std::vector<StageSpeeds>& speeds, double waiting_watts)
      : fastest_(times), speeds_(speeds), waiting_watts_(waiting_watts) {
    out_.times = times;
    out_.forward.assign(times.forward.size(), std::vector<std::size_t>(times.forward[0].size()));
    out_.backward = out_.forward;
  }

  Result<SlowedPipeline> Run() {
    CAIRN_ASSIGN_OR_RETURN(PipelineSchedule schedule, Schedule1F1B(out_.times));
    const double seconds = schedule.seconds;
    out_.fastest_joules = Joules(seconds);
    while (const Instruction* const best = Best(schedule, seconds)) {
      ++Chosen(*best);
      Time(*best) = TimeAt(*best, Chosen(*best));
      CAIRN_ASSIGN_OR_RETURN(schedule, Schedule1F1B(out_.times));
    }
    out_.joules = Joules(seconds);
    return std::move(out_);
  }

 private:
  [[nodiscard]] const std::vector<Speed>& SpeedsOf(std::size_t stage, Pass pass) const {
    return pass == Pass::kForward ? speeds_[stage].forward : speeds_[stage].backward;
  }
  std::size_t& Chosen(const Instruction& of) {
    return (of.pass == Pass::kForward ? out_.forward : out_.backward)[of.stage][of.micro_batch];
  }
  double& Time(const Instruction& of) {
    return (of.pass == Pass::kForward ? out_.times.forward : out_.times.backward)[of.stage][of.micro_batch];
  }
  [[nodiscard]] double TimeAt(const Instruction& of, std::size_t speed) const {
    const std::vector<Speed>& speeds = SpeedsOf(of.stage, of.pass);
    const double fastest = (of.pass == Pass::kForward ? fastest_.forward : fastest_.backward)[of.stage][of.micro_batch];
    return fastest * speeds[speed].seconds / speeds[0].seconds;
  }

  /// The one whose next speed fits its slack and saves most for each second; null if there is none.
  const Instruction* Best(const PipelineSchedule& schedule, double seconds) {
    const Instruction* best = nullptr;
    double most = 0;
    for (const std::vector<Instruction>& stage : schedule.stages) {
      for (const Instruction& one : stage) {
        const std::vector<Speed>& speeds = SpeedsOf(one.stage, one.pass);
        const std::size_t next = Chosen(one) + 1;
        if (next >= speeds.size()) continue;
        const double longer = TimeAt(one, next) - Time(one);
        if (longer > one.slack + 1e-9 * seconds) continue;
        const double saved = (speeds[next - 1].joules - speeds[next].joules) / std::max(longer, 1e-12);
        if (saved <= most) continue;
        most = saved;
        best = &one;
      }
    }
    return best;
  }

  [[nodiscard]] double Joules(double seconds) const {
    double joules = 0;
    double waits = 0;
    for (std::size_t stage = 0; stage < speeds_.size(); ++stage) {
      waits += seconds;
      for (std::size_t i = 0; i < out_.forward[stage].size(); ++i) {
        joules += speeds_[stage].forward[out_.forward[stage][i]].joules;
        joules += speeds_[stage].backward[out_.backward[stage][i]].joules;
        waits -= out_.times.forward[stage][i] + out_.times.backward[stage][i];
      }
    }
    return joules + waiting_watts_ * waits;
  }

  const PipelineTimes& fastest_;
  const std::vector<StageSpeeds>& speeds_;
  const double waiting_watts_;
  SlowedPipeline out_;
};

}  // namespace

Result<std::vector<StageSpeeds>> ReadSpeeds(const InstructionFile& file) {
  constexpr std::string_view kSpeedColumns[] = {"stage", "instruction", "frequency_mhz", "time_s",
                                                "energy_j"};  // NOLINT
  constexpr double kMostStages = 4096;
  CAIRN_ASSIGN_OR_RETURN(const Table table, Table::Read(file, kSpeedColumns));
  std::vector<StageSpeeds> stages;
  for (std::size_t row = 1; row < table.size(); ++row) {
    if (table.IsEmpty(row)) continue;
    CAIRN_ASSIGN_OR_RETURN(const double stage, table.Number(row, 0));
    if (stage != std::floor(stage) || stage >= kMostStages) {
      return table.Wrong(row, "a stage below 4096", table.Cell(row, 0));
    }
    Speed speed;
    CAIRN_ASSIGN_OR_RETURN(speed.mhz, table.Number(row, 2));
    CAIRN_ASSIGN_OR_RETURN(speed.seconds, table.Number(row, 3));
    CAIRN_ASSIGN_OR_RETURN(speed.joules, table.Number(row, 4));
    if (speed.seconds == 0) return table.Wrong(row, "a time of more than 0 s", table.Cell(row, 3));
    const auto at = static_cast<std::size_t>(stage);
    if (stages.size() <= at) stages.resize(at + 1);
    const std::string_view instruction = table.Cell(row, 1);
    if (instruction != "forward" && instruction != "backward") {
      return table.Wrong(row, "forward or backward", instruction);
    }
    (instruction == "forward" ? stages[at].forward : stages[at].backward).push_back(speed);
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].forward.empty() || stages[stage].backward.empty()) {
      return Error(StatusCode::kInvalidArgument, "{}: expected forward and backward of stage {}, found none", file.name,
                   stage);
    }
    KeepEfficient(stages[stage].forward);
    KeepEfficient(stages[stage].backward);
  }
  return stages;
}

Result<RankEnergy> ReadEnergy(const InstructionFile& file) {
  constexpr std::string_view kEnergyColumns[] = {"time", "energy_j", "source"};  // NOLINT
  CAIRN_ASSIGN_OR_RETURN(const Table table, Table::Read(file, kEnergyColumns));
  RankEnergy energy;
  bool begun = false;
  double begin = 0;
  double joules_before = 0;
  for (std::size_t row = 1; row < table.size(); ++row) {
    if (table.IsEmpty(row)) continue;
    if (table.Cell(row, 1).empty()) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: expected joules, found none: {}", file.name, row + 1,
                   table.Cell(row, 2));
    }
    CAIRN_ASSIGN_OR_RETURN(const double time, table.Number(row, 0));
    CAIRN_ASSIGN_OR_RETURN(const double joules, table.Number(row, 1));
    if (begun) {
      if (time < begin || joules < joules_before) {
        return table.Wrong(row, "a time and joules not below the line before", table.Cell(row, 0));
      }
      energy.seconds += time - begin;
      energy.joules += joules - joules_before;
    } else {
      begin = time;
      joules_before = joules;
    }
    begun = !begun;
  }
  if (energy.seconds > 0) return energy;
  return Error(StatusCode::kInvalidArgument, "{}: expected lines before and after each step, found none", file.name);
}

Result<SlowedPipeline> SlowWithinSlack(const PipelineTimes& times, const std::vector<StageSpeeds>& speeds,
                                       double waiting_watts) {
  CAIRN_RETURN_IF_ERROR(Schedule1F1B(times).status());
  if (speeds.size() != times.forward.size()) {
    return Error(StatusCode::kInvalidArgument, "speeds: expected those of {} stages, found {}", times.forward.size(),
                 speeds.size());
  }
  return Slowing(times, speeds, waiting_watts).Run();
}

}  // namespace cairn
