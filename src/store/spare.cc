#include "store/spare.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "store/lease.h"
#include "store/paths.h"

namespace cairn {
namespace {

// O_NONBLOCK: against a FIFO in the file's place, and somebody else's lease.
constexpr int kOpenFlags = O_WRONLY | O_DIRECT | O_NOFOLLOW | O_NONBLOCK;
constexpr std::uint64_t kStatBlock = 512;  // The unit of st_blocks, on every filesystem.

alignas(kBlock) constexpr std::array<std::byte, kBlock> kZeros{};

Status CheckFile(const UniqueFd& fd, const std::string& path, unsigned file_mode) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path);
  if (!S_ISREG(found.st_mode)) return Error(StatusCode::kFailedPrecondition, "{}: not a regular file", path);
  if (found.st_nlink != 1) {
    return Error(StatusCode::kFailedPrecondition, "{}: it has {} names", path, found.st_nlink);
  }
  if (found.st_uid != ::geteuid()) {
    return Error(StatusCode::kFailedPrecondition, "{}: it is the file of user {}", path, found.st_uid);
  }
  const unsigned mode = found.st_mode & 07777U;
  if ((mode & ~file_mode) != 0) {
    return Error(StatusCode::kFailedPrecondition, "{}: its mode is {:#o}, wider than {:#o}", path, mode, file_mode);
  }
  return Status::Ok();
}

}  // namespace

Status ClaimForRecycling(const UniqueFd& fd, const std::string& path, unsigned file_mode) {
  CAIRN_RETURN_IF_ERROR(CheckFile(fd, path, file_mode));
  return TakeLease(fd, path);
}

