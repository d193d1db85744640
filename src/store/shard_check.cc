#include "store/shard_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "format/index.h"
#include "format/shard_header.h"
#include "io/path_at.h"

namespace cairn {
namespace {

constexpr int kThreads = 8;  // Threads that may wait for the disk at once.
constexpr std::size_t kPiece = 64U << 10;
// A larger header has over a hundred thousand tensors. It gets no index, so that eight of them need not fit in memory.
constexpr std::uint64_t kMaxIndexedHeader = 32U << 20;

Status ReadExactly(const UniqueFd& fd, const std::string& file, std::span<std::byte> into, std::uint64_t offset) {
  for (int retries = 0; !into.empty();) {
    const ssize_t got = ::pread(fd.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR && ++retries <= kMaxRetries) continue;
    if (got < 0) return ReadErrnoStatus(errno, "reading " + file);
    if (got == 0) return Error(StatusCode::kCorrupt, "{}: unexpected end of file at byte {}", file, offset);
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return Status::Ok();
}

struct Header {
  std::uint32_t digest = 0;
  /// Empty if the header is too long.
  std::vector<std::byte> bytes;
};

Result<Header> ReadHeader(const UniqueFd& fd, const std::string& file, std::uint64_t length) {
  std::vector<std::byte> piece(kPiece);
  CAIRN_RETURN_IF_ERROR(ReadExactly(fd, file, std::span(piece).first(kLengthWord), 0));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t size, ShardHeaderLength(Bytes(piece.data(), kLengthWord), length, file));
  Header header;
  const bool kept = size <= kMaxIndexedHeader;
  if (kept) header.bytes.resize(size);
  for (std::uint64_t at = 0; at < size; at += kPiece) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kPiece, size - at);
    const std::span<std::byte> part = kept ? std::span(header.bytes).subspan(at, bytes) : std::span(piece).first(bytes);
    CAIRN_RETURN_IF_ERROR(ReadExactly(fd, file, part, at));
    header.digest = Crc32c(part, header.digest);
  }
  return header;
}

// Empty for a header that is too long or that this version cannot read.
std::string RunOf(const Header& header, std::uint64_t length, const std::string& file) {
  if (header.bytes.empty()) return {};
  try {
    const Result<ShardHeader> decoded = DecodeShardHeader(header.bytes, length, file);
    return decoded.ok() ? EncodeIndexRun(*decoded) : std::string();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

Result<std::string> CheckShard(const UniqueFd& fd, const std::string& file, std::size_t rank,
                               const ManifestShard& shard) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + file);
  if (!S_ISREG(found.st_mode) || static_cast<std::uint64_t>(found.st_size) != shard.length) {
    return Error(StatusCode::kCorrupt, "{}: rank {} has written {} bytes, rank 0 found {}", file, rank, shard.length,
                 found.st_size);
  }
  CAIRN_ASSIGN_OR_RETURN(const Header header, ReadHeader(fd, file, shard.length));
  if (header.digest == shard.header_digest) return RunOf(header, shard.length, file);
  return Error(StatusCode::kCorrupt, "{}: rank {} has written header digest {:08x}, rank 0 found {:08x}", file, rank,
               shard.header_digest, header.digest);
}

IoTask<Status> CheckTask(std::shared_ptr<const AttemptFolder> folder, std::size_t rank, ManifestShard shard, bool again,
                         std::shared_ptr<std::string> run) {
  const PathAt opened_folder(folder->fd().get(), folder->path().text());
  const PathAt path = JoinPath(opened_folder, shard.file);
  UniqueFd fd;
  Status checked = co_await OpenLateName(opened_folder, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, again, fd);
  if (checked.ok()) {
    checked = co_await io::OnThread(path.text(), [&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(*run, CheckShard(fd, path.text(), rank, shard));
      return Status::Ok();
    });
  }
  if (checked.ok()) co_return checked;
  // A shard of an attempt that another rank removes is missing, too.
  Status there = co_await folder->CheckThere(checked);
  co_return there.ok() ? std::move(checked) : std::move(there);
}

}  // namespace

ShardChecks::ShardChecks(IoQueue& queue, std::shared_ptr<const AttemptFolder> folder, std::chrono::nanoseconds timeout,
                         OnNotYet not_yet)
    : queue_(queue), folder_(std::move(folder)), timeout_(timeout), not_yet_(std::move(not_yet)) {}

void ShardChecks::Add(std::size_t rank, ManifestShard shard, Done done) {
  waiting_.push_back({.rank = rank, .shard = std::move(shard), .done = std::move(done)});
  BeginWaiting();
}

Deadline ShardChecks::wakes_at() const {
  Deadline first = Deadline::Infinite();
  for (const Check& check : late_) first = Deadline::At(std::min(first.when(), check.next_look.when()));
  return first;
}

void ShardChecks::OnTime() {
  const auto due =
      std::stable_partition(late_.begin(), late_.end(), [](const Check& one) { return !one.next_look.passed(); });
  std::move(due, late_.end(), std::back_inserter(waiting_));
  late_.erase(due, late_.end());
  BeginWaiting();
}

Status ShardChecks::Late() const { return late_.empty() ? Status::Ok() : late_.front().late->Missing(); }

void ShardChecks::OnNotFound(Check check) {
  if (!check.late) {
    check.late.emplace(
        fmt::format("{}, which rank {} has written,", JoinPath(folder_->path(), check.shard.file), check.rank),
        /*rank=*/0, timeout_);
  }
  if (check.late->expired()) return check.done(check.late->Missing());
  check.next_look = check.late->NextLook();
  if (const auto event = check.late->NotYet(); event && !std::exchange(told_, true)) not_yet_(*event);
  late_.push_back(std::move(check));
}

void ShardChecks::BeginWaiting() {
  while (in_flight_ < kThreads && !waiting_.empty()) {
    const auto next = std::make_shared<Check>(std::move(waiting_.front()));
    waiting_.pop_front();
    ++in_flight_;
    const auto run = std::make_shared<std::string>();
    RunTask(queue_, CheckTask(folder_, next->rank, next->shard, next->late.has_value(), run),
            [self = shared_from_this(), run, next](Status status) {
              --self->in_flight_;
              if (status.code() == StatusCode::kNotFound) {
                self->OnNotFound(std::move(*next));
              } else {
                status.ok() ? next->done(std::move(*run)) : next->done(std::move(status));
              }
              self->BeginWaiting();
            });
  }
}

}  // namespace cairn
