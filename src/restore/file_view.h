#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// A file on tmpfs, mapped for reading: read(2) would copy it once more, at half of the rate.
///
/// Its descriptor stays open, so that no save recycles the file meanwhile. What would end the process by a signal (a
/// page that the machine has lost, a file that somebody shortened before) is an error of Require.
class FileView {
 public:
  /// Null if the kernel (before 5.14) or the limits of this process permit none.
  [[nodiscard]] static std::shared_ptr<const FileView> Of(const UniqueFd& file, std::uint64_t bytes);
  ~FileView();
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;

  [[nodiscard]] const std::byte* data() const { return data_; }
  /// Before bytes [begin, end) are read: an errno, 0 if all are there. Blocking.
  [[nodiscard]] int Require(std::uint64_t begin, std::uint64_t end) const;

 private:
  FileView(UniqueFd fd, std::byte* data, std::uint64_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  const UniqueFd fd_;
  std::byte* const data_;
  const std::uint64_t bytes_;
};

}  // namespace cairn
