#include "report.h"

#include <isa-l/crc64.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace cairn::trainer {
namespace {

using nlohmann::ordered_json;

double Seconds(std::chrono::nanoseconds span) { return std::chrono::duration<double>(span).count(); }

ordered_json ToJson(const SaveRecord& save) {
  const cairn::SaveStats& stats = save.stats;
  return {{"step", stats.step},
          {"phase", cairn::SavePhaseName(stats.phase)},
          {"status", save.status.ToString()},
          {"bytes", stats.bytes},
          {"bytes_written", stats.bytes_written},
          {"call_seconds", Seconds(stats.call)},
          {"stall_seconds", Seconds(stats.stall)},
          {"captured_seconds", Seconds(stats.captured)},
          {"written_seconds", Seconds(stats.written)},
          {"kept_seconds", Seconds(stats.kept)},
          {"durable_seconds", Seconds(stats.durable)},
          {"staged", stats.staged},
          {"direct", stats.direct}};
}

ordered_json ToJson(const cairn::CheckpointerStats& stats) {
  return {{"io_queue", stats.io_queue},
          {"io_queue_reason", stats.io_queue_reason},
          {"pool_bytes", stats.pool_bytes},
          {"pool_hugepage_bytes", stats.pool_hugepage_bytes},
          {"pool_peak_bytes", stats.pool_peak_bytes},
          {"saves_kept", stats.saves_kept},
          {"saves_durable", stats.saves_durable},
          {"saves_failed", stats.saves_failed},
          {"bytes_written", stats.bytes_written}};
}

/// User and system time of this process's threads whose names begin with `prefix`.
double ThreadsCpuSeconds(const std::string& prefix) {
  double ticks = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    // "12 (name) S ...": the name may contain brackets. Fields 14 and 15 are user and system time.
    const std::size_t begin = stat.find('(');
    const std::size_t end = stat.rfind(')');
    if (end == std::string::npos || stat.compare(begin + 1, prefix.size(), prefix) != 0) continue;
    std::istringstream fields(stat.substr(end + 1));
    std::string field;
    for (int number = 3; number < 14; ++number) fields >> field;
    double user = 0;
    double system = 0;
    fields >> user >> system;
    ticks += user + system;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

std::string Digest(const std::vector<NamedTensor>& tensors) {
  std::uint64_t crc = 0;
  for (const NamedTensor& item : tensors) {
    const at::Tensor bytes = item.tensor.detach().cpu().contiguous();
    crc = crc64_ecma_refl(crc, reinterpret_cast<const unsigned char*>(item.name.data()), item.name.size());
    crc = crc64_ecma_refl(crc, static_cast<const unsigned char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, crc >>= 4) *digit = "0123456789abcdef"[crc & 15];
  return text;
}

void WriteReport(const Flags& flags, const Report& report) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  ordered_json json = {{"model", flags.model},
                       {"sizes", flags.sizes},
                       {"init_from", flags.init_from},
                       {"data", flags.data},
                       {"sequence", report.sequence},
                       {"samples", report.samples},
                       {"batch", flags.batch},
                       {"accumulate", flags.accumulate},
                       {"optimizer", flags.optimizer},
                       {"precision", flags.precision},
                       {"learning_rate", flags.learning_rate.value()},
                       {"schedule", flags.schedule.ToText()},
                       {"clip", flags.clip_norm},
                       {"seed", flags.seed},
                       {"device", flags.device},
                       {"threads", report.threads},
                       {"ranks", report.ranks},
                       {"resumed_from", nullptr},
                       {"stopped_by", nullptr},
                       {"first_loss", nullptr},
                       {"last_loss", nullptr},
                       {"stall_seconds", 0.0},
                       {"weights_crc64", report.weights_digest},
                       {"peak_rss_bytes", static_cast<std::uint64_t>(usage.ru_maxrss) * 1024},
                       // Cairn's threads, and the kernel's workers for its ring.
                       {"engine_cpu_seconds", ThreadsCpuSeconds("cairn-") + ThreadsCpuSeconds("iou-")},
                       {"checkpointer", nullptr},
                       {"steps", ordered_json::array()},
                       {"saves", ordered_json::array()}};
  if (report.resumed_from) json["resumed_from"] = *report.resumed_from;
  if (report.stopped_by != nullptr) json["stopped_by"] = report.stopped_by;
  if (report.checkpointer) json["checkpointer"] = ToJson(*report.checkpointer);
  if (!report.steps.empty()) {
    json["first_loss"] = report.steps.front().loss;
    json["last_loss"] = report.steps.back().loss;
  }
  double stall = 0;
  for (const StepRecord& step : report.steps) {
    json["steps"].push_back({{"step", step.step},
                             {"loss", step.loss},
                             {"learning_rate", step.learning_rate},
                             {"seconds", step.seconds},
                             {"model_seconds", step.model_seconds},
                             {"reduce_seconds", step.reduce_seconds},
                             {"fence_seconds", step.fence_seconds},
                             {"stall_seconds", step.stall_seconds},
                             {"saves_in_flight", step.saves_in_flight}});
    stall += step.stall_seconds;
  }
  json["stall_seconds"] = stall;
  for (const SaveRecord& save : report.saves) json["saves"].push_back(ToJson(save));

  const std::string temporary = flags.report + ".part";
  std::ofstream file(temporary, std::ios::trunc);
  file << json.dump(1) << '\n';
  file.close();
  if (!file || std::rename(temporary.c_str(), flags.report.c_str()) != 0) {
    throw std::runtime_error("--report " + flags.report + ": cannot write the file");
  }
}

}  // namespace cairn::trainer
