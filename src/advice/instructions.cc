#include "advice/instructions.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "advice/csv_cells.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 7> kColumns = {"instruction", "start", "end",        "step",
                                                      "rank",        "stage", "micro_batch"};
enum Column : std::uint8_t { kInstruction, kStart, kEnd, kStep, kRank, kStage, kMicroBatch };

// Instructions that matter here.
constexpr std::array<std::string_view, 6> kNames = {"forward",         "backward",      "send_activation",
                                                    "recv_activation", "send_gradient", "recv_gradient"};
enum Kind : std::uint8_t { kForward, kBackward, kSendActivation, kRecvActivation, kSendGradient, kRecvGradient };

/// Of a line. Those of such files are far shorter.
constexpr std::size_t kMostLine = 65536;

/// Which instruction of a rank's step.
struct Key {
  Kind kind = kForward;
  std::uint64_t step = 0;
  std::uint64_t micro_batch = 0;
  auto operator<=>(const Key&) const = default;
};
struct Span {
  double start = 0;
  double end = 0;
};
using Spans = std::map<Key, Span>;

struct RankRecords {
  std::string file;
  std::uint64_t rank = 0;
  std::uint64_t stage = 0;
  Spans spans;
};
/// [stage][rank of the stage], by number.
using StageRecords = std::vector<std::vector<RankRecords>>;

template <typename Number>
std::optional<Number> Parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::string Name(const Key& key) {
  return fmt::format("{} of micro-batch {} in step {}", kNames[key.kind], key.micro_batch, key.step);
}

/// Reads one file.
class Reader {
 public:
  explicit Reader(const InstructionFile& file) : file_(file) { records_.file = file.name; }

  Result<RankRecords> Read() {
    std::string_view rest = file_.text;
    if (constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf"; rest.starts_with(kByteOrderMark)) {
      rest.remove_prefix(kByteOrderMark.size());
    }
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      ++line_;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.size() > kMostLine) {
        return Error(StatusCode::kInvalidArgument, "{}:{}: expected a line of at most {} bytes, found one of {}",
                     file_.name, line_, kMostLine, line.size());
      }
      if (line_ == 1) {
        CAIRN_RETURN_IF_ERROR(ReadColumns(line));
      } else if (!line.empty()) {
        CAIRN_RETURN_IF_ERROR(ReadRow(CsvCells(line)));
      }
    }
    if (!has_rank_) return Error(StatusCode::kInvalidArgument, "{}: expected instructions, found none", file_.name);
    return std::move(records_);
  }

 private:
  Status ReadColumns(std::string_view line) {
    const std::vector<std::string_view> found = CsvCells(line);
    width_ = found.size();
    for (std::size_t i = 0; i < kColumns.size(); ++i) {
      const auto at = std::ranges::find(found, kColumns[i]);
      if (at == found.end()) {
        return Error(StatusCode::kInvalidArgument, "{}:1: expected a column {}, found \"{}\"", file_.name, kColumns[i],
                     line.substr(0, 80));
      }
      places_[i] = static_cast<std::size_t>(at - found.begin());
    }
    return Status::Ok();
  }

  Status ReadRow(const std::vector<std::string_view>& cells) {
    if (cells.size() != width_) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: expected {} fields, found {}", file_.name, line_, width_,
                   cells.size());
    }
    const auto name = std::ranges::find(kNames, cells[places_[kInstruction]]);
    if (name == kNames.end()) return Status::Ok();
    CAIRN_ASSIGN_OR_RETURN(const double start, Number<double>(cells, kStart));
    CAIRN_ASSIGN_OR_RETURN(const double end, Number<double>(cells, kEnd));
    if (!std::isfinite(start) || !std::isfinite(end) || end < start) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: expected an end at or after the start, found {} and {}",
                   file_.name, line_, start, end);
    }
    Key key{.kind = static_cast<Kind>(name - kNames.begin())};
    CAIRN_ASSIGN_OR_RETURN(key.step, Number<std::uint64_t>(cells, kStep));
    CAIRN_ASSIGN_OR_RETURN(key.micro_batch, Number<std::uint64_t>(cells, kMicroBatch));
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t rank, Number<std::uint64_t>(cells, kRank));
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t stage, Number<std::uint64_t>(cells, kStage));
    if (!std::exchange(has_rank_, true)) {
      records_.rank = rank;
      records_.stage = stage;
    }
    if (rank != records_.rank || stage != records_.stage) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: expected rank {} of stage {} as before, found {} of {}",
                   file_.name, line_, records_.rank, records_.stage, rank, stage);
    }
    if (!records_.spans.try_emplace(key, Span{start, end}).second) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: {} is there twice", file_.name, line_, Name(key));
    }
    return Status::Ok();
  }

  template <typename T>
  Result<T> Number(const std::vector<std::string_view>& cells, Column column) const {
    const std::string_view text = cells[places_[column]];
    if (const std::optional<T> number = Parse<T>(text)) return *number;
    return Error(StatusCode::kInvalidArgument, "{}:{}: {}: expected {}, found \"{}\"", file_.name, line_,
                 kColumns[column], std::is_same_v<T, double> ? "seconds" : "a whole number", text);
  }

  const InstructionFile& file_;
  RankRecords records_;
  std::array<std::size_t, kColumns.size()> places_{};
  std::size_t width_ = 0;
  std::size_t line_ = 0;
  bool has_rank_ = false;
};

