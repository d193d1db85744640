#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "bench/emulation/disk_pace.h"
#include "bench/strategies/slot_file.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

constexpr int kSlots = 2;  // GPM's double buffer.
constexpr std::uint64_t kPage = 4096;
constexpr int kPieces = 16;  // Copy and write-back of a scaled state overlap, too.
constexpr std::uint64_t kLeastPiece = 4U << 20;
constexpr std::uint64_t kLargestPiece = 64U << 20;

/// GPM on a disk, as PCcheck's authors ported it: the GPU copies straight into a mapped file, then msync, and the
/// training waits for both. Here copy and write-back overlap: the kernel is asked to write what is copied while the
/// rest is being copied. It needs no host memory.
class Gpm : public Strategy {
 public:
  Gpm(const Workplace& workplace, std::unique_ptr<SlotFile> file) : at_(workplace), file_(std::move(file)) {}

  Status Save(std::uint64_t step) override {
    CAIRN_ASSIGN_OR_RETURN(const int slot, file_->Take());
    DiskPace pace(at_.disk);
    const std::uint64_t part = AlignUp(at_.state.bytes() / kPieces + 1, kPage);
    const std::uint64_t piece = std::clamp(part, kLeastPiece, kLargestPiece);
    for (std::uint64_t at = 0; at < at_.state.bytes(); at += piece) {
      const std::uint64_t n = std::min(piece, at_.state.bytes() - at);
      CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToHost(at_.state, at, file_->slot(slot).subspan(at, n), Gpu::HostMemory::kAny));
      pace.Begin(n);
      file_->StartWriting(slot, at, n);
    }
    pace.End();
    CAIRN_RETURN_IF_ERROR(file_->Persist(slot));
    return Commit(*file_, at_, slot, step);
  }
  Status BeforeUpdate() override { return {}; }
  Status Drain() override { return {}; }
  Result<std::uint64_t> Restore() override { return RestoreNewest(*file_, at_); }

 private:
  const Workplace at_;
  const std::unique_ptr<SlotFile> file_;
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  CAIRN_ASSIGN_OR_RETURN(auto file, SlotFile::Open(workplace.directory + "/slots", kSlots, workplace.state.bytes()));
  return std::unique_ptr<Strategy>(std::make_unique<Gpm>(workplace, std::move(file)));
}

}  // namespace

StrategyKind GpmKind() {
  return {.name = "gpm",
          .tuning =
              "the GPU copies into a mapped, laid-out file of two slots, written back in 16 pieces (of 4 to 64 "
              "MiB), each while the next is copied, then one msync; the training waits",
          .checkpoints_on_disk = [](int) { return kSlots; },
          .host_bytes = [](std::uint64_t, std::uint64_t, int) { return std::uint64_t{0}; },
          .open = Open};
}

}  // namespace cairn::bench
