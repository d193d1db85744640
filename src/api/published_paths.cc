#include "api/published_paths.h"

#include <memory>

#include "base/status_macros.h"
#include "store/pins.h"
#include "store/publish.h"

namespace cairn {
namespace {

void Warn(const EventCallback& on_event, const Leftovers& left) {
  if (!on_event) return;
  for (const std::string& one : left) on_event({.severity = Severity::kWarning, .message = one});
}

Status CheckRank(const PathParts& parts, const std::string& path) {
  if (parts.ledger != nullptr) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{}: only rank 0 publishes checkpoints and removes them", path);
}

PublishOptions OptionsOf(const PathParts& parts, Deadline deadline) {
  return {.deadline = deadline, .still_writer = [&root = parts.root] { return root.CheckWriter(); }};
}

}  // namespace

Status PublishStep(const PathParts& parts, std::uint64_t step, const std::string& path, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckRank(parts, path));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_RETURN_IF_ERROR(parts.ledger->BeginRemoval(step));
  Leftovers left;
  Status published = Publish(*queue, parts.root.at(), step, path, OptionsOf(parts, deadline), left);
  // After an exchange whose outcome is unknown the name may be what the path had.
  const bool gone = published.ok() || !HoldsStep(parts.root.at(), step);
  gone ? parts.ledger->Removed(step) : parts.ledger->KeepAfterAll(step);
  Warn(parts.on_event, left);
  return published;
}

Status RemovePath(const PathParts& parts, const std::string& path, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckRank(parts, path));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
  Leftovers left;
  Status removed = RemovePublished(*queue, parts.root.at(), path, OptionsOf(parts, deadline), left);
  Warn(parts.on_event, left);
  return removed;
}

}  // namespace cairn
