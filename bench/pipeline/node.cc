#include "bench/pipeline/node.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/status_macros.h"
#include "bench/harness/accounting.h"
#include "bench/harness/prepare.h"
#include "bench/harness/resources.h"
#include "bench/harness/restore_check.h"
#include "bench/harness/training_loop.h"
#include "bench/pipeline/pipeline_compute.h"
#include "bench/pipeline/row.h"
#include "bench/pipeline/socket.h"
#include "bench/pipeline/socket_group.h"
#include "bench/pipeline/stage.h"

namespace cairn::bench {
namespace {

constexpr auto kPatience = std::chrono::minutes(1);  // For the other node to connect.

Result<std::unique_ptr<Socket>> ConnectToPlace(const std::string& place) {
  const std::size_t colon = place.rfind(':');
  int port = 0;
  if (colon != std::string::npos) std::from_chars(place.data() + colon + 1, place.data() + place.size(), port);
  return ConnectTo(place.substr(0, colon), port);
}

/// Connections to the other node. Both nodes ask for them in the same order.
class Link {
 public:
  explicit Link(const NodeFlags& node) : node_(node) {
    if (node.stage == 0) listener_ = Listener::Inherited(node.link_fd);
  }
  Result<std::unique_ptr<Socket>> Connect() {
    return listener_.has_value() ? listener_->Accept(Deadline::In(kPatience)) : ConnectToPlace(node_.link);
  }
  Result<std::shared_ptr<Group>> ConnectGroup() {
    CAIRN_ASSIGN_OR_RETURN(auto socket, Connect());
    return std::shared_ptr<Group>(std::make_shared<SocketGroup>(node_.stage, std::move(socket)));
  }

 private:
  const NodeFlags& node_;
  std::optional<Listener> listener_;
};

// Gives the other node one thing and takes the same from it: both have come so far.
template <typename T>
Result<T> Exchange(Socket& other, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  T theirs{};
  CAIRN_RETURN_IF_ERROR(other.Send(std::as_bytes(std::span(&mine, 1))));
  CAIRN_RETURN_IF_ERROR(other.Receive(std::as_writable_bytes(std::span(&theirs, 1))));
  return theirs;
}

std::string DirectoryOf(const PipelineFlags& flags) {
  // Cairn's ranks write one checkpoint. Others have no such thing, and a directory for each node.
  if (flags.run.strategy == "cairn") return flags.node.directory + "/both";
  return flags.node.directory + "/node" + std::to_string(flags.node.stage);
}

/// What the run needs, all of it until the end.
struct Node {
  const PipelineFlags& flags;
  StrategyKind kind;
  Link link;
  std::unique_ptr<Socket> other;
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<TrainingState> state;
  std::unique_ptr<Journal> journal;
  double update_seconds = 0;
};

Workplace MakeWorkplace(const Node& node) {
  const Flags& run = node.flags.run;
  Workplace workplace{.directory = DirectoryOf(node.flags),
                      .state = *node.state,
                      .gpu = *node.gpu,
                      .in_flight = run.in_flight,
                      .host_memory_bytes = run.host_memory_bytes,
                      .writers = run.writers,
                      .queue_depth = run.queue_depth,
                      .disk = nullptr,
                      .durable = [](std::uint64_t) {}};
  if (!node.flags.node.memory.empty()) {
    workplace.connect_to_peer = [place = node.flags.node.memory]() -> Result<std::unique_ptr<Connection>> {
      CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Connection> peer, ConnectToPlace(place));
      return peer;
    };
  }
  return workplace;
}

LoopSettings SettingsOf(const Flags& run) {
  return {.iteration_seconds = run.iteration_seconds,
          .every = run.strategy == "none" ? 0 : run.every,
          .iterations = run.iterations,
          .warmup = run.warmup};
}

// Both nodes give the optimizer step the time that the slower one needs.
Result<double> AgreeOnUpdate(Node& node, std::uint64_t step) {
  CAIRN_ASSIGN_OR_RETURN(const double mine, MeasureUpdate(*node.state, step, node.flags.run.iteration_seconds));
  CAIRN_ASSIGN_OR_RETURN(const double theirs, Exchange(*node.other, mine));
  return std::max(mine, theirs);
}

// When it returns, all that the other stage is to receive has been sent.
Result<LoopRecord> Train(Node& node, const LoopSettings& settings, const LoopClock& clock, Strategy& strategy,
                         SaveLog& log) {
  PacedCompute update(settings, clock, *node.state);
  PipelineCompute compute({.stage = node.flags.node.stage,
                           .micro_batches = node.flags.micro_batches,
                           .activation_bytes = node.flags.activation_bytes,
                           .iteration_seconds = settings.iteration_seconds,
                           .update_seconds = settings.update_seconds},
                          clock, *node.other, update);
  return RunLoop(settings, clock, compute, strategy, log, node.journal.get());
}

// Prepares what is not measured, then trains. The strategy is closed again.
Status Measure(Node& node, LoopSettings& settings, LoopRecord& record, NodeReport& report) {
  LoopClock clock = RealClock();
  SaveLog log;
  Workplace workplace = MakeWorkplace(node);
  workplace.durable = [&](std::uint64_t step) {
    log.Durable(step, clock.now());
    if (node.journal != nullptr) node.journal->Durable(step);
  };
  if (node.flags.run.disk_bytes_per_second > 0) {
    workplace.disk = RateLimitedDisk::Make(node.flags.run.disk_bytes_per_second, RateLimitedDisk::Limits::kWrites);
  }
  CAIRN_ASSIGN_OR_RETURN(workplace.group, node.link.ConnectGroup());
  CAIRN_ASSIGN_OR_RETURN(const auto strategy, node.kind.open(workplace));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t begun, Begin(*strategy, *node.state, node.flags.node.resume));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t theirs, Exchange(*node.other, begun));
  if (theirs != begun) {
    return Error(StatusCode::kCorrupt, "this node has restored step {}, the other one step {}", begun, theirs);
  }
  settings.first = begun + 1;
  CAIRN_ASSIGN_OR_RETURN(settings.update_seconds, AgreeOnUpdate(node, begun));
  CAIRN_ASSIGN_OR_RETURN(report.copy_rate, MeasureCopies(*node.state, *node.gpu));
  ResetPeak();
  const Usage before = UsageSoFar(strategy->process());
  CAIRN_RETURN_IF_ERROR(Exchange(*node.other, begun).status());
  clock = RealClock();
  CAIRN_ASSIGN_OR_RETURN(record, Train(node, settings, clock, *strategy, log));
  const Usage used = UsageSoFar(strategy->process());
  report.bytes_written = used.bytes_written - before.bytes_written;
  report.cpu_seconds = used.cpu_seconds - before.cpu_seconds;
  report.peak_rss = used.peak_rss;
  return Exchange(*node.other, begun).status();  // Neither leaves the group before the other has drained.
}

