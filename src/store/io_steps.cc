#include "store/io_steps.h"

#include <fcntl.h>

#include <memory>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

/// Held by the callback of the operation under way, and so dropped with it where the queue is destroyed.
class Sequence : public std::enable_shared_from_this<Sequence> {
 public:
  Sequence(IoQueue& queue, std::vector<IoStep> steps, StatusDone done)
      : queue_(queue), steps_(std::move(steps)), done_(std::move(done)) {}

  void Start() {
    Advance();
    starting_ = false;
  }

 private:
  void Advance() {
    for (; next_ < steps_.size(); ++next_) {
      IoStep& step = steps_[next_];
      if (step.check) {
        if (Status status = step.check(); !status.ok()) return Finish(std::move(status));
      }
      if (!step.together.empty()) return RunTogether(std::move(step.together));
      if (!step.make) continue;
      std::optional<IoRequest> request = step.make();
      if (!request) continue;
      request_ = *request;
      queue_.Submit(*std::move(request), [self = shared_from_this()](std::int64_t result) { self->Take(result); });
      return;
    }
    Finish(Status::Ok());
  }

  void RunTogether(std::vector<std::vector<IoStep>> sequences) {
    struct Together {
      std::size_t missing;
      Status first;
    };
    const auto together = std::make_shared<Together>(Together{sequences.size(), Status::Ok()});
    for (std::vector<IoStep>& steps : sequences) {
      RunSteps(queue_, std::move(steps), [self = shared_from_this(), together](Status status) {
        if (together->first.ok()) together->first = std::move(status);
        if (--together->missing != 0) return;
        if (!together->first.ok()) return self->Finish(std::move(together->first));
        ++self->next_;
        self->Advance();
      });
    }
    starting_ = false;
  }

  void Take(std::int64_t result) {
    const Result<Flow> flow = Judge(result);
    if (!flow.ok()) return Finish(flow.status());
    if (*flow == Flow::kNext) ++next_;
    Advance();
  }

  Result<Flow> Judge(std::int64_t result) {
    const IoStep& step = steps_[next_];
    if (result >= 0) return step.on_value ? step.on_value(result) : Flow::kNext;
    const int error = static_cast<int>(-result);
    Status plain = ErrnoStatus(error, Describe(request_, step.name));
    if (!step.on_error) return plain;
    return step.on_error(error, std::move(plain));
  }

  void Finish(Status status) {
    if (!starting_) return done_(std::move(status));
    // Nothing was submitted so far, and `done` must come from RunOnce: the refused close of no descriptor carries it
    // there.
    queue_.Submit({.op = IoOp::kClose},
                  [self = shared_from_this(), status = std::move(status)](std::int64_t) { self->done_(status); });
  }

  IoQueue& queue_;
  std::vector<IoStep> steps_;
  StatusDone done_;
  std::size_t next_ = 0;
  IoRequest request_;  // The last one submitted, for messages.
  bool starting_ = true;
};

}  // namespace

void RunSteps(IoQueue& queue, std::vector<IoStep> steps, StatusDone done) {
  std::make_shared<Sequence>(queue, std::move(steps), std::move(done))->Start();
}

Status RunStepsBlocking(IoQueue& queue, std::vector<IoStep> steps) {
  // Shared: a queue that broke may still hold the callback.
  const auto outcome = std::make_shared<std::optional<Status>>();
  RunSteps(queue, std::move(steps), [outcome](Status status) { *outcome = std::move(status); });
  while (!outcome->has_value()) {
    CAIRN_ASSIGN_OR_RETURN([[maybe_unused]] const std::size_t called, queue.RunOnce(Deadline::Infinite()));
  }
  return **outcome;
}

IoStep OpenDirectoryStep(const std::string& path, bool follow, UniqueFd& fd) {
  const int flags = O_RDONLY | O_DIRECTORY | (follow ? 0 : O_NOFOLLOW);
  return {.make = [path, flags] { return IoRequest{.op = IoOp::kOpen, .path = path, .flags = flags}; },
          .on_value =
              [&fd](std::int64_t value) {
                fd = UniqueFd(static_cast<int>(value));
                return Flow::kNext;
              }};
}

IoStep CreateFileStep(const std::string& path, int more_flags, unsigned mode, UniqueFd& fd) {
  return {.make =
              [path, more_flags, mode] {
                return IoRequest{.op = IoOp::kOpen,
                                 .path = path,
                                 .flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | more_flags,
                                 .mode = mode};
              },
          .on_value =
              [&fd](std::int64_t value) {
                fd = UniqueFd(static_cast<int>(value));
                return Flow::kNext;
              }};
}

IoStep FsyncStep(const UniqueFd& fd, const std::string& name) {
  return {.make = [&fd] { return IoRequest{.op = IoOp::kFsync, .fd = fd.get()}; }, .name = name};
}

IoStep CloseStep(UniqueFd& fd, const std::string& name) {
  return {.make = [&fd]() -> std::optional<IoRequest> {
            if (!fd.valid()) return std::nullopt;
            return IoRequest{.op = IoOp::kClose, .fd = fd.Release()};
          },
          .name = name};
}

IoStep WriteStep(const UniqueFd& fd, const std::string& name, std::uint64_t offset, Bytes memory,
                 std::uint64_t alignment) {
  struct Rest {
    std::uint64_t offset;
    Bytes memory;
    bool stalled = false;  // The last write got no further.
  };
  const auto rest = std::make_shared<Rest>(Rest{offset, memory});
  return {.make =
              [&fd, rest] {
                // The queue only reads it; requests have one buffer for both directions.
                auto* buffer = const_cast<std::byte*>(rest->memory.data());
                return IoRequest{.op = IoOp::kWrite,
                                 .fd = fd.get(),
                                 .buffer = buffer,
                                 .length = rest->memory.size(),
                                 .offset = rest->offset};
              },
          .name = name,
          .on_value = [rest, name, alignment](std::int64_t value) -> Result<Flow> {
            const auto written = static_cast<std::uint64_t>(value);
            if (written == rest->memory.size()) return Flow::kNext;
            const std::uint64_t advance = AlignDown(written, alignment);
            if (written == 0 || written > rest->memory.size() || (advance == 0 && rest->stalled)) {
              return Error(StatusCode::kIoError, "write of {} at {}: expected {} bytes, {} were written", name,
                           rest->offset, rest->memory.size(), written);
            }
            rest->stalled = advance == 0;
            rest->offset += advance;
            rest->memory = rest->memory.subspan(advance);
            return Flow::kAgain;
          }};
}

}  // namespace cairn
