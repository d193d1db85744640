#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"
#include "store/locks.h"

namespace cairn {

/// One file of one rank while an attempt writes it: its part of steps 1 to 3 of the commit protocol (see attempt.cc).
///
/// For the queue's thread. Outlives its tasks.
class AttemptFile {
 public:
  struct Spec {
    PathAt path;
    /// Its final length, header included.
    std::uint64_t bytes = 0;
    unsigned mode = 0644;
    /// Another rank looks for its name, which may be seen late.
    bool seen_late = false;
    /// Files to unlink if the disk is full.
    Room* room = nullptr;
    /// Once it is not ok, a short write is not resumed.
    const Status* stop = nullptr;
  };
  explicit AttemptFile(Spec spec) : spec_(std::move(spec)), laid_out_(AlignUp(spec_.bytes, kBlock)) {}

  [[nodiscard]] const PathAt& path() const { return spec_.path; }
  /// A spare that takes its place is opened into it.
  [[nodiscard]] UniqueFd& fd() { return fd_; }
  /// The length of its blocks.
  [[nodiscard]] std::uint64_t laid_out() const { return laid_out_; }
  [[nodiscard]] bool direct() const { return direct_ != Direct::kRefused; }
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_; }
  /// While it is open. A child that lives long would keep its blocks, and nobody could write over them.
  void HideFromChildren() { hidden_.emplace(fd_); }
  [[nodiscard]] Status CheckSize() const;
  [[nodiscard]] Status CheckRange(std::uint64_t offset, Bytes memory) const;

  /// Creates it, with O_DIRECT if the filesystem supports it.
  IoTask<Status> Make();
  /// Its blocks.
  IoTask<IoResult> Allocate();
  /// Instead of that: it is open, has all its blocks, and is so long.
  void HasLength(std::uint64_t bytes) { length_ = bytes; }
  /// Writes memory at an offset: 4096-aligned, as are address and length.
  IoTask<Status> Write(std::uint64_t offset, Bytes memory);
  /// The same, uncounted, and not yet on its way to the disk where writes are buffered.
  IoTask<Status> WriteAt(std::uint64_t offset, Bytes memory);
  /// Truncates the padded tail, if there is one.
  IoTask<Status> WriteHeader(Bytes header);
  /// Of a file of this length, which is open there: all of it.
  IoTask<Status> CopyFrom(const UniqueFd& source);
  /// So many bytes from an offset of the file that is open there to one of this, which is 4096-aligned. Corrupt if
  /// there are `sums`, one for each kChecksumBlock, and one is another.
  IoTask<Status> Copy(const UniqueFd& source, std::uint64_t from, std::uint64_t to, std::uint64_t bytes,
                      std::span<const std::uint32_t> sums);
  /// Fsyncs and closes it. Corrupt if the name no longer leads to this very file at its full length.
  IoTask<Status> Fsync();
  IoTask<Status> Close();
  /// Closes it, and unlinks it if it may exist. Best effort: the first error.
  IoTask<Status> Remove();

  /// The name may exist: an operation that failed may still have taken effect.
  void MayExist() { made_ = true; }

 private:
  enum class Direct : std::uint8_t { kUntried, kTaken, kRefused };
  [[nodiscard]] Status CheckShard() const;

  const Spec spec_;
  const std::uint64_t laid_out_;
  Direct direct_ = Direct::kUntried;
  bool made_ = false;
  std::uint64_t bytes_written_ = 0;
  // See HasLength.
  std::optional<std::uint64_t> length_;
  UniqueFd fd_;
  std::optional<HiddenFromChildren> hidden_;
};

}  // namespace cairn
