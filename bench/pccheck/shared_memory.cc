#include "bench/pccheck/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/status_macros.h"

namespace cairn::bench {

Result<std::unique_ptr<SharedMemory>> SharedMemory::Make(const WriterSettings& settings) {
  UniqueFd file(::memfd_create("pccheck", MFD_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "making shared memory");
  const std::uint64_t bytes = kBlock + settings.chunks * settings.chunk_bytes;
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, "sizing shared memory");
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> made, Map(std::move(file)));
  new (made->memory_.data()) WriterSettings(settings);
  return made;
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::Map(UniqueFd file) {
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return ErrnoStatus(errno, "asking for the size of shared memory");
  const auto bytes = static_cast<std::size_t>(found.st_size);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mapping shared memory");
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(file), MutableBytes(static_cast<std::byte*>(at), bytes)));
}

SharedMemory::~SharedMemory() { ::munmap(memory_.data(), memory_.size()); }

const WriterSettings& SharedMemory::settings() const {
  return *std::launder(reinterpret_cast<const WriterSettings*>(memory_.data()));
}

}  // namespace cairn::bench
