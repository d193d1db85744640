#include "store/pins.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <string_view>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

constexpr std::string_view kBestText = "best\n";

bool IsThere(const PathAt& path) {
  struct stat found {};
  return ::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 ||
         (errno != ENOENT && errno != ENOTDIR);
}

/// Replaces the pin by a rename, so that it always has a whole text.
IoTask<Status> ReplacePin(const PathAt& draft, const PathAt& pin, PinOwner owner, unsigned file_mode) {
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await CreatePin(draft, owner, file_mode, /*room=*/nullptr, fd));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(fd, draft.text()));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Close(fd, draft.text()));
  co_return co_await io::Rename(draft, pin, RenameMode::kPlain);
}

IoTask<Status> SetPinTask(PathAt root, PathAt folder, std::optional<PinOwner> owner, unsigned file_mode) {
  const PathAt pin = JoinPath(folder, kPinName);
  UniqueFd folder_fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(folder, /*follow=*/false, folder_fd));
  if (!owner) {
    IoResult removed = co_await io::Unlink(pin);
    if (!removed.ok() && removed.error != ENOENT) co_return removed.status;
  } else if (FindPin(folder) != owner) {
    const PathAt draft = JoinPath(root, PinDraftName(MakeUuid()));
    Status replaced = co_await ReplacePin(draft, pin, *owner, file_mode);
    if (!replaced.ok()) {
      static_cast<void>(co_await io::Unlink(draft));
      co_return replaced;
    }
  }
  co_return co_await io::Fsync(folder_fd, folder.text());
}

}  // namespace

bool StepExists(const PathAt& root, std::uint64_t step) { return IsThere(JoinPath(root, StepName(step))); }

bool IsPinned(const PathAt& root, std::uint64_t step) { return IsPinned(JoinPath(root, StepName(step))); }

bool IsPinned(const PathAt& folder) { return IsThere(JoinPath(folder, kPinName)); }

std::optional<PinOwner> FindPin(const PathAt& folder) {
  const PathAt pin = JoinPath(folder, kPinName);
  // O_NONBLOCK, so that a FIFO of that name does not block.
  const UniqueFd fd(::openat(pin.directory(), pin.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return errno == ENOENT || errno == ENOTDIR ? std::nullopt : std::optional(PinOwner::kUser);
  std::array<char, kBestText.size() + 1> text{};
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  const bool best = got >= 0 && std::string_view(text.data(), static_cast<std::size_t>(got)) == kBestText;
  return best ? PinOwner::kBest : PinOwner::kUser;
}

IoTask<Status> CreatePin(const PathAt& path, PinOwner owner, unsigned file_mode, Room* room, UniqueFd& fd) {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(path, 0, file_mode, fd));
  if (owner == PinOwner::kUser) co_return Status::Ok();
  co_return co_await io::WriteAll(fd, path.text(), 0, std::as_bytes(std::span(kBestText)), /*alignment=*/1,
                                  {.room = room});
}

Status SetPin(IoQueue& queue, const PathAt& root, std::uint64_t step, std::optional<PinOwner> owner,
              unsigned file_mode) {
  const PathAt folder = JoinPath(root, StepName(step));
  // Against a removal that would take the folder, and the pin with it, from under this.
  CAIRN_ASSIGN_OR_RETURN([[maybe_unused]] const ReadLock lock, ReadLock::Take(folder));
  return RunTaskBlocking(queue, SetPinTask(root, folder, owner, file_mode));
}

}  // namespace cairn
