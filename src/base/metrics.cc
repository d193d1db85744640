#include "base/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace cairn {
namespace {

std::string Joined(const std::string& labels, const std::string& more) {
  return labels.empty() || more.empty() ? labels + more : labels + "," + more;
}

}  // namespace

void SpanHistogram::Observe(std::chrono::nanoseconds span) {
  const double seconds = std::chrono::duration<double>(span).count();
  const auto bucket = std::ranges::lower_bound(kBounds, seconds) - kBounds.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(span.count(), std::memory_order_relaxed);
}

std::array<std::uint64_t, SpanHistogram::kBounds.size() + 1> SpanHistogram::counts() const {
  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  std::ranges::copy(counts_, counts.begin());
  return counts;
}

std::string PrometheusText::Label(std::string_view name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  for (const char one : value) {
    if (one == '\n') {
      text += "\\n";
      continue;
    }
    if (one == '\\' || one == '"') text += '\\';
    text += one;
  }
  return text + '"';
}

PrometheusText& PrometheusText::Begin(std::string_view name, std::string_view help, std::string_view type) {
  name_ = name;
  fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  return *this;
}

void PrometheusText::Add(std::string_view suffix, const std::string& labels, const std::string& value) {
  fmt::format_to(std::back_inserter(text_), "{}{}{{{}}} {}\n", name_, suffix, Joined(labels_, labels), value);
}

PrometheusText& PrometheusText::Value(std::uint64_t value, const std::string& labels) {
  Add("", labels, fmt::format("{}", value));
  return *this;
}

PrometheusText& PrometheusText::Value(double value, const std::string& labels) {
  Add("", labels, fmt::format("{}", value));
  return *this;
}

PrometheusText& PrometheusText::Value(const SpanHistogram& value, const std::string& labels) {
  const auto counts = value.counts();
  std::uint64_t up_to = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    up_to += counts[i];
    const std::string bound =
        i < SpanHistogram::kBounds.size() ? fmt::format("{}", SpanHistogram::kBounds[i]) : std::string("+Inf");
    Add("_bucket", Joined(labels, Label("le", bound)), fmt::format("{}", up_to));
  }
  Add("_sum", labels, fmt::format("{}", std::chrono::duration<double>(value.sum()).count()));
  Add("_count", labels, fmt::format("{}", up_to));
  return *this;
}

}  // namespace cairn
