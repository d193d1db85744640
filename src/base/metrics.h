#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

/// Spans of time, counted in fixed buckets. Safe from any thread.
class SpanHistogram {
 public:
  /// Upper bounds in seconds; one more bucket has what is longer.
  static constexpr std::array<double, 10> kBounds{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300};

  void Observe(std::chrono::nanoseconds span);
  /// Of each bucket alone, not of those below it.
  [[nodiscard]] std::array<std::uint64_t, kBounds.size() + 1> counts() const;
  [[nodiscard]] std::chrono::nanoseconds sum() const { return std::chrono::nanoseconds(sum_); }

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<std::int64_t> sum_{0};
};

/// How a save ended, for its metrics.
enum class SaveOutcome : std::uint8_t { kDurable, kFailed, kCancelled, kUnknown };
inline constexpr std::array<std::string_view, 4> kSaveOutcomes{"durable", "failed", "cancelled", "unknown"};

/// What a save comes to, one after the other. The time between two of them is a phase, which has its name here.
enum class SavePoint : std::uint8_t {
  kFirstCopied,  ///< The first chunk is in the host's memory.
  kCaptured,
  kDataWritten,
  kSummed,
  kReleased,  ///< It may commit.
  kSealed,
  kAgreed,
  kCommitted,
};
inline constexpr std::array<std::string_view, 8> kSavePhases{"wait", "copy", "write", "checksum",
                                                             "hold", "seal", "agree", "commit"};

/// Since 1970.
[[nodiscard]] inline double UnixSeconds(std::chrono::system_clock::time_point when = std::chrono::system_clock::now()) {
  return std::chrono::duration<double>(when.time_since_epoch()).count();
}

/// What one Checkpointer counts. Each number synchronises itself, and belongs to no other: they may be a moment apart.
struct Metrics {
  using Counter = std::atomic<std::uint64_t>;

  std::array<Counter, kSaveOutcomes.size()> saves{};
  std::array<Counter, kSaveOutcomes.size()> save_bytes{};
  /// By StatusCode.
  std::array<Counter, 16> failures{};
  std::array<SpanHistogram, kSavePhases.size()> phases;
  /// Of durable saves, from the call on.
  SpanHistogram durations;
  /// Until they were kept in memory.
  SpanHistogram kept;
  /// How long callers were blocked, in nanoseconds.
  Counter stall{0};
  /// Saves written without O_DIRECT.
  Counter buffered{0};
  /// Operations of the disk that were repeated because they were interrupted or did a part only; and beginnings of
  /// saves on a full disk.
  Counter retries{0};
  Counter fall_backs{0};
  Counter removed{0};
  Counter warnings{0};
  Counter errors{0};
  Counter restores{0};
  Counter failed_restores{0};

  static constexpr std::int64_t kUnknown = -1;
  std::atomic<std::int64_t> disk_free{kUnknown};
};

/// Writes metrics in Prometheus' text format, version 0.0.4.
class PrometheusText {
 public:
  /// `label="value"`, escaped; to be joined with commas.
  [[nodiscard]] static std::string Label(std::string_view name, std::string_view value);

  /// Each value gets these labels, and its own after them.
  explicit PrometheusText(std::string labels) : labels_(std::move(labels)) {}

  /// Values follow, all of this metric. `help` is one line.
  PrometheusText& Counter(std::string_view name, std::string_view help) { return Begin(name, help, "counter"); }
  PrometheusText& Gauge(std::string_view name, std::string_view help) { return Begin(name, help, "gauge"); }
  PrometheusText& Histogram(std::string_view name, std::string_view help) { return Begin(name, help, "histogram"); }
  PrometheusText& Value(std::uint64_t value, const std::string& labels = {});
  PrometheusText& Value(double value, const std::string& labels = {});
  PrometheusText& Value(const SpanHistogram& value, const std::string& labels = {});
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  PrometheusText& Begin(std::string_view name, std::string_view help, std::string_view type);
  void Add(std::string_view suffix, const std::string& labels, const std::string& value);

  const std::string labels_;
  std::string name_;
  std::string text_;
};

}  // namespace cairn
