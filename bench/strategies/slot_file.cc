#include "bench/strategies/slot_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "bench/strategies/nodes.h"
#include "bench/strategies/plain_file.h"

namespace cairn::bench {

// A sector: most disks write it whole or not at all; on others the checksum detects a torn one.
struct SlotFile::RootRecord {
  std::uint64_t number = 0;
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint32_t sum = 0;  // Of what comes before.

  [[nodiscard]] std::uint32_t Sum() const {
    return Crc32c(std::as_bytes(std::span(this, 1)).first(sizeof(RootRecord) - sizeof(sum)));
  }
};

namespace {

constexpr std::uint64_t kRootBytes = 2 * kBlock;
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kRetry{10};

}  // namespace

Result<std::unique_ptr<SlotFile>> SlotFile::Open(const std::string& path, int slots, std::uint64_t bytes) {
  const std::uint64_t size = kRootBytes + static_cast<std::uint64_t>(slots) * AlignUp(bytes, kBlock);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid() && errno != ENOENT) return ErrnoStatus(errno, "opening " + path);
  if (!file.valid()) {
    CAIRN_ASSIGN_OR_RETURN(file, LayOut(path, size));
    CAIRN_RETURN_IF_ERROR(SyncDirectory(path.substr(0, path.rfind('/'))));
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "locking " + path);
    return Error(StatusCode::kFailedPrecondition, "{}: another process has it open", path);
  }
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return ErrnoStatus(errno, "asking for the size of " + path);
  if (static_cast<std::uint64_t>(found.st_size) != size) {
    return Error(StatusCode::kCorrupt, "{}: expected {} slots in {} bytes, found {} bytes", path, slots, size,
                 found.st_size);
  }
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mapping " + path);
  const MutableBytes mapping(static_cast<std::byte*>(at), size);
  std::unique_ptr<SlotFile> opened(new SlotFile(path, std::move(file), mapping, slots, bytes));
  MutexLock lock(opened->mutex_);
  opened->FindNewest();
  return opened;
}

Result<std::unique_ptr<SlotFile>> SlotFile::OpenOnceFree(const std::string& path, int slots, std::uint64_t bytes) {
  const auto latest = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    Result<std::unique_ptr<SlotFile>> file = Open(path, slots, bytes);
    const bool in_use = file.status().code() == StatusCode::kFailedPrecondition;
    if (!in_use || std::chrono::steady_clock::now() > latest) return file;
    std::this_thread::sleep_for(kRetry);
  }
}

SlotFile::SlotFile(std::string path, UniqueFd file, MutableBytes mapping, int slots, std::uint64_t bytes)
    : path_(std::move(path)), file_(std::move(file)), mapping_(mapping), slots_(slots), bytes_(bytes) {}

SlotFile::~SlotFile() { ::munmap(mapping_.data(), mapping_.size()); }

std::optional<SlotFile::RootRecord> SlotFile::Read(std::uint64_t block) const {
  RootRecord record;
  std::memcpy(&record, mapping_.data() + block * kBlock, sizeof(record));
  const bool whole = record.sum == record.Sum() && record.slots == static_cast<std::uint32_t>(slots_) &&
                     record.slot < record.slots && record.bytes == bytes_;
  return whole ? std::optional(record) : std::nullopt;
}

Status SlotFile::Write(std::uint64_t number, const Newest& newest) {
  RootRecord record{.number = number,
                    .step = newest.step,
                    .bytes = bytes_,
                    .slots = static_cast<std::uint32_t>(slots_),
                    .slot = static_cast<std::uint32_t>(newest.slot)};
  record.sum = record.Sum();
  const std::uint64_t block = number % 2 * kBlock;
  std::memcpy(mapping_.data() + block, &record, sizeof(record));
  CAIRN_RETURN_IF_ERROR(Sync(mapping_.subspan(block, kBlock)));
  number_ = number;
  newest_ = newest;
  return {};
}

void SlotFile::FindNewest() {
  for (std::uint64_t block = 0; block < 2; ++block) {
    const std::optional<RootRecord> record = Read(block);
    if (!record.has_value() || record->number <= number_) continue;
    number_ = record->number;
    newest_ = Newest{.slot = static_cast<int>(record->slot), .step = record->step};
  }
  if (newest_.has_value()) taken_ = std::uint64_t{1} << newest_->slot;
}

