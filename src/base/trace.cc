#include "base/trace.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <map>
#include <utility>

#include "base/json_text.h"

namespace cairn {
namespace {

std::string JsonString(const std::string& text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

}  // namespace

Trace::Trace(std::size_t capacity) : capacity_(capacity) {}

void Trace::Span(const std::string& row, const std::string& name, Clock::time_point begin, Clock::time_point end,
                 std::uint64_t step, std::uint64_t bytes) {
  if (capacity_ == 0) return;
  MutexLock lock(mutex_);
  Entry entry{row, name, begin, end, step, bytes};
  if (entries_.size() < capacity_) {
    entries_.push_back(std::move(entry));
  } else {
    entries_[next_] = std::move(entry);
    next_ = (next_ + 1) % capacity_;
  }
}

std::string Trace::ToJson() const {
  using Micros = std::chrono::duration<double, std::micro>;
  MutexLock lock(mutex_);
  std::map<std::string, int> rows;
  fmt::memory_buffer out;
  auto to = std::back_inserter(out);
  fmt::format_to(to, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  const char* comma = "";
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[(next_ + i) % entries_.size()];
    const auto [row, fresh] = rows.emplace(e.row, static_cast<int>(rows.size()) + 1);
    if (fresh) {
      fmt::format_to(to, "{}\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}",
                     comma, row->second, JsonString(e.row));
      comma = ",";
    }
    fmt::format_to(to,
                   "{}\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
                   "\"args\":{{\"step\":{},\"bytes\":{}}}}}",
                   comma, row->second, JsonString(e.name), Micros(e.begin.time_since_epoch()).count(),
                   Micros(e.end - e.begin).count(), e.step, e.bytes);
    comma = ",";
  }
  fmt::format_to(to, "\n]}}\n");
  return fmt::to_string(out);
}

}  // namespace cairn
