#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "advice/forecast.h"
#include "advice/model_file.h"
#include "advice/published_models.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

/// The chunks of a pool of usual size. Their size changes how many reads there are, not how many bytes.
constexpr std::uint64_t kPlannedChunkBytes = 4U << 20;
constexpr int kMostRanks = 1 << 16;

Result<Layout> ParseLayout(const std::string& flag, const std::string& text) {
  std::array<int, 3> sizes{};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (std::size_t i = 0; i < sizes.size() && good; ++i) {
    const auto [next, error] = std::from_chars(at, end, sizes[i]);
    const bool last = i + 1 == sizes.size();
    good = error == std::errc() && sizes[i] > 0 && sizes[i] <= kMostRanks &&
           (last ? next == end : next != end && *next == ',');
    at = last ? next : next + 1;
  }
  if (!good || static_cast<std::int64_t>(sizes[0]) * sizes[1] * sizes[2] > kMostRanks) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: expected pipeline, tensor and data parallel ranks such as 4,2,1, at most {} in all, found \"{}\"",
                 flag, kMostRanks, text);
  }
  return Layout{sizes[0], sizes[1], sizes[2]};
}

struct RankRow {
  int rank = 0;
  std::uint64_t needed = 0;
  std::uint64_t read = 0;
  std::uint64_t between_rows = 0;
  std::vector<ShardForecast> shards;
};
struct ShardRow {
  std::uint64_t bytes = 0;
  std::uint64_t read = 0;
  int readers = 0;
};
struct HostRow {
  std::uint64_t needed = 0;
  /// From shards that ranks of this host wrote, and from others.
  std::uint64_t here = 0;
  std::uint64_t elsewhere = 0;
  std::uint64_t absent = 0;
};

struct Plan {
  Layout from;
  Layout to;
  int gpus_per_host = 1;
  std::vector<std::uint64_t> stages_before;
  std::vector<std::uint64_t> stages_after;
  std::vector<RankRow> ranks;
  std::vector<ShardRow> shards;
  std::vector<HostRow> hosts;

  [[nodiscard]] int HostOf(std::uint64_t rank) const {
    return static_cast<int>(rank / static_cast<std::uint64_t>(gpus_per_host));
  }
  /// Of all ranks.
  [[nodiscard]] std::uint64_t Total(std::uint64_t RankRow::*bytes) const {
    return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                           [bytes](std::uint64_t sum, const RankRow& row) { return sum + row.*bytes; });
  }
};

Result<Plan> MakePlan(const Model& model, const Layout& from, const Layout& to, int gpus_per_host) {
  CAIRN_RETURN_IF_ERROR(CheckLayout(model, from, "--from"));
  CAIRN_RETURN_IF_ERROR(CheckLayout(model, to, "--to"));
  CAIRN_ASSIGN_OR_RETURN(const ForecastSave save, ForecastSave::Make(model, from));
  Plan plan{.from = from,
            .to = to,
            .gpus_per_host = gpus_per_host,
            .stages_before = StageBytes(model, from),
            .stages_after = StageBytes(model, to),
            .ranks = {},
            .shards = {},
            .hosts = {}};
  for (const ShardHeader& header : save.headers()) plan.shards.push_back({.bytes = header.file_bytes()});
  for (const std::uint64_t absent : BytesAcrossHosts(model, from, to, gpus_per_host)) {
    plan.hosts.push_back({.absent = absent});
  }
  for (int rank = 0; rank < to.ranks(); ++rank) {
    CAIRN_ASSIGN_OR_RETURN(RankForecast forecast, ForecastRestore(save, model, to, rank, kPlannedChunkBytes));
    const int host = plan.HostOf(static_cast<std::uint64_t>(rank));
    HostRow& row = plan.hosts[static_cast<std::size_t>(host)];
    row.needed += forecast.needed();
    std::uint64_t between_rows = 0;
    for (const ShardForecast& shard : forecast.shards) {
      between_rows += shard.between_rows;
      const std::uint64_t bytes = shard.read + shard.header;
      (plan.HostOf(shard.shard) == host ? row.here : row.elsewhere) += bytes;
      plan.shards[shard.shard].read += bytes;
      ++plan.shards[shard.shard].readers;
    }
    plan.ranks.push_back({rank, forecast.needed(), forecast.read(), between_rows, std::move(forecast.shards)});
  }
  return plan;
}

