#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): rename
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "bench/emulation/disk_pace.h"
#include "bench/emulation/host_memory.h"
#include "bench/strategies/plain_file.h"
#include "bench/strategies/strategy.h"
#include "bench/strategies/torch_archive.h"

namespace cairn::bench {
namespace {

/// torch.save and an fsync, by libtorch: the training waits until a new file is on the disk, under the checkpoint's
/// name.
class TorchSave : public Strategy {
 public:
  TorchSave(const Workplace& workplace, std::unique_ptr<BufferPool> pool)
      : at_(workplace),
        pool_(std::move(pool)),
        host_(pool_->TryAcquire(BufferPool::Priority::kSave)),
        path_(workplace.directory + "/checkpoint.pt") {
    for (const DeviceState::Tensor& tensor : at_.state.tensors()) {
      tensors_.push_back(host().subspan(tensor.begin, tensor.layout.bytes));
    }
  }

  Status Save(std::uint64_t step) override {
    const std::string fresh = path_ + ".new";
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToHost(at_.state, 0, host()));
    CAIRN_RETURN_IF_ERROR(WriteTorchArchive(fresh, step, tensors_));
    DiskPace pace(at_.disk);
    pace.Begin(host().size());  // Nobody has asked the kernel to write any of it before.
    const UniqueFd file(::open(fresh.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return ErrnoStatus(errno, "opening " + fresh);
    if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "fsync of " + fresh);
    pace.End();
    if (::rename(fresh.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, "renaming " + fresh);
    CAIRN_RETURN_IF_ERROR(SyncDirectory(at_.directory));
    at_.durable(step);
    return {};
  }
  Status BeforeUpdate() override { return {}; }
  Status Drain() override { return {}; }
  Result<std::uint64_t> Restore() override {
    if (::access(path_.c_str(), F_OK) != 0) return ErrnoStatus(errno, "looking for " + path_);
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, ReadTorchArchive(path_, tensors_));
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToDevice(host(), at_.state));
    return step;
  }

 private:
  [[nodiscard]] MutableBytes host() const { return {host_.data(), at_.state.bytes()}; }

  const Workplace at_;
  const std::unique_ptr<BufferPool> pool_;
  const BufferPool::Chunk host_;
  const std::string path_;
  std::vector<MutableBytes> tensors_;  // In host_; constant after construction.
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  if (workplace.group != nullptr) {
    return Error(StatusCode::kInvalidArgument, "torch-save: expected one node, found {}", workplace.group->size());
  }
  const std::uint64_t bytes = AlignUp(workplace.state.bytes(), kBlock);
  CAIRN_ASSIGN_OR_RETURN(auto pool, MakePinnedMemory(workplace.gpu, bytes, bytes));
  return std::unique_ptr<Strategy>(std::make_unique<TorchSave>(workplace, std::move(pool)));
}

}  // namespace

StrategyKind TorchSaveKind() {
  return {.name = "torch-save",
          .tuning =
              "copy to pinned memory, then libtorch's torch::save into a new file, fsync, rename, fsync of the "
              "directory; the training waits",
          .needs_torch = true,
          .checkpoints_on_disk = [](int) { return 2; },
          .host_bytes = [](std::uint64_t state_bytes, std::uint64_t, int) { return state_bytes; },
          .open = Open};
}

}  // namespace cairn::bench
