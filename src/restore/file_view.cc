#include "restore/file_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/bytes.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace cairn {

std::shared_ptr<const FileView> FileView::Of(const UniqueFd& file, std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  UniqueFd fd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return nullptr;
  void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return nullptr;
  std::shared_ptr<const FileView> view(new FileView(std::move(fd), static_cast<std::byte*>(at), bytes));
  return view->Require(0, 0) == EINVAL ? nullptr : view;
}

FileView::~FileView() { ::munmap(data_, bytes_); }

int FileView::Require(std::uint64_t begin, std::uint64_t end) const {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t from = AlignDown(begin, page);
  while (::madvise(data_ + from, end - from, MADV_POPULATE_READ) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

}  // namespace cairn
