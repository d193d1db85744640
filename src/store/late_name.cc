#include "store/late_name.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "store/writer.h"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::seconds kLastPause{1};

/// Rank 0 waits for group_timeout too, and should hear the reason.
std::chrono::nanoseconds ShorterThan(std::chrono::nanoseconds timeout) {
  return timeout - std::min<std::chrono::nanoseconds>(timeout / 20, std::chrono::seconds(1));
}

}  // namespace

Status ForgetCachedNames(const PathAt& directory) {
  struct statx found {};
  if (::statx(directory.directory(), directory.c_str(), AT_STATX_FORCE_SYNC, STATX_MTIME, &found) == 0) return {};
  return errno == ENOSYS ? Status::Ok() : ErrnoStatus(errno, "stat of " + directory.text());
}

IoTask<IoResult> OpenLateName(PathAt directory, PathAt path, int flags, bool again, UniqueFd& fd) {
  if (again) static_cast<void>(co_await io::OnThread(directory.text(), [&] { return ForgetCachedNames(directory); }));
  co_return co_await io::Open(path, flags, fd);
}

LateName::LateName(std::string what, int rank, std::chrono::nanoseconds timeout)
    : what_(std::move(what)), rank_(rank), until_(Deadline::In(ShorterThan(timeout))) {}

Deadline LateName::NextLook() {
  constexpr int kDoublings = 5;  // Up to kLastPause.
  const std::chrono::nanoseconds pause =
      std::min<std::chrono::nanoseconds>(kFirstPause * (1 << std::clamp(looks_ - 1, 0, kDoublings)), kLastPause);
  const Deadline next = looks_++ == 0 ? Deadline::In({}) : Deadline::In(pause);
  return next.when() < until_.when() ? next : until_;
}

std::optional<Event> LateName::NotYet() const {
  if (looks_ != 2) return std::nullopt;
  return Event{
      .severity = Severity::kWarning,
      .message = fmt::format("{} is not visible yet on rank {} ({}); looking for it", what_, rank_, HostName()),
      .phase = "disk",
      .duration = Deadline::Clock::now() - begun_};
}

Status LateName::Missing(const std::string& found) const {
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  return Error(
      StatusCode::kFailedPrecondition,
      "{} is not visible on rank {} ({}) after {}{}: either the filesystem shows new names late there, or it is "
      "another directory there: is a mount missing, or the path wrong?",
      what_, rank_, HostName(), HumanSeconds(waited), found.empty() ? "" : " (" + found + ")");
}

}  // namespace cairn