Result<StageRecords> ReadStages(const std::vector<InstructionFile>& files) {
  std::map<std::uint64_t, RankRecords> ranks;
  for (const InstructionFile& file : files) {
    CAIRN_ASSIGN_OR_RETURN(RankRecords records, Reader(file).Read());
    const auto [before, fresh] = ranks.try_emplace(records.rank, records);
    if (!fresh) {
      return Error(StatusCode::kInvalidArgument, "{}: expected another rank than {}, which is in {}", file.name,
                   records.rank, before->second.file);
    }
  }
  std::map<std::uint64_t, std::vector<RankRecords>> by_stage;
  for (auto& [rank, records] : ranks) by_stage[records.stage].push_back(std::move(records));
  StageRecords stages;
  for (auto& [stage, group] : by_stage) {
    if (stage != stages.size()) {
      return Error(StatusCode::kInvalidArgument, "stage {}: expected the records of its ranks, found none",
                   stages.size());
    }
    stages.push_back(std::move(group));
  }
  if (stages.empty()) return Status(StatusCode::kInvalidArgument, "expected the files of all ranks, found none");
  return stages;
}

/// Steps and micro-batches, of which every rank must have every forward and backward.
struct Extent {
  std::set<std::uint64_t> steps;
  std::size_t micro_batches = 0;
};

Result<Extent> FindExtent(const StageRecords& stages) {
  Extent extent;
  std::set<std::uint64_t> micro_batches;
  for (const auto& [key, span] : stages[0][0].spans) {
    extent.steps.insert(key.step);
    micro_batches.insert(key.micro_batch);
  }
  extent.micro_batches = micro_batches.size();
  for (const std::vector<RankRecords>& stage : stages) {
    for (const RankRecords& rank : stage) {
      for (const Kind kind : {kForward, kBackward}) {
        for (const std::uint64_t step : extent.steps) {
          for (std::uint64_t i = 0; i < extent.micro_batches; ++i) {
            const Key key{kind, step, i};
            if (!rank.spans.contains(key)) {
              return Error(StatusCode::kInvalidArgument, "{}: expected {}, found none", rank.file, Name(key));
            }
          }
        }
      }
      for (const auto& [key, span] : rank.spans) {
        if (key.kind > kBackward) break;
        if (key.micro_batch < extent.micro_batches && extent.steps.contains(key.step)) continue;
        return Error(StatusCode::kInvalidArgument, "{}: expected the steps and micro-batches that {} has, found {}",
                     rank.file, stages[0][0].file, Name(key));
      }
    }
  }
  return extent;
}

/// Of the stage's slowest rank.
double MedianSeconds(const std::vector<RankRecords>& stage, const Extent& extent, Kind kind, std::uint64_t i) {
  double slowest = 0;
  for (const RankRecords& rank : stage) {
    std::vector<double> seconds;
    for (const std::uint64_t step : extent.steps) {
      const Span& span = rank.spans.at({kind, step, i});
      seconds.push_back(span.end - span.start);
    }
    slowest = std::max(slowest, Median(std::move(seconds)));
  }
  return slowest;
}

