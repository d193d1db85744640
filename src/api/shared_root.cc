#include "api/shared_root.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "engine/agreement.h"
#include "group/blocking.h"

namespace cairn {
namespace {

constexpr const char* kRootKey = "root";
// The first character of the message; the writer's id, or the outcome, follows.
constexpr char kOpened = '=';
constexpr char kFailed = '!';

/// Waits until rank 0 has opened the root. Returns its writer's id.
Result<std::string> AwaitWriterId(const Options& options, Group& group) {
  const Result<std::string> heard = AwaitMessage(group, kRootKey, Deadline::In(options.group_timeout));
  if (!heard.ok()) {
    return Error(heard.status().code(), "{}: rank 0 did not say that it opened the root: {}", options.root,
                 heard.status().message());
  }
  const std::string& message = *heard;
  if (message.starts_with(kOpened)) return message.substr(1);
  const std::optional<Status> failure =
      message.empty() ? std::nullopt : DecodeOutcome(std::string_view(message).substr(1));
  if (failure && !failure->ok()) return Error(failure->code(), failure->detail(), "rank 0: {}", failure->message());
  return InvalidMessage(0, message);
}

}  // namespace

Result<std::unique_ptr<Root>> OpenSharedRoot(IoQueue& queue, const Options& options, Group& group) {
  const bool follows = group.rank() != 0 && !options.read_only;
  std::string writer_id;
  if (follows) {
    CAIRN_ASSIGN_OR_RETURN(writer_id, AwaitWriterId(options, group));
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Root> root, Root::Open(queue, {.path = options.root,
                                                                        .read_only = options.read_only,
                                                                        .coordinator = group.rank() == 0,
                                                                        .wait = options.open_timeout,
                                                                        .take_over = options.take_over,
                                                                        .file_mode = options.file_mode,
                                                                        .directory_mode = options.directory_mode}));
  if (follows) CAIRN_RETURN_IF_ERROR(root->CheckSeen(writer_id));
  return root;
}

void AnnounceOpened(const Options& options, const std::string& writer_id, const Status& status) {
  Group* const group = options.group.get();
  if (group == nullptr || group->size() == 1 || group->rank() != 0 || options.read_only) return;
  group->Announce(kRootKey, status.ok() ? kOpened + writer_id : kFailed + EncodeOutcome(status));
}

}  // namespace cairn