Result<int> SlotFile::Take() {
  int taken = 0;
  {
    MutexLock lock(mutex_);
    while (std::countr_one(taken_) >= slots_) freed_.Wait(mutex_);
    taken = std::countr_one(taken_);
    taken_ |= std::uint64_t{1} << taken;
  }
  const MutableBytes memory = slot(taken);
  if (::mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(),
             memory.data() - mapping_.data()) == MAP_FAILED) {
    return ErrnoStatus(errno, "mapping a slot of " + path_);
  }
  return taken;
}

MutableBytes SlotFile::slot(int slot) const {
  return mapping_.subspan(kRootBytes + static_cast<std::uint64_t>(slot) * AlignUp(bytes_, kBlock), bytes_);
}

void SlotFile::StartWriting(int slot, std::uint64_t begin, std::uint64_t bytes) const {
  const auto slot_begin = static_cast<std::uint64_t>(this->slot(slot).data() - mapping_.data());
  StartWriteBack(file_.get(), slot_begin + begin, bytes);
}

Status SlotFile::Persist(int slot) const { return Sync(this->slot(slot)); }

Status SlotFile::Sync(MutableBytes mapped) const {
  if (::msync(mapped.data(), mapped.size(), MS_SYNC) != 0) return ErrnoStatus(errno, "msync of " + path_);
  return {};
}

Result<SlotFile::Recorded> SlotFile::Record(int slot, std::uint64_t step) {
  MutexLock lock(mutex_);
  if (newest_.has_value() && newest_->step > step) return Recorded{.newest = false, .unused = slot};
  const std::optional<Newest> previous = newest_;
  CAIRN_RETURN_IF_ERROR(Write(number_ + 1, {.slot = slot, .step = step}));
  return Recorded{.newest = true, .unused = previous.has_value() ? std::optional(previous->slot) : std::nullopt};
}

void SlotFile::Free(int slot) {
  MutexLock lock(mutex_);
  taken_ &= ~(std::uint64_t{1} << slot);
  freed_.NotifyAll();
}

Status SlotFile::GoBackTo(std::uint64_t step) {
  MutexLock lock(mutex_);
  if (newest_.has_value() && newest_->step == step) return {};
  const std::optional<RootRecord> before = Read((number_ + 1) % 2);
  if (!before.has_value() || before->step != step) {
    return Error(StatusCode::kNotFound, "{}: step {} is neither the newest nor the one before", path_, step);
  }
  // Over the abandoned record: if this one is torn, the one before is the newest as well.
  CAIRN_RETURN_IF_ERROR(Write(number_ + 2, {.slot = static_cast<int>(before->slot), .step = step}));
  taken_ = std::uint64_t{1} << before->slot;
  return {};
}

std::optional<SlotFile::Newest> SlotFile::newest() const {
  MutexLock lock(mutex_);
  return newest_;
}

Status Commit(SlotFile& file, const Workplace& workplace, int slot, std::uint64_t step) {
  CAIRN_ASSIGN_OR_RETURN(const SlotFile::Recorded recorded, file.Record(slot, step));
  // Until every node has recorded this step, a restart may have to go back to the one before.
  CAIRN_RETURN_IF_ERROR(AwaitDurableOnAll(workplace, step));
  if (recorded.unused.has_value()) file.Free(*recorded.unused);
  if (recorded.newest) workplace.durable(step);
  return {};
}

Result<std::uint64_t> RestoreNewest(SlotFile& file, const Workplace& workplace) {
  const std::optional<SlotFile::Newest> found = file.newest();
  const Result<std::uint64_t> here = found.has_value()
                                         ? Result<std::uint64_t>(found->step)
                                         : Error(StatusCode::kNotFound, "no checkpoint in {}", workplace.directory);
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, NewestOnAll(workplace, here));
  CAIRN_RETURN_IF_ERROR(file.GoBackTo(step));
  CAIRN_RETURN_IF_ERROR(
      workplace.gpu.CopyToDevice(file.slot(file.newest()->slot), workplace.state, 0, Gpu::HostMemory::kAny));
  return step;
}

}  // namespace cairn::bench
