#include "bench/pipeline/row.h"

#include <algorithm>
#include <string>
#include <vector>

#include "bench/pipeline/stage.h"

namespace cairn::bench {
namespace {

std::string Emulated(const Flags& flags, const StrategyKind& kind) {
  const bool hosts = flags.network == "hosts";
  std::vector<std::string> parts{"GPU (host memory; all copies by 2 streams on one link of pcie_bytes_per_second)",
                                 "forward and backward (waits)",
                                 "OPT-2.7B (its tensors, transfers and pace, all scaled; then dilated)"};
  if (flags.disk_bytes_per_second > 0) parts.emplace_back("disk rate of each node (real writes, held back)");
  if (!hosts) {
    parts.insert(parts.begin(), "two nodes (processes of this machine, one filesystem)");
    parts.emplace_back(flags.network == "namespaces" ? "network (two namespaces, a token bucket)"
                                                     : "network (loopback, no set rate)");
  }
  if (kind.networked)
    parts.emplace_back(fmt::format("peer (a thread of the {}, by sockets)", hosts ? "other node" : "launcher"));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

CsvRow MakePipelineRow(const PipelineFlags& flags, const StrategyKind& kind, double update_seconds,
                       const std::array<NodeReport, 2>& nodes) {
  const Flags& run = flags.run;
  const NodeReport& first = nodes[0];
  const NodeReport& second = nodes[1];
  CsvRow row;
  row.Add("strategy", kind.name);
  row.Add("model", "opt-2.7b");
  row.Add("state_bytes", first.state_bytes + second.state_bytes);
  row.Add("state_bytes_of_stages", fmt::format("{};{}", first.state_bytes, second.state_bytes));
  row.Add("tensors", first.tensors + second.tensors);
  row.Add("iteration_seconds", run.iteration_seconds);
  row.Add("micro_batches", flags.micro_batches);
  row.Add("activation_bytes", flags.activation_bytes);
  row.Add("every", run.every);
  row.Add("iterations", run.iterations);
  row.Add("warmup", run.warmup);
  row.Add("in_flight", run.in_flight);
  row.Add("host_memory_bytes", run.host_memory_bytes);
  row.Add("writers", run.writers);
  row.Add("queue_depth", run.queue_depth);
  row.Add("scale", run.scale);
  row.Add("dilation", run.dilation);
  row.Add("pcie_bytes_per_second", run.pcie_bytes_per_second);
  row.Add("disk_bytes_per_second", run.disk_bytes_per_second);
  row.Add("network_bytes_per_second", run.network_bytes_per_second);
  row.Add("emulated", Emulated(run, kind));
  row.Add("tuning", kind.tuning);
  row.Add("durable_means", kind.durable_means);
  row.Add("copy_bytes_per_second", fmt::format("{:.4g}", std::min(first.copy_rate, second.copy_rate)));
  row.AddSeconds("update_seconds", update_seconds);
  row.AddSeconds("iterations_per_second", first.iterations_per_second);
  row.AddSeconds("slowdown", first.slowdown);
  row.AddSeconds("stall_total_s", std::max(first.stall_total, second.stall_total));
  row.AddSeconds("stall_max_s", std::max(first.stall_max, second.stall_max));
  row.AddSeconds("update_late_s", std::max(first.update_late, second.update_late));
  row.Add("saves", first.saves);
  row.Add("durable", std::min(first.durable, second.durable));
  row.AddSeconds("to_durable_p50_s", std::max(first.to_durable_p50, second.to_durable_p50));
  row.AddSeconds("to_durable_max_s", std::max(first.to_durable_max, second.to_durable_max));
  row.AddSeconds("age_max_s", std::max(first.age_max, second.age_max));
  row.Add("bytes_written", first.bytes_written + second.bytes_written);
  row.Add("peak_rss_bytes", first.peak_rss + second.peak_rss);
  row.AddSeconds("cpu_s", first.cpu_seconds + second.cpu_seconds);
  row.Add("restored_step", first.saves == 0 ? "none" : std::to_string(first.restored));
  return row;
}

}  // namespace cairn::bench