std::uint64_t Sum(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

double Ratio(std::uint64_t read, std::uint64_t needed) {
  return needed == 0 ? 1.0 : static_cast<double>(read) / static_cast<double>(needed);
}

json ToJson(const Layout& layout, const std::vector<std::uint64_t>& stages) {
  return {{"pipeline", layout.pipeline}, {"tensor", layout.tensor},    {"data", layout.data},
          {"ranks", layout.ranks()},     {"state_bytes", Sum(stages)}, {"stage_bytes", stages}};
}

json ToJson(const Plan& plan) {
  json ranks = json::array();
  for (const RankRow& row : plan.ranks) {
    json shards = json::array();
    for (const ShardForecast& shard : row.shards) {
      shards.push_back({{"shard", shard.shard},
                        {"needed_bytes", shard.needed},
                        {"read_bytes", shard.read},
                        {"header_bytes", shard.header}});
    }
    ranks.push_back({{"rank", row.rank},
                     {"stage", plan.to.StageOf(row.rank)},
                     {"tensor_rank", plan.to.TensorRankOf(row.rank)},
                     {"needed_bytes", row.needed},
                     {"read_bytes", row.read},
                     {"shards", shards}});
  }
  json shards = json::array();
  for (const ShardRow& row : plan.shards) {
    shards.push_back({{"bytes", row.bytes}, {"read_bytes", row.read}, {"readers", row.readers}});
  }
  json hosts = json::array();
  for (const HostRow& row : plan.hosts) {
    hosts.push_back({{"needed_bytes", row.needed},
                     {"read_here_bytes", row.here},
                     {"read_elsewhere_bytes", row.elsewhere},
                     {"absent_bytes", row.absent}});
  }
  return {{"from", ToJson(plan.from, plan.stages_before)},
          {"to", ToJson(plan.to, plan.stages_after)},
          {"gpus_per_host", plan.gpus_per_host},
          {"needed_bytes", plan.Total(&RankRow::needed)},
          {"read_bytes", plan.Total(&RankRow::read)},
          {"between_rows_bytes", plan.Total(&RankRow::between_rows)},
          {"ranks", ranks},
          {"shards", shards},
          {"hosts", hosts}};
}

std::string Describe(const Layout& layout, const std::vector<std::uint64_t>& stages) {
  std::vector<std::string> sizes;
  for (const std::uint64_t bytes : stages) sizes.push_back(HumanBytes(bytes));
  return fmt::format("{}: {}, {} bytes of state in a replica, by stage: {}", ToString(layout),
                     Count(static_cast<std::uint64_t>(layout.ranks()), "rank"), Sum(stages), fmt::join(sizes, ", "));
}

void Print(const Plan& plan) {
  const std::uint64_t needed = plan.Total(&RankRow::needed);
  const std::uint64_t read = plan.Total(&RankRow::read);
  std::string total = fmt::format("{} for {} that the ranks need, {:.4f} times as much", HumanBytes(read),
                                  HumanBytes(needed), Ratio(read, needed));
  if (const std::uint64_t between = plan.Total(&RankRow::between_rows); between != 0) {
    total +=
        fmt::format("; {} lie between rows that are cut anew, and are read to verify checksums", HumanBytes(between));
  }
  PrintTable({{"from", Describe(plan.from, plan.stages_before)},
              {"to", Describe(plan.to, plan.stages_after)},
              {"read", total}});
  std::vector<std::vector<std::string>> rows{{"\nRANK", "HOST", "STAGE", "NEEDED", "READ", "RATIO", "FROM SHARDS"}};
  for (const RankRow& row : plan.ranks) {
    std::vector<std::uint32_t> shards;
    for (const ShardForecast& shard : row.shards) {
      if (shard.needed != 0) shards.push_back(shard.shard);
    }
    rows.push_back({std::to_string(row.rank), std::to_string(plan.HostOf(static_cast<std::uint64_t>(row.rank))),
                    std::to_string(plan.to.StageOf(row.rank)), HumanBytes(row.needed), HumanBytes(row.read),
                    fmt::format("{:.4f}", Ratio(row.read, row.needed)), fmt::format("{}", fmt::join(shards, " "))});
  }
  PrintTable(rows);
  rows = {{"\nSHARD", "HOST", "SIZE", "READ", "READERS"}};
  for (std::size_t i = 0; i < plan.shards.size(); ++i) {
    const ShardRow& row = plan.shards[i];
    rows.push_back({std::to_string(i), std::to_string(plan.HostOf(i)), HumanBytes(row.bytes), HumanBytes(row.read),
                    std::to_string(row.readers)});
  }
  PrintTable(rows);
  rows = {{"\nHOST", "NEEDED", "FROM ITS SHARDS", "FROM OTHERS", "STATE THAT WAS ELSEWHERE"}};
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    const HostRow& row = plan.hosts[i];
    rows.push_back({std::to_string(i), HumanBytes(row.needed), HumanBytes(row.here), HumanBytes(row.elsewhere),
                    HumanBytes(row.absent)});
  }
  PrintTable(rows);
}

/// A published one, or that of a file.
Result<Model> FindModel(const std::string& name) {
  Result<PublishedModel> published = FindPublishedModel(name);
  if (published.ok()) return std::move(published->model);
  Result<Model> read = ReadModelFile(name);
  if (read.status().code() != StatusCode::kNotFound) return read;
  return Error(StatusCode::kInvalidArgument, "{}; and {}", read.status().message(), published.status().message());
}

}  // namespace

Result<int> PlanLayouts(const PlanOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Model model, FindModel(options.model));
  CAIRN_ASSIGN_OR_RETURN(const Layout from, ParseLayout("--from", options.from));
  CAIRN_ASSIGN_OR_RETURN(const Layout to, ParseLayout("--to", options.to));
  CAIRN_ASSIGN_OR_RETURN(const Plan plan, MakePlan(model, from, to, options.gpus_per_host));
  options.json ? PrintJson(ToJson(plan)) : Print(plan);
  return kGood;
}

}  // namespace cairn::tools
