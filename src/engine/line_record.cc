#include "engine/line_record.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

void LineRecord::Ensure(IoQueue& queue, const Write& write, std::uint64_t line, StatusDone done) {
  if (line <= durable_) return done(Status::Ok());
  highest_ = std::max(highest_, line);
  waiting_.push_back({line, std::move(done)});
  if (!writing_) Begin(queue, write);
}

void LineRecord::Begin(IoQueue& queue, const Write& write) {
  writing_ = true;
  RunTask(queue, write(highest_), [this, &queue, &write, line = highest_](const Status& status) {
    writing_ = false;
    if (status.ok()) durable_ = line;
    const auto later =
        std::partition(waiting_.begin(), waiting_.end(), [line](const Waiting& one) { return one.line <= line; });
    std::vector<Waiting> ended(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(later));
    waiting_.erase(waiting_.begin(), later);
    if (!waiting_.empty()) Begin(queue, write);
    for (const Waiting& one : ended) {
      one.done(status.ok() ? status
                           : Error(status.code(), status.detail(), "line {} could not be begun: {}", one.line,
                                   status.message()));
    }
  });
}

}  // namespace cairn
