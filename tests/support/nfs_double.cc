#include "support/nfs_double.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "testing/forwarding_queue.h"

namespace cairn {
namespace {

constexpr const char* kSillyPrefix = ".nfs";

std::string FileName(const PathAt& path) { return std::filesystem::path(path.text()).filename(); }

}  // namespace

/// Asks the double before each operation.
class NfsQueue final : public ForwardingQueue {
 public:
  NfsQueue(std::shared_ptr<NfsDouble> nfs, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), nfs_(std::move(nfs)) {}

  void Submit(IoRequest request, IoDone done) override {
    switch (nfs_->Judge(request)) {
      case NfsDouble::Answer::kRun:
        return inner_->Submit(std::move(request), std::move(done));
      case NfsDouble::Answer::kDone:
        return answers_.push_back({0, std::move(done)});
      case NfsDouble::Answer::kBusy:
        return answers_.push_back({-EBUSY, std::move(done)});
      case NfsDouble::Answer::kInvalid:
        return answers_.push_back({-EINVAL, std::move(done)});
      case NfsDouble::Answer::kMissing:
        return answers_.push_back({-ENOENT, std::move(done)});
    }
  }
  Result<std::size_t> RunOnce(Deadline deadline) override {
    std::vector<Answered> answers = std::exchange(answers_, {});
    const auto ran = inner_->RunOnce(answers.empty() ? deadline : Deadline::In({}));
    for (const Answered& answer : answers) answer.done(answer.result);
    if (!ran.ok()) return ran;
    return *ran + answers.size();
  }
  [[nodiscard]] std::size_t pending() const override { return inner_->pending() + answers_.size(); }

 private:
  struct Answered {
    std::int64_t result;
    IoDone done;
  };
  const std::shared_ptr<NfsDouble> nfs_;
  std::vector<Answered> answers_;  // For the next RunOnce.
};

IoQueueFactory NfsDouble::Wrap(IoQueueFactory inner) {
  return WrapQueues<NfsQueue>(shared_from_this(), std::move(inner));
}

bool NfsDouble::File::Open() const {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat found {};
    // A descriptor that only names it (O_PATH) would not keep it, but nothing here opens a file so.
    if (::fstat(std::stoi(entry.path().filename()), &found) != 0) continue;
    if (found.st_dev == device && found.st_ino == inode) return true;
  }
  return false;
}

void NfsDouble::Settle() {
  MutexLock lock(mutex_);
  std::erase_if(hidden_, [](const Silly& silly) {
    if (silly.file.Open()) return false;
    if (::unlinkat(silly.folder.get(), silly.name.c_str(), 0) != 0) {
      throw std::logic_error(silly.name + " was removed by somebody else");
    }
    return true;
  });
}

std::size_t NfsDouble::refused() const {
  MutexLock lock(mutex_);
  return refused_;
}

void NfsDouble::HideLate(std::string part) {
  MutexLock lock(mutex_);
  late_ = std::move(part);
  looks_ = 0;
}

void NfsDouble::Show() { HideLate({}); }

std::size_t NfsDouble::WaitLooks(std::size_t looks, Deadline deadline) const {
  MutexLock lock(mutex_);
  while (looks_ < looks && !deadline.passed()) looked_.WaitUntil(mutex_, deadline);
  return looks_;
}

bool NfsDouble::SeenLate(const IoRequest& request) {
  MutexLock lock(mutex_);
  if (late_.empty() || (request.flags & O_CREAT) != 0 || request.path.text().find(late_) == std::string::npos) {
    return false;
  }
  ++looks_;
  looked_.NotifyAll();
  return true;
}

NfsDouble::Answer NfsDouble::Judge(const IoRequest& request) {
  Settle();
  switch (request.op) {
    case IoOp::kOpen:
      return SeenLate(request) ? Answer::kMissing : Answer::kRun;
    case IoOp::kUnlink:
      if (FileName(request.path).starts_with(kSillyPrefix)) return Answer::kBusy;  // Settled, and still there.
      return Hide(request.path) ? Answer::kDone : Answer::kRun;
    case IoOp::kRename:
      if (request.rename == RenameMode::kPlain) {
        Hide(request.path2);
        return Answer::kRun;
      } else {
        MutexLock lock(mutex_);
        ++refused_;
        return Answer::kInvalid;
      }
    default:
      return Answer::kRun;
  }
}

bool NfsDouble::Hide(const PathAt& path) {
  struct stat found {};
  if (::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(found.st_mode)) {
    return false;
  }
  // A file with other names keeps its bytes: the server unlinks only this one.
  const File file{.device = found.st_dev, .inode = found.st_ino};
  if (found.st_nlink != 1 || !file.Open()) return false;
  const std::string folder = std::filesystem::path(path.c_str()).parent_path();
  UniqueFd fd(::openat(path.directory(), folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  MutexLock lock(mutex_);
  std::string name = fmt::format("{}{:016x}{:08x}", kSillyPrefix, file.inode, ++silly_);
  if (::renameat(path.directory(), path.c_str(), fd.get(), name.c_str()) != 0) {
    throw std::logic_error("cannot hide " + path.text());
  }
  hidden_.push_back({file, std::move(fd), std::move(name)});
  return true;
}

}  // namespace cairn
