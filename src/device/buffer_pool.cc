#include "device/buffer_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <latch>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "device/numa.h"

namespace cairn {
namespace {

constexpr std::uint64_t kHugepage = 2U << 20;

std::byte* At(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): the kernel gave it as a number.
}

// Reserves `bytes` of addresses, aligned to a huge page, and a page on either side. None of it is accessible. Returns
// the mapping with those pages.
Result<MutableBytes> MapBetweenGuards(std::uint64_t bytes) {
  const std::uint64_t reserved = bytes + kHugepage + 2 * kBlock;
  void* const at = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mapping a pool of {} bytes", bytes));
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t chunks = AlignUp(begin + kBlock, kHugepage);
  const MutableBytes mapping(At(chunks - kBlock), bytes + 2 * kBlock);
  const std::uintptr_t end = chunks + bytes + kBlock;
  if (chunks - kBlock > begin) ::munmap(at, chunks - kBlock - begin);
  if (begin + reserved > end) ::munmap(At(end), begin + reserved - end);
  return mapping;
}

// Parses the hexadecimal number, without "0x", that `text` starts with, and removes it from `text`.
bool TakeHex(std::string_view& text, std::uintptr_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

}  // namespace

BufferPool::Chunk::Chunk(Chunk&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}

BufferPool::Chunk& BufferPool::Chunk::operator=(Chunk&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
  }
  return *this;
}

void BufferPool::Chunk::Reset() {
  if (data_ != nullptr) std::exchange(pool_, nullptr)->Return(std::exchange(data_, nullptr));
}