Status CheckRecyclable(const std::string& path, unsigned file_mode) {
  const UniqueFd fd(::open(path.c_str(), kOpenFlags | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + path);
  return ClaimForRecycling(fd, path, file_mode);
}

void Spare::Tell(const Status& why) const {
  if (not_recycled) not_recycled(why.message());
}

void Spare::Refuse(const Status& why) {
  stage = Stage::kRefused;
  Tell(why);
}

void Spare::Claim(const UniqueFd& fd) {
  // While a file is in it the folder is not replaced by a later one; it was, if the file came between the two opens.
  if (!LeadsTo(folder, folder_fd)) return;
  if (const Status status = ClaimForRecycling(fd, path, file_mode); !status.ok()) return Refuse(status);
  struct stat found {};
  if (::fstat(fd.get(), &found) == 0) allocated = static_cast<std::uint64_t>(found.st_blocks) * kStatBlock;
  // A ring would fail writes that it cannot start at once.
  ::fcntl(fd.get(), F_SETFL, O_DIRECT);
  stage = Stage::kClaimed;
}

void Spare::LookIn(const std::string& where) {
  stage = Stage::kNone;
  folder = where;
  path = JoinPath(folder, name);
  folder_fd.Reset();
}

std::vector<std::string> Spare::paths() const {
  std::vector<std::string> all;
  for (const std::string& one : folders) all.push_back(JoinPath(one, name));
  return all;
}

namespace {

void AppendClaimIn(std::vector<IoStep>& steps, const std::string& where, Spare& spare, UniqueFd& fd) {
  using Stage = Spare::Stage;
  IoStep folder = OpenDirectoryStep(where, /*follow=*/false, spare.folder_fd);
  folder.make = [&spare, where, make = std::move(folder.make)]() -> std::optional<IoRequest> {
    if (spare.stage == Stage::kClaimed) return std::nullopt;
    spare.LookIn(where);
    return make();
  };
  folder.on_error = [&spare](int error, const Status& plain) {
    if (error != ENOENT) spare.Tell(plain);
    return Flow::kNext;
  };
  steps.push_back(std::move(folder));
  steps.push_back({.make = [&spare]() -> std::optional<IoRequest> {
                     if (spare.stage == Stage::kClaimed || !spare.folder_fd.valid()) return std::nullopt;
                     return IoRequest{.op = IoOp::kOpen, .path = spare.path, .flags = kOpenFlags};
                   },
                   .on_value =
                       [&spare, &fd](std::int64_t value) {
                         fd = UniqueFd(static_cast<int>(value));
                         spare.Claim(fd);
                         if (spare.stage != Stage::kClaimed) fd.Reset();
                         return Flow::kNext;
                       },
                   .on_error =
                       [&spare](int error, const Status& plain) {
                         if (error != ENOENT) spare.Refuse(plain);
                         return Flow::kNext;
                       }});
  steps.push_back({.make = [&spare]() -> std::optional<IoRequest> {
                     if (spare.stage != Stage::kRefused) return std::nullopt;
                     return IoRequest{.op = IoOp::kUnlink, .path = spare.path};
                   },
                   // What stays keeps another checkpoint's from being kept in its place, until it can be removed.
                   .on_error = [](int, const Status&) { return Flow::kNext; }});
}

}  // namespace

void AppendClaim(std::vector<IoStep>& steps, Spare& spare, UniqueFd& fd) {
  for (auto folder = spare.folders.rbegin(); folder != spare.folders.rend(); ++folder) {
    AppendClaimIn(steps, *folder, spare, fd);
  }
}

void AppendTakeOver(std::vector<IoStep>& steps, Spare& spare, UniqueFd& fd, const std::string& target) {
  using Stage = Spare::Stage;
  steps.push_back({.make = [&spare, target]() -> std::optional<IoRequest> {
                     if (spare.stage != Stage::kClaimed) return std::nullopt;
                     return IoRequest{
                         .op = IoOp::kRename, .path = spare.path, .path2 = target, .rename = RenameMode::kNoReplace};
                   },
                   .on_value =
                       [&spare](std::int64_t) {
                         spare.stage = Stage::kTaken;
                         return Flow::kNext;
                       },
                   .on_error = [&spare, &fd](int error, Status plain) -> Result<Flow> {
                     // Gone where another rank closes the root; what is there already, the new file's making tells.
                     if (error != ENOENT && error != EEXIST) return plain;
                     fd.Reset();
                     spare.stage = Stage::kNone;
                     return Flow::kNext;
                   }});
  // From here on no path leads to it but the attempt's. Who had followed the old one, or has linked it, came before.
  steps.push_back({.make = [&spare, &fd, target]() -> std::optional<IoRequest> {
    if (spare.stage != Stage::kTaken) return std::nullopt;
    Status status = CheckFile(fd, target, spare.file_mode);
    if (status.ok() && !HoldsLease(fd)) {
      status = Error(StatusCode::kFailedPrecondition, "{}: somebody is waiting to open it", target);
    }
    if (status.ok()) return std::nullopt;
    fd.Reset();
    spare.Refuse(status);
    return IoRequest{.op = IoOp::kUnlink, .path = target};
  }});
  IoStep zero = WriteStep(fd, target, 0, kZeros, kBlock);
  zero.make = [&spare, make = std::move(zero.make)]() -> std::optional<IoRequest> {
    if (spare.stage != Stage::kTaken) return std::nullopt;
    return make();
  };
  steps.push_back(std::move(zero));
  steps.push_back({.check = [&spare, &fd] {
    if (spare.stage == Stage::kTaken) GiveBackLease(fd);
    return Status::Ok();
  }});
}

void FreeSparesWhenFull(std::vector<IoStep>& steps, const std::vector<std::string>& paths) {
  // What is still to be unlinked, from the back; none again once that was done.
  const auto spares = std::make_shared<std::vector<std::string>>(paths);
  for (IoStep& step : steps) {
    if (!step.make) continue;
    struct Turn {
      IoStep step;
      IoOp op = IoOp::kFsync;
      bool freeing = false;
    };
    const auto turn = std::make_shared<Turn>(Turn{.step = step});
    step.make = [turn, spares]() -> std::optional<IoRequest> {
      if (turn->freeing) return IoRequest{.op = IoOp::kUnlink, .path = spares->back()};
      std::optional<IoRequest> request = turn->step.make();
      if (request) turn->op = request->op;
      return request;
    };
    const auto freed = [turn, spares] {
      spares->pop_back();
      turn->freeing = !spares->empty();
      return Flow::kAgain;
    };
    step.on_value = [turn, freed](std::int64_t value) -> Result<Flow> {
      if (turn->freeing) return freed();
      return turn->step.on_value ? turn->step.on_value(value) : Flow::kNext;
    };
    step.on_error = [turn, spares, freed](int error, Status plain) -> Result<Flow> {
      if (turn->freeing) return freed();
      // These alone ask for blocks and can be asked for again.
      const bool asks = turn->op == IoOp::kWrite || turn->op == IoOp::kFallocate;
      if (error == ENOSPC && asks && !spares->empty()) {
        turn->freeing = true;
        return Flow::kAgain;
      }
      if (!turn->step.on_error) return plain;
      return turn->step.on_error(error, std::move(plain));
    };
  }
}

}  // namespace cairn
