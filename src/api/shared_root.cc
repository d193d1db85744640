#include "api/shared_root.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "engine/agreement.h"
#include "group/blocking.h"
#include "store/late_name.h"
#include "store/names.h"

namespace cairn {
namespace {

// The first character of the message; the writer's id, a line end and what is said of the memory root follow, or the
// outcome.
constexpr char kOpened = '=';
constexpr char kFailed = '!';
constexpr char kGoesOn = '~';

std::string RootKey(std::uint64_t number) { return fmt::format("root/{}", number); }

void AnnounceToRanks(const Options& options, std::uint64_t number, std::string message) {
  Group* const group = options.group.get();
  if (group == nullptr || group->size() == 1 || group->rank() != 0 || options.read_only) return;
  group->Announce(RootKey(number), std::move(message));
}

/// Waits until rank 0 has opened the root. Returns its writer's id.
Result<std::string> AwaitWriterId(const Options& options, Group& group, std::string& memory) {
  Result<std::string> heard = std::string(1, kGoesOn);
  for (std::uint64_t number = 0; heard.ok() && heard->starts_with(kGoesOn); ++number) {
    heard = AwaitMessage(group, RootKey(number), Deadline::In(options.group_timeout)).get();
  }
  if (!heard.ok()) {
    return Error(heard.status().code(), "{}: rank 0 did not say that it opened the root: {}", options.root,
                 heard.status().message());
  }
  const std::string& message = *heard;
  if (message.starts_with(kOpened)) {
    const std::size_t end = std::min(message.find('\n'), message.size());
    memory = message.substr(std::min(end + 1, message.size()));
    return message.substr(1, end - 1);
  }
  const std::optional<Status> failure =
      message.empty() ? std::nullopt : DecodeOutcome(std::string_view(message).substr(1));
  if (failure && !failure->ok()) return Error(failure->code(), failure->detail(), "rank 0: {}", failure->message());
  return InvalidMessage(0, message);
}

Result<std::unique_ptr<Root>> OpenOwnRoot(IoQueue& queue, const Options& options, const Group& group) {
  return Root::Open(queue, {.path = options.root,
                            .read_only = options.read_only,
                            .coordinator = group.rank() == 0,
                            .wait = options.open_timeout,
                            .take_over = options.take_over,
                            .file_mode = options.file_mode,
                            .directory_mode = options.directory_mode});
}

/// The directory that rank 0 has opened, unless this rank does not see it (yet): NotFound.
Result<std::unique_ptr<Root>> OpenSeen(IoQueue& queue, const Options& options, const Group& group,
                                       const std::string& writer_id) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Root> root, OpenOwnRoot(queue, options, group));
  CAIRN_RETURN_IF_ERROR(root->CheckSeen(writer_id));
  return root;
}

}  // namespace

Result<std::unique_ptr<Root>> OpenSharedRoot(IoQueue& queue, const Options& options, Group& group,
                                             std::string& memory) {
  if (group.rank() == 0 || options.read_only) return OpenOwnRoot(queue, options, group);
  CAIRN_ASSIGN_OR_RETURN(const std::string writer_id, AwaitWriterId(options, group, memory));
  std::optional<LateName> late;
  while (true) {
    Result<std::unique_ptr<Root>> root = OpenSeen(queue, options, group, writer_id);
    if (root.status().code() != StatusCode::kNotFound) return root;
    if (!late) {
      const PathAt path = JoinPath(options.root, kWriterName);
      late.emplace(fmt::format("{}, which rank 0 has written,", path), group.rank(), options.group_timeout);
    }
    if (late->expired()) return late->Missing(root.status().message());
    const Deadline next = late->NextLook();
    if (const auto event = late->NotYet(); event && options.on_event) options.on_event(*event);
    CAIRN_RETURN_IF_ERROR(queue.RunOnce(next).status());
  }
}

void AnnounceGoesOn(const Options& options, std::uint64_t& sent) {
  AnnounceToRanks(options, sent++, std::string(1, kGoesOn));
}

void AnnounceOpened(const Options& options, std::uint64_t sent, const std::string& writer_id, const std::string& memory,
                    const Status& status) {
  const std::string more = memory.empty() ? memory : "\n" + memory;
  AnnounceToRanks(options, sent, status.ok() ? kOpened + writer_id + more : kFailed + EncodeOutcome(status));
}

}  // namespace cairn
