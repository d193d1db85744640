#include "api/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/unique_fd.h"

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".prom";  // node_exporter reads no other.

}  // namespace

Result<std::string> MetricsFileOf(const std::string& path, int rank, int ranks) {
  if (!path.ends_with(kSuffix) || path.ends_with('/' + std::string(kSuffix)) || path.size() == kSuffix.size()) {
    return Error(StatusCode::kInvalidArgument, "metrics_file: expected a path that ends with NAME.prom, found \"{}\"",
                 path);
  }
  if (ranks == 1) return path;
  return fmt::format("{}-rank{}{}", path.substr(0, path.size() - kSuffix.size()), rank, kSuffix);
}

Result<std::unique_ptr<MetricsFile>> MetricsFile::Start(std::string path, std::function<std::string()> text,
                                                        EventCallback on_event, std::chrono::nanoseconds patience) {
  std::unique_ptr<MetricsFile> file(new MetricsFile(std::move(path), std::move(text), std::move(on_event), patience));
  CAIRN_ASSIGN_OR_RETURN(file->thread_, StartThread("cairn-metrics", [file = file.get()] { file->Run(); }));
  return file;
}

MetricsFile::MetricsFile(std::string path, std::function<std::string()> text, EventCallback on_event,
                         std::chrono::nanoseconds patience)
    : path_(std::move(path)), text_(std::move(text)), patience_(patience), on_event_(std::move(on_event)) {}

MetricsFile::~MetricsFile() {
  if (!thread_.joinable()) return;
  static_cast<void>(End(Deadline::Infinite()));
  thread_.join();
}

void MetricsFile::Update() {
  std::chrono::nanoseconds waits{};
  {
    MutexLock lock(mutex_);
    due_ = true;
    changed_.NotifyAll();
    if (begun_) waits = Deadline::Clock::now() - *begun_;
  }
  if (waits <= patience_) return;
  Report(Error(StatusCode::kDeadlineExceeded, "its disk has not answered for {}", HumanDuration(waits)), waits);
}

bool MetricsFile::End(Deadline deadline) {
  {
    MutexLock lock(event_mutex_);
    on_event_ = nullptr;
  }
  MutexLock lock(mutex_);
  ending_ = true;
  changed_.NotifyAll();
  while (!ended_ && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return ended_;
}

void MetricsFile::Run() {
  while (true) {
    const auto begun = [&] {
      MutexLock lock(mutex_);
      const Deadline next = Deadline::In(kEvery);
      while (!ending_ && !due_ && !next.passed()) changed_.WaitUntil(mutex_, next);
      due_ = false;
      if (!ending_) begun_ = Deadline::Clock::now();
      return begun_;
    }();
    if (!begun) break;
    const Status status = Write();
    {
      MutexLock lock(mutex_);
      begun_.reset();
    }
    Report(status, Deadline::Clock::now() - *begun);
  }
  ::unlink(path_.c_str());
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

// Nobody needs it after a power cut, so nothing is fsynced. Readers see the old file or the new one.
Status MetricsFile::Write() const {
  const std::string draft = path_ + ".new";
  const std::string text = text_();
  UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, "open of " + draft);
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t more = ::write(fd.get(), text.data() + written, text.size() - written);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) {
      const Status why = ErrnoStatus(more == 0 ? EIO : errno, "write of " + draft);
      ::unlink(draft.c_str());
      return why;
    }
    written += static_cast<std::size_t>(more);
  }
  fd.Reset();
  if (::rename(draft.c_str(), path_.c_str()) == 0) return Status::Ok();
  const Status why = ErrnoStatus(errno, "rename of " + draft);
  ::unlink(draft.c_str());
  return why;
}

void MetricsFile::Report(const Status& status, std::chrono::nanoseconds took) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(failed_, !status.ok()) || status.ok()) return;
  }
  MutexLock lock(event_mutex_);
  if (!on_event_) return;
  on_event_({.severity = Severity::kWarning,
             .status = status,
             .message = fmt::format("the metrics cannot be written: {}", status.message()),
             .phase = "metrics",
             .duration = took,
             .path = path_});
}

}  // namespace cairn
