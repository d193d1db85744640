#include "advice/slack.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "base/status_macros.h"

namespace cairn {
namespace {

std::string_view PassName(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

Status CheckTime(double seconds, const std::string& where) {
  if (std::isfinite(seconds) && seconds >= 0) return Status::Ok();
  return Error(StatusCode::kInvalidArgument, "{}: expected a time of 0 s or more, found {}", where, seconds);
}

Status CheckPass(const std::vector<std::vector<double>>& times, Pass pass, std::size_t micro_batches) {
  for (std::size_t stage = 0; stage < times.size(); ++stage) {
    if (times[stage].size() != micro_batches) {
      return Error(StatusCode::kInvalidArgument, "{} of stage {}: expected {} micro-batches, found {}", PassName(pass),
                   stage, micro_batches, times[stage].size());
    }
    for (std::size_t i = 0; i < micro_batches; ++i) {
      CAIRN_RETURN_IF_ERROR(
          CheckTime(times[stage][i], fmt::format("{} of stage {}, micro-batch {}", PassName(pass), stage, i)));
    }
  }
  return Status::Ok();
}

Status Check(const PipelineTimes& times) {
  if (times.forward.empty() || times.forward[0].empty()) {
    return {StatusCode::kInvalidArgument, "expected at least one stage and one micro-batch, found none"};
  }
  const std::size_t stages = times.forward.size();
  if (times.backward.size() != stages) {
    return Error(StatusCode::kInvalidArgument, "backward: expected {} stages, found {}", stages, times.backward.size());
  }
  CAIRN_RETURN_IF_ERROR(CheckPass(times.forward, Pass::kForward, times.forward[0].size()));
  CAIRN_RETURN_IF_ERROR(CheckPass(times.backward, Pass::kBackward, times.forward[0].size()));
  if (!times.send.empty() && times.send.size() != stages - 1) {
    return Error(StatusCode::kInvalidArgument, "sends: expected none, or {}, found {}", stages - 1, times.send.size());
  }
  for (std::size_t edge = 0; edge < times.send.size(); ++edge) {
    CAIRN_RETURN_IF_ERROR(CheckTime(times.send[edge], fmt::format("send between stages {} and {}", edge, edge + 1)));
  }
  return Status::Ok();
}

/// The graph: a node for each instruction, with the edge of the stage's order and that between stages.
class Graph {
 public:
  explicit Graph(const PipelineTimes& times)
      : times_(times), stages_(times.forward.size()), micro_batches_(times.forward[0].size()) {
    for (std::size_t stage = 0; stage < stages_; ++stage) OrderStage(stage);
    for (std::size_t at = 0; at < nodes_.size(); ++at) Connect(at);
  }

  PipelineSchedule Run() {
    const std::vector<std::size_t> order = RunEarly();
    PipelineSchedule out;
    const std::size_t a_stage = 2 * micro_batches_;
    // The first stage's last backward waits for all others.
    const std::size_t last = a_stage - 1;
    out.seconds = nodes_[last].of.end;
    FindSlack(order, out.seconds);
    out.critical_path = PathTo(last);
    const double rounding = 1e-9 * out.seconds;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      std::vector<Instruction>& mine = out.stages.emplace_back();
      std::vector<IdleWindow>& idle = out.idle.emplace_back();
      double busy_until = 0;
      for (std::size_t i = 0; i < a_stage; ++i) {
        mine.push_back(nodes_[stage * a_stage + i].of);
        if (mine.back().begin - busy_until > rounding) idle.push_back({busy_until, mine.back().begin});
        busy_until = mine.back().end;
      }
      if (out.seconds - busy_until > rounding) idle.push_back({busy_until, out.seconds});
    }
    return out;
  }

 private:
  struct Node {
    Instruction of;
    std::optional<std::size_t> before;  // In the stage.
    std::optional<std::size_t> from;    // Of another stage, after a send.
    double send = 0;
    std::vector<std::size_t> next;
  };

  [[nodiscard]] double Seconds(const Instruction& of) const {
    return (of.pass == Pass::kForward ? times_.forward : times_.backward)[of.stage][of.micro_batch];
  }

  // The nodes of a stage are adjacent, in its order.
  void OrderStage(std::size_t stage) {
    const std::size_t ahead = std::min(stages_ - 1 - stage, micro_batches_);
    place_.resize(nodes_.size() + 2 * micro_batches_);
    const auto add = [&](Pass pass, std::size_t micro_batch) {
      place_[Key(stage, pass, micro_batch)] = nodes_.size();
      nodes_.push_back({.of = {.stage = stage, .micro_batch = micro_batch, .pass = pass}});
    };
    for (std::size_t i = 0; i < ahead; ++i) add(Pass::kForward, i);
    for (std::size_t i = ahead; i < micro_batches_; ++i) {
      add(Pass::kForward, i);
      add(Pass::kBackward, i - ahead);
    }
    for (std::size_t i = micro_batches_ - ahead; i < micro_batches_; ++i) add(Pass::kBackward, i);
  }

  [[nodiscard]] std::size_t Key(std::size_t stage, Pass pass, std::size_t micro_batch) const {
    return (2 * stage + (pass == Pass::kForward ? 0 : 1)) * micro_batches_ + micro_batch;
  }

  void Connect(std::size_t at) {
    Node& node = nodes_[at];
    const auto [stage, micro_batch, pass, begin, end, slack] = node.of;
    if (at % (2 * micro_batches_) != 0) node.before = at - 1;
    const bool first = pass == Pass::kForward ? stage == 0 : stage + 1 == stages_;
    if (!first) {
      node.from = place_[Key(pass == Pass::kForward ? stage - 1 : stage + 1, pass, micro_batch)];
      if (!times_.send.empty()) node.send = times_.send[pass == Pass::kForward ? stage - 1 : stage];
    }
    if (node.before) nodes_[*node.before].next.push_back(at);
    if (node.from) nodes_[*node.from].next.push_back(at);
  }

  /// Runs each node as early as it can; returns them in an order in which none comes before what it waits for.
  std::vector<std::size_t> RunEarly() {
    std::vector<int> waits(nodes_.size());
    std::vector<std::size_t> order;
    for (std::size_t at = 0; at < nodes_.size(); ++at) {
      waits[at] = (nodes_[at].before ? 1 : 0) + (nodes_[at].from ? 1 : 0);
      if (waits[at] == 0) order.push_back(at);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      Node& node = nodes_[order[i]];
      if (node.before) node.of.begin = nodes_[*node.before].of.end;
      if (node.from) node.of.begin = std::max(node.of.begin, nodes_[*node.from].of.end + node.send);
      node.of.end = node.of.begin + Seconds(node.of);
      for (const std::size_t next : node.next) {
        if (--waits[next] == 0) order.push_back(next);
      }
    }
    return order;
  }

  void FindSlack(const std::vector<std::size_t>& order, double seconds) {
    for (std::size_t i = order.size(); i-- > 0;) {
      Node& node = nodes_[order[i]];
      node.of.slack = seconds - node.of.end;
      for (const std::size_t at : node.next) {
        const Node& next = nodes_[at];
        const double send = next.from == order[i] ? next.send : 0;
        const double wait = next.of.begin - send - node.of.end;
        node.of.slack = std::min(node.of.slack, next.of.slack + wait);
      }
      node.of.slack = std::max(node.of.slack, 0.0);  // Sums of other orders may differ in the last bit.
    }
  }

  [[nodiscard]] std::vector<Instruction> PathTo(std::size_t last) const {
    std::vector<Instruction> path;
    for (std::optional<std::size_t> at = last; at;) {
      const Node& node = nodes_[*at];
      path.push_back(node.of);
      const bool by_stage = node.before && nodes_[*node.before].of.end == node.of.begin;
      at = by_stage ? node.before : node.from;
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  const PipelineTimes& times_;
  const std::size_t stages_;
  const std::size_t micro_batches_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> place_;  // By Key().
};

}  // namespace

Result<PipelineSchedule> Schedule1F1B(const PipelineTimes& times) {
  CAIRN_RETURN_IF_ERROR(Check(times));
  PipelineSchedule schedule = Graph(times).Run();
  CAIRN_RETURN_IF_ERROR(CheckTime(schedule.seconds, "the longest path"));
  return schedule;
}

}  // namespace cairn
