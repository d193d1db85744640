// Every metric of a Checkpointer, with its name and what it is: docs/monitoring.md has them for users.
#include <algorithm>

#include "api/checkpointer_impl.h"
#include "api/memory_root.h"
#include "engine/engine.h"
#include "engine/ledger.h"
#include "store/writer.h"

namespace cairn {
namespace {

double Seconds(std::chrono::nanoseconds span) { return std::chrono::duration<double>(span).count(); }

/// How saves have ended, and how long they took.
void AddSaves(PrometheusText& text, const Metrics& metrics, const CheckpointerStats& stats) {
  text.Counter("cairn_saves_started_total", "Saves, also those that their call refused.").Value(stats.saves_started);
  text.Counter("cairn_saves_total", "Saves that have ended, by outcome.");
  for (std::size_t i = 0; i < kSaveOutcomes.size(); ++i) {
    text.Value(metrics.saves[i], PrometheusText::Label("outcome", kSaveOutcomes[i]));
  }
  text.Counter("cairn_save_bytes_total", "Tensor bytes of this rank in saves that have ended, by outcome.");
  for (std::size_t i = 0; i < kSaveOutcomes.size(); ++i) {
    text.Value(metrics.save_bytes[i], PrometheusText::Label("outcome", kSaveOutcomes[i]));
  }
  text.Counter("cairn_save_failures_total",
               "Saves that have failed, by the code of the error; only codes that occurred.");
  for (std::size_t i = 0; i < metrics.failures.size(); ++i) {
    const auto code = static_cast<StatusCode>(i);
    if (metrics.failures[i] == 0 || code == StatusCode::kCancelled) continue;
    text.Value(metrics.failures[i], PrometheusText::Label("code", StatusCodeName(code)));
  }
  text.Gauge("cairn_failures_in_a_row", "Saves that have failed or were refused since the last durable one.")
      .Value(stats.failures_in_a_row);
  text.Gauge("cairn_saves_in_flight", "Saves that have not ended.").Value(stats.saves_in_flight);
  text.Counter("cairn_written_bytes_total", "Bytes given to the filesystem, with headers and padding.")
      .Value(stats.bytes_written);
  text.Counter("cairn_stall_seconds_total", "How long saves and fences have blocked training.")
      .Value(Seconds(std::chrono::nanoseconds(metrics.stall)));
  text.Histogram("cairn_save_seconds", "From the call of save until durable.").Value(metrics.durations);
}

void AddPhases(PrometheusText& text, const Metrics& metrics, bool alone, bool leads) {
  text.Histogram("cairn_save_phase_seconds", "The phases of durable saves, which follow one another.");
  for (std::size_t i = 0; i < kSavePhases.size(); ++i) {
    const auto end = static_cast<SavePoint>(i);
    if (alone && (end == SavePoint::kSealed || end == SavePoint::kAgreed)) continue;
    if (!leads && end == SavePoint::kCommitted) continue;
    text.Value(metrics.phases[i], PrometheusText::Label("phase", kSavePhases[i]));
  }
}

/// The host's memory and disk.
void AddMeans(PrometheusText& text, const Metrics& metrics, const BufferPool& pool, bool disk_hangs) {
  text.Gauge("cairn_pool_bytes", "Size of the pinned pool.").Value(pool.total_bytes());
  text.Gauge("cairn_pool_limit_bytes", "What the pool may grow to.").Value(pool.cap_bytes());
  text.Gauge("cairn_pool_used_bytes", "Bytes of the pool that are in use.").Value(pool.used_bytes());
  text.Gauge("cairn_pool_peak_bytes", "The most that was ever in use at once.").Value(pool.peak_bytes());
  if (const std::int64_t free = metrics.disk_free; free != Metrics::kUnknown) {
    text.Gauge("cairn_disk_free_bytes", "Free on the root's filesystem when the last save began, or at the opening.")
        .Value(static_cast<std::uint64_t>(free));
  }
  text.Gauge("cairn_disk_hangs", "1 while saves are refused because the disk does not answer.")
      .Value(std::uint64_t{disk_hangs ? 1U : 0U});
  text.Counter("cairn_retries_total",
               "Operations of the disk that were repeated, and saves that began again on a full disk.")
      .Value(metrics.retries);
  text.Counter("cairn_buffered_saves_total", "Durable saves that were written without O_DIRECT.")
      .Value(metrics.buffered);
}

void AddEvents(PrometheusText& text, const Metrics& metrics) {
  text.Counter("cairn_fallbacks_total", "Times that something else was done than was asked for; an event says what.")
      .Value(metrics.fall_backs);
  text.Counter("cairn_events_total", "Warnings and errors.")
      .Value(metrics.warnings, PrometheusText::Label("severity", "warning"))
      .Value(metrics.errors, PrometheusText::Label("severity", "error"));
  text.Counter("cairn_restores_total", "Restores and loads, by outcome.")
      .Value(metrics.restores, PrometheusText::Label("outcome", "done"))
      .Value(metrics.failed_restores, PrometheusText::Label("outcome", "failed"));
}

/// What rank 0 knows for the whole group.
void AddGroup(PrometheusText& text, const Metrics& metrics, const Ledger& ledger) {
  text.Counter("cairn_checkpoints_removed_total", "Checkpoints that retention has removed.").Value(metrics.removed);
  const std::optional<Ledger::Newest> newest = ledger.FindNewest();
  if (!newest) return;
  text.Gauge("cairn_newest_step", "Step of the newest durable checkpoint.").Value(newest->step);
  if (!newest->at) return;
  text.Gauge("cairn_newest_timestamp_seconds", "When it became durable.").Value(*newest->at);
  text.Gauge("cairn_newest_age_seconds", "How long ago that is.").Value(UnixSeconds() - *newest->at);
}

void AddMirrors(PrometheusText& text, const std::vector<MirrorState>& mirrors) {
  const auto label = [](const MirrorState& one) { return PrometheusText::Label("target", one.target); };
  text.Gauge("cairn_mirror_newest_step", "Newest step that a mirror has copied since it was started.");
  for (const MirrorState& one : mirrors) {
    if (one.newest) text.Value(*one.newest, label(one));
  }
  text.Gauge("cairn_mirror_behind", "Durable steps that a mirror takes, newer than the newest that it has copied.");
  for (const MirrorState& one : mirrors) text.Value(one.behind, label(one));
  text.Counter("cairn_mirror_failures_total", "Copies that have failed, and mirrors that have ended by themselves.");
  for (const MirrorState& one : mirrors) text.Value(one.failures, label(one));
}

}  // namespace

void Checkpointer::Impl::AddCounters(CheckpointerStats& stats) const {
  if (memory != nullptr) return memory->AddStats(stats);
  if (engine != nullptr) engine->AddStats(stats);
}

void Checkpointer::Impl::AddMetrics(CheckpointerStats& stats) const {
  if (const std::int64_t free = metrics->disk_free; free != Metrics::kUnknown) {
    stats.disk_free_bytes = static_cast<std::uint64_t>(free);
  }
  const std::optional<Ledger::Newest> newest = ledger == nullptr ? std::nullopt : ledger->FindNewest();
  if (!newest) return;
  stats.newest_step = newest->step;
  if (!newest->at) return;
  const std::chrono::duration<double> age(
      std::clamp(UnixSeconds() - *newest->at, -1e9, 1e9));  // Files may have any time.
  stats.newest_age = std::chrono::duration_cast<std::chrono::nanoseconds>(age);
}

std::string Checkpointer::MetricsText() const { return impl_->CheckProcess().ok() ? impl_->MetricsText() : ""; }

std::string Checkpointer::Impl::MetricsText() const {
  const bool alone = group->size() == 1;
  const bool leads = group->rank() == 0;
  PrometheusText text(PrometheusText::Label("root", root_id) + "," +
                      PrometheusText::Label("rank", std::to_string(group->rank())) + "," +
                      PrometheusText::Label("node", HostName()));
  text.Gauge("cairn_info", "Always 1: what the labels of the other metrics do not say.")
      .Value(std::uint64_t{1}, PrometheusText::Label("path", root_path) + "," +
                                   PrometheusText::Label("ranks", std::to_string(group->size())) + "," +
                                   PrometheusText::Label("io_queue", queue_name));
  text.Gauge("cairn_opened_timestamp_seconds", "When this Checkpointer was opened.").Value(opened_at);
  if (engine != nullptr) {
    CheckpointerStats stats;
    AddCounters(stats);
    AddSaves(text, *metrics, stats);
    if (memory != nullptr) {
      text.Histogram("cairn_save_kept_seconds", "From the call of save until kept in memory.").Value(metrics->kept);
    }
    AddPhases(text, *metrics, alone, leads);
    if (leads) AddGroup(text, *metrics, *ledger);
    if (mirrors != nullptr) AddMirrors(text, mirrors->states());
  }
  AddMeans(text, *metrics, *pool, engine != nullptr && !engine->DiskHangs().ok());
  AddEvents(text, *metrics);
  return text.text();
}

EventCallback CountedEvents(EventCallback on_event, std::shared_ptr<Metrics> metrics, int rank, std::string root) {
  return
      [on_event = std::move(on_event), metrics = std::move(metrics), rank, root = std::move(root)](const Event& event) {
        metrics->warnings += event.severity == Severity::kWarning ? 1 : 0;
        metrics->errors += event.severity == Severity::kError ? 1 : 0;
        metrics->fall_backs += event.kind == EventKind::kFallBack ? 1 : 0;
        metrics->removed += event.kind == EventKind::kCheckpointRemoved ? 1 : 0;
        if (!on_event) return;
        Event whole = event;
        whole.rank = rank;
        if (whole.path.empty()) whole.path = root;
        on_event(whole);
      };
}

}  // namespace cairn
