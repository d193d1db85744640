#include "support/full_disk.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "testing/forwarding_queue.h"

namespace cairn {

/// Asks the double before each operation.
class FullDiskQueue final : public ForwardingQueue {
 public:
  FullDiskQueue(std::shared_ptr<FullDisk> disk, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), disk_(std::move(disk)) {}

  void Submit(IoRequest request, IoDone done) override {
    const FullDisk::Need need = disk_->NeedOf(request);
    const int error = disk_->Take(need);
    if (error != 0) return refused_.push_back({-error, std::move(done)});
    inner_->Submit(std::move(request), [disk = disk_, need, done = std::move(done)](std::int64_t result) {
      if (result >= 0) disk->GiveBack(need);
      done(result);
    });
  }
  Result<std::size_t> RunOnce(Deadline deadline) override {
    std::vector<Refused> refused = std::exchange(refused_, {});
    const auto ran = inner_->RunOnce(refused.empty() ? deadline : Deadline::In({}));
    for (const Refused& one : refused) one.done(one.result);
    if (!ran.ok()) return ran;
    return *ran + refused.size();
  }
  [[nodiscard]] std::size_t pending() const override { return inner_->pending() + refused_.size(); }

 private:
  struct Refused {
    std::int64_t result;
    IoDone done;
  };
  const std::shared_ptr<FullDisk> disk_;
  std::vector<Refused> refused_;  // For the next RunOnce.
};

IoQueueFactory FullDisk::Wrap(IoQueueFactory inner) {
  return WrapQueues<FullDiskQueue>(shared_from_this(), std::move(inner));
}

void FullDisk::Limit(const Limits& limits) {
  MutexLock lock(mutex_);
  free_ = limits;
}

FullDisk::Need FullDisk::NeedOf(const IoRequest& request) const {
  struct stat found {};
  const auto stat_of = [&found](const PathAt& path) {
    return ::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0;
  };
  const auto freed = [&found] { return Need{.files = -1, .blocks = found.st_blocks > 0 ? -1 : 0}; };
  switch (request.op) {
    case IoOp::kOpen:
      return {.files = (request.flags & O_CREAT) != 0 && !stat_of(request.path) ? 1 : 0};
    case IoOp::kMkdir:
      return {.files = stat_of(request.path) ? 0 : 1};
    case IoOp::kUnlink:
      return stat_of(request.path) && found.st_nlink == 1 ? freed() : Need{};
    case IoOp::kRmdir:
      return {.files = -1};
    case IoOp::kRename:
      return stat_of(request.path2) && S_ISREG(found.st_mode) ? freed() : Need{};
    case IoOp::kWrite:
    case IoOp::kFallocate: {
      MutexLock lock(mutex_);
      if (::fstat(request.fd, &found) != 0) return {};
      const bool grows = request.offset + request.length > AlignUp(static_cast<std::uint64_t>(found.st_size), kBlock);
      return {.blocks = grows || free_.copies_on_write ? 1 : 0};
    }
    default:
      return {};
  }
}

int FullDisk::Take(const Need& need) {
  MutexLock lock(mutex_);
  if (need.files > free_.files || need.blocks > free_.blocks) return free_.error;
  free_.files -= std::max<std::int64_t>(need.files, 0);
  free_.blocks -= std::max<std::int64_t>(need.blocks, 0);
  return 0;
}

void FullDisk::GiveBack(const Need& need) {
  MutexLock lock(mutex_);
  free_.files -= std::min<std::int64_t>(need.files, 0);
  free_.blocks -= std::min<std::int64_t>(need.blocks, 0);
}

}  // namespace cairn