Result<std::unique_ptr<BufferPool>> BufferPool::MakeGrowing(std::uint64_t bytes, std::uint64_t cap_bytes,
                                                            std::uint64_t chunk_bytes, int min_chunks) {
  if (chunk_bytes == 0 || chunk_bytes % kBlock != 0) {
    return Error(StatusCode::kInvalidArgument, "chunk size: expected a multiple of {} bytes, found {}", kBlock,
                 chunk_bytes);
  }
  const std::uint64_t count = cap_bytes / chunk_bytes;
  const auto least = static_cast<std::uint64_t>(std::max(1, min_chunks));
  if (count < least) {
    return Error(StatusCode::kInvalidArgument,
                 "host memory: expected at least {} bytes ({} chunks of {} bytes), found {}", least * chunk_bytes,
                 least, chunk_bytes, cap_bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(const MutableBytes mapping, MapBetweenGuards(count * chunk_bytes));
  std::unique_ptr<BufferPool> pool(new BufferPool(mapping, chunk_bytes));
  // A kernel without huge pages refuses the first call. The pool works without; HugepageBytes shows it.
  ::madvise(pool->chunks_, pool->cap_bytes_, MADV_HUGEPAGE);
  if (::madvise(mapping.data(), mapping.size(), MADV_DONTFORK) != 0) {
    return ErrnoStatus(errno, "excluding the pool from forked children (MADV_DONTFORK)");
  }
  MutexLock lock(pool->size_mutex_);
  const std::uint64_t first = std::clamp(bytes, least * chunk_bytes, pool->cap_bytes_);
  while (pool->committed_ < first) CAIRN_RETURN_IF_ERROR(pool->Commit(first));
  pool->Lend();
  return pool;
}

BufferPool::BufferPool(MutableBytes mapping, std::uint64_t chunk_bytes)
    : mapping_(mapping),
      chunks_(mapping.data() + kBlock),
      chunk_bytes_(chunk_bytes),
      cap_bytes_(mapping.size() - 2 * kBlock),
      owner_(::getpid()) {
  free_.reserve(cap_bytes_ / chunk_bytes);
}

BufferPool::~BufferPool() {
  // A forked child lacks this mapping and may have mapped something else there.
  if (::getpid() != owner_) return;
  {
    MutexLock lock(size_mutex_);
    for (Device* device : pinned_with_) {
      for (const MutableBytes part : parts_) device->UnpinMemory(part);
    }
  }
  ::munmap(mapping_.data(), mapping_.size());
}

// Makes the next part of the chunks up to `bytes` (rounded up) accessible.
Status BufferPool::Commit(std::uint64_t bytes) {
  const std::uint64_t from = committed_;
  const std::uint64_t part = std::max<std::uint64_t>(kPart / chunk_bytes_, 1) * chunk_bytes_;
  const std::uint64_t to = std::min({cap_bytes_, DivideUp(bytes, chunk_bytes_) * chunk_bytes_, from + part});
  if (::mprotect(chunks_ + from, to - from, PROT_READ | PROT_WRITE) != 0) {
    return ErrnoStatus(errno, fmt::format("committing a pool of {} bytes", to));
  }
  committed_ = to;
  parts_.emplace_back(chunks_ + from, to - from);
  return Status::Ok();
}

// Lends what is committed.
void BufferPool::Lend() {
  std::function<void()> on_free;
  {
    MutexLock lock(mutex_);
    const std::uint64_t count = committed_ / chunk_bytes_;
    // The first chunk is taken first.
    for (std::uint64_t i = count; i-- > chunk_count_;) free_.push_back(chunks_ + i * chunk_bytes_);
    chunk_count_ = count;
    // All that wait: there may be a chunk for each.
    restore_may_take_.NotifyAll();
    save_may_take_.NotifyAll();
    if (std::exchange(acquire_failed_, false)) on_free = on_free_;
  }
  if (on_free) on_free();
}

Status BufferPool::GrowTo(std::uint64_t bytes, WorkerPool& workers) {
  while (!stopped_) {
    MutexLock lock(size_mutex_);
    if (std::min(bytes, cap_bytes_) <= total_bytes()) break;
    CAIRN_RETURN_IF_ERROR(AddPart(bytes, workers));
  }
  return Status::Ok();
}

Status BufferPool::AddPart(std::uint64_t bytes, WorkerPool& workers) {
  CAIRN_RETURN_IF_ERROR(Commit(bytes));
  if (!pinned_with_.empty()) {
    Touch(workers);
    if (Status status = PinNew(parts_.back()); !status.ok()) {
      committed_ = total_bytes();
      touched_ = total_bytes();
      ::madvise(parts_.back().data(), parts_.back().size(), MADV_DONTNEED);
      parts_.pop_back();
      return status;
    }
  }
  Lend();
  return Status::Ok();
}

bool BufferPool::pinned() const {
  MutexLock lock(size_mutex_);
  return !pinned_with_.empty();
}

void BufferPool::Touch() {
  while (TouchNext()) {
  }
}

void BufferPool::Touch(WorkerPool& workers) {
  if (touched_.load(std::memory_order_relaxed) >= committed_) return;
  std::latch done(workers.threads());
  // Without memory for its next job a helper stops; the others and the caller touch the rest.
  const auto post = [&workers, &done](auto job) {
    try {
      workers.Post(std::move(job));
    } catch (const std::bad_alloc&) {
      done.count_down();
    }
  };
  // One piece a job, so that the workers also serve saves in flight.
  const auto help = [this, post, &done](const auto& self) -> void {
    if (TouchNext()) {
      post([self] { self(self); });
    } else {
      done.count_down();
    }
  };
  for (int i = 0; i < workers.threads(); ++i) post([help] { help(help); });
  Touch();
  done.wait();
}

bool BufferPool::TouchNext() {
  // In pieces, because the kernel holds the address space's lock meanwhile. Populating keeps the contents.
  constexpr std::uint64_t kPiece = 2 * kHugepage;
  std::uint64_t at = touched_.load(std::memory_order_relaxed);
  std::uint64_t n = 0;
  do {
    const std::uint64_t end = committed_;
    if (at >= end) return false;
    n = std::min(end - at, kPiece);
  } while (!touched_.compare_exchange_weak(at, at + n, std::memory_order_relaxed));
  int failed = 0;
  do {
    failed = ::madvise(chunks_ + at, n, MADV_POPULATE_WRITE);
  } while (failed != 0 && (errno == EINTR || errno == EAGAIN));
  if (failed != 0 && errno == EINVAL) {
    // The kernel (or an emulation of it) is too old. An atomic or with 0 does not disturb concurrent writers.
    for (std::uint64_t page = at; page < at + n; page += kBlock) {
      __atomic_fetch_or(reinterpret_cast<unsigned char*>(chunks_ + page), 0, __ATOMIC_RELAXED);
    }
  }
  return at + n < committed_;
}

void BufferPool::PlaceNear(const Device& device, WorkerPool& workers) {
  MutexLock lock(size_mutex_);
  if (placed_) return;
  const std::optional<NumaNode> node = device.numa_node();
  if (!node || !PreferNode({chunks_, cap_bytes_}, node->number)) return;
  placed_ = true;
  workers.KeepTo(node->cpus);
}

Status BufferPool::PinWith(Device& device) {
  MutexLock lock(size_mutex_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Status status = device.PinMemory(parts_[i]);
    if (status.ok()) continue;
    while (i-- > 0) device.UnpinMemory(parts_[i]);
    return status;
  }
  pinned_with_.push_back(&device);
  return Status::Ok();
}

Status BufferPool::PinNew(MutableBytes memory) {
  for (std::size_t i = 0; i < pinned_with_.size(); ++i) {
    Status status = pinned_with_[i]->PinMemory(memory);
    if (status.ok()) continue;
    while (i-- > 0) pinned_with_[i]->UnpinMemory(memory);
    return status;
  }
  return Status::Ok();
}

bool BufferPool::CanTake(Priority priority) const {
  return !free_.empty() && (priority == Priority::kRestore || restores_waiting_ == 0);
}

BufferPool::Chunk BufferPool::Take() {
  std::byte* const data = free_.back();
  free_.pop_back();
  peak_chunks_ = std::max(peak_chunks_, chunk_count_ - free_.size());
  return {this, data};
}

std::function<void()> BufferPool::NotifyWaiter() {
  if (free_.empty()) return {};
  if (restores_waiting_ > 0) {
    restore_may_take_.NotifyOne();
    return {};
  }
  save_may_take_.NotifyOne();
  return std::exchange(acquire_failed_, false) ? on_free_ : std::function<void()>();
}

BufferPool::Chunk BufferPool::TryAcquire(Priority priority) {
  MutexLock lock(mutex_);
  if (CanTake(priority)) return Take();
  acquire_failed_ = true;
  return {};
}

Result<BufferPool::Chunk> BufferPool::Acquire(Priority priority, Deadline deadline) {
  std::function<void()> on_free;
  Chunk chunk;
  {
    MutexLock lock(mutex_);
    const bool restore = priority == Priority::kRestore;
    restores_waiting_ += restore ? 1 : 0;
    CondVar& may_take = restore ? restore_may_take_ : save_may_take_;
    while (!CanTake(priority) && may_take.WaitUntil(mutex_, deadline)) {
    }
    restores_waiting_ -= restore ? 1 : 0;
    if (CanTake(priority)) chunk = Take();
    // Notify again: this waiter may have held others back, or consumed a wake-up meant for another.
    on_free = NotifyWaiter();
  }
  if (on_free) on_free();
  if (!chunk) {
    return Error(StatusCode::kDeadlineExceeded,
                 "none of the pool's {} chunks of {} bytes became free before the deadline", chunk_count(),
                 chunk_bytes_);
  }
  return chunk;
}

void BufferPool::SetOnFree(std::function<void()> on_free) {
  MutexLock lock(mutex_);
  on_free_ = std::move(on_free);
}

void BufferPool::Return(std::byte* data) {
  std::function<void()> on_free;
  {
    MutexLock lock(mutex_);
    free_.push_back(data);
    on_free = NotifyWaiter();
  }
  if (on_free) on_free();
}

std::uint64_t BufferPool::used_bytes() const {
  MutexLock lock(mutex_);
  return (chunk_count_ - free_.size()) * chunk_bytes_;
}

std::uint64_t BufferPool::peak_bytes() const {
  MutexLock lock(mutex_);
  return peak_chunks_ * chunk_bytes_;
}

int BufferPool::restores_waiting() const {
  MutexLock lock(mutex_);
  return restores_waiting_;
}

std::uint64_t BufferPool::HugepageBytes() const {
  constexpr std::string_view kField = "AnonHugePages:";
  const auto begin = reinterpret_cast<std::uintptr_t>(chunks_);
  std::ifstream smaps("/proc/self/smaps");
  std::uint64_t kilobytes = 0;
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    std::string_view text = line;
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    // A mapping's first line: "7f1c00000000-7f1c40000000 rw-p ...". The guards prevent merging with neighbours.
    if (TakeHex(text, from) && text.starts_with('-') && (text.remove_prefix(1), TakeHex(text, to))) {
      ours = from >= begin && to <= begin + total_bytes();
    } else if (ours && line.starts_with(kField)) {
      std::string_view number = std::string_view(line).substr(kField.size());
      number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
      std::uint64_t value = 0;
      std::from_chars(number.data(), number.data() + number.size(), value);
      kilobytes += value;
    }
  }
  return kilobytes << 10;
}

}  // namespace cairn