Status Check(Node& node, const LoopRecord& record, NodeReport& report) {
  if (record.saves.empty()) return {};
  Workplace workplace = MakeWorkplace(node);
  CAIRN_ASSIGN_OR_RETURN(workplace.group, node.link.ConnectGroup());
  report.restored = record.saves.back().step;
  return CheckRestored(node.kind, workplace, report.restored);
}

void Add(NodeReport& report, const Node& node, const Accounts& accounts, const LoopRecord& record) {
  report.iterations_per_second = accounts.iterations_per_second;
  report.slowdown = accounts.slowdown;
  report.stall_total = accounts.stall_total;
  report.stall_max = accounts.stall_max;
  report.update_late = record.update_late;
  report.to_durable_p50 = accounts.to_durable_p50;
  report.to_durable_max = accounts.to_durable_max;
  report.age_max = accounts.age_max;
  report.state_bytes = node.state->bytes();
  report.tensors = node.state->tensors().size();
  report.saves = record.saves.size();
  report.durable = accounts.durable;
}

Result<Node> Prepare(const PipelineFlags& flags) {
  const int stage = flags.node.stage;
  Node node{.flags = flags,
            .kind = {},
            .link = Link(flags.node),
            .other = nullptr,
            .gpu = EmulateGpu(flags.run.pcie_bytes_per_second),
            .state = nullptr,
            .journal = nullptr};
  CAIRN_ASSIGN_OR_RETURN(node.kind, FindStrategy(flags.run.strategy));
  CAIRN_ASSIGN_OR_RETURN(node.other, node.link.Connect());
  const std::uint64_t first = stage == 0 ? 0 : BytesOf(OptStage(0, flags.run.scale));
  CAIRN_ASSIGN_OR_RETURN(node.state, TrainingState::Make(*node.gpu, OptStage(stage, flags.run.scale), first));
  if (!flags.run.journal.empty()) {
    CAIRN_ASSIGN_OR_RETURN(node.journal, Journal::Open(flags.run.journal + "." + std::to_string(stage)));
  }
  return node;
}

}  // namespace

Status RunNode(const PipelineFlags& flags) {
  CAIRN_ASSIGN_OR_RETURN(Node node, Prepare(flags));
  LoopSettings settings = SettingsOf(flags.run);
  LoopRecord record;
  NodeReport report;
  CAIRN_RETURN_IF_ERROR(Measure(node, settings, record, report));
  CAIRN_RETURN_IF_ERROR(Check(node, record, report));
  Add(report, node, Account(record, settings), record);
  CAIRN_ASSIGN_OR_RETURN(const NodeReport other, Exchange(*node.other, report));
  if (flags.node.stage != 0 && flags.run.network != "hosts") return {};
  const std::array<NodeReport, 2> nodes = flags.node.stage == 0 ? std::array{report, other} : std::array{other, report};
  return Print(MakePipelineRow(flags, node.kind, settings.update_seconds, nodes), flags.run.csv);
}

}  // namespace cairn::bench