/// Adds how long each message took that `from` sent `to`.
Status AddMessages(const RankRecords& from, const RankRecords& to, Kind sent, Kind received,
                   std::vector<double>& seconds) {
  for (const auto& [key, receive] : to.spans) {
    if (key.kind != received) continue;
    const auto send = from.spans.find({sent, key.step, key.micro_batch});
    if (send == from.spans.end()) {
      return Error(StatusCode::kInvalidArgument, "{}: expected {}, because {} received it, found none", from.file,
                   Name({sent, key.step, key.micro_batch}), to.file);
    }
    if (receive.end < send->second.start) {
      return Error(
          StatusCode::kInvalidArgument,
          "{}: expected {} after it was sent at {} s, found it ended at {} s: are {} and this file of one run, "
          "and of one machine's clock?",
          to.file, Name(key), send->second.start, receive.end, from.file);
    }
    seconds.push_back(receive.end - std::max(receive.start, send->second.start));
  }
  return Status::Ok();
}

/// Of each edge between stages; empty if there are no messages at all.
Result<std::vector<double>> SendSeconds(const StageRecords& stages) {
  std::vector<double> send;
  std::size_t without = 0;
  for (std::size_t edge = 0; edge + 1 < stages.size(); ++edge) {
    const std::vector<RankRecords>& here = stages[edge];
    const std::vector<RankRecords>& there = stages[edge + 1];
    if (here.size() != there.size()) {
      return Error(StatusCode::kInvalidArgument, "stage {}: expected the files of {} ranks, as of stage {}, found {}",
                   edge + 1, here.size(), edge, there.size());
    }
    std::vector<double> seconds;
    for (std::size_t i = 0; i < here.size(); ++i) {
      CAIRN_RETURN_IF_ERROR(AddMessages(here[i], there[i], kSendActivation, kRecvActivation, seconds));
      CAIRN_RETURN_IF_ERROR(AddMessages(there[i], here[i], kSendGradient, kRecvGradient, seconds));
    }
    without += seconds.empty() ? 1 : 0;
    send.push_back(seconds.empty() ? 0 : Median(std::move(seconds)));
  }
  if (without == send.size()) send.clear();
  return send;
}

double IterationSeconds(const StageRecords& stages) {
  std::map<std::uint64_t, double> longest;
  for (const std::vector<RankRecords>& stage : stages) {
    for (const RankRecords& rank : stage) {
      std::map<std::uint64_t, Span> steps;
      for (const auto& [key, span] : rank.spans) {
        if (key.kind > kBackward) break;
        Span& whole = steps.try_emplace(key.step, span).first->second;
        whole = {std::min(whole.start, span.start), std::max(whole.end, span.end)};
      }
      for (const auto& [step, whole] : steps) longest[step] = std::max(longest[step], whole.end - whole.start);
    }
  }
  std::vector<double> seconds;
  for (const auto& [step, whole] : longest) seconds.push_back(whole);
  return Median(std::move(seconds));
}

}  // namespace

Result<RecordedPipeline> ReadInstructions(const std::vector<InstructionFile>& files) {
  CAIRN_ASSIGN_OR_RETURN(const StageRecords stages, ReadStages(files));
  CAIRN_ASSIGN_OR_RETURN(const Extent extent, FindExtent(stages));
  RecordedPipeline out{.steps = extent.steps.size(), .seconds = IterationSeconds(stages)};
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const RankRecords& rank : stages[stage]) out.stage_of_rank[rank.rank] = stage;
  }
  CAIRN_ASSIGN_OR_RETURN(out.times.send, SendSeconds(stages));
  for (const std::vector<RankRecords>& stage : stages) {
    std::vector<double>& forward = out.times.forward.emplace_back();
    std::vector<double>& backward = out.times.backward.emplace_back();
    for (std::uint64_t i = 0; i < extent.micro_batches; ++i) {
      forward.push_back(MedianSeconds(stage, extent, kForward, i));
      backward.push_back(MedianSeconds(stage, extent, kBackward, i));
    }
  }
  return out;
}

}  // namespace cairn
