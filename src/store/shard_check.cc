#include "store/shard_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "format/shard_header.h"

namespace cairn {
namespace {

constexpr std::size_t kLanes = 8;  // So many threads may wait for the disk at once.
constexpr std::size_t kPiece = 64U << 10;
constexpr std::size_t kLengthWord = 8;

Status ReadExactly(const UniqueFd& fd, const std::string& file, std::span<std::byte> into, std::uint64_t offset) {
  for (int retries = 0; !into.empty();) {
    const ssize_t got = ::pread(fd.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR && ++retries <= kMaxRetries) continue;
    if (got < 0) return ReadErrnoStatus(errno, "reading " + file);
    if (got == 0) return Error(StatusCode::kCorrupt, "{}: it ends at byte {}", file, offset);
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return Status::Ok();
}

Result<std::uint32_t> HeaderDigest(const UniqueFd& fd, const std::string& file, std::uint64_t length) {
  std::vector<std::byte> piece(kPiece);
  CAIRN_RETURN_IF_ERROR(ReadExactly(fd, file, std::span(piece).first(kLengthWord), 0));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t header, ShardHeaderLength(Bytes(piece.data(), kLengthWord), length, file));
  std::uint32_t digest = 0;
  for (std::uint64_t at = 0; at < header; at += kPiece) {
    const auto part = std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, header - at)));
    CAIRN_RETURN_IF_ERROR(ReadExactly(fd, file, part, at));
    digest = Crc32c(part, digest);
  }
  return digest;
}

Status CheckShard(const UniqueFd& folder, const PathAt& path, std::size_t rank, const ManifestShard& shard) {
  const std::string file = JoinPath(path, shard.file).text();
  const UniqueFd fd(::openat(folder.get(), shard.file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno != ENOENT) return ErrnoStatus(errno, "opening " + file);
    return Error(StatusCode::kFailedPrecondition,
                 "rank {} has written {}, which is not there for rank 0: is the root the same directory for both?",
                 rank, file);
  }
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + file);
  if (!S_ISREG(found.st_mode) || static_cast<std::uint64_t>(found.st_size) != shard.length) {
    return Error(StatusCode::kCorrupt, "{}: rank {} has written {} bytes, rank 0 finds {}", file, rank, shard.length,
                 found.st_size);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::uint32_t digest, HeaderDigest(fd, file, shard.length));
  if (digest == shard.header_digest) return Status::Ok();
  return Error(StatusCode::kCorrupt, "{}: its header's digest: rank {} has written {:08x}, rank 0 finds {:08x}", file,
               rank, shard.header_digest, digest);
}

}  // namespace

IoTask<Status> CheckShards(const UniqueFd& folder, const PathAt& path, const Manifest& manifest, std::size_t own) {
  std::vector<IoTask<Status>> lanes;
  const std::size_t shards = manifest.shards.size();
  if (shards <= 1) co_return Status::Ok();
  for (std::size_t lane = 0; lane < std::min(kLanes, shards); ++lane) {
    lanes.push_back(io::OnThread(path.text(), [&folder, &path, &manifest, own, lane, shards]() -> Status {
      for (std::size_t rank = lane; rank < shards; rank += kLanes) {
        if (rank == own) continue;
        CAIRN_RETURN_IF_ERROR(CheckShard(folder, path, rank, manifest.shards[rank]));
      }
      return Status::Ok();
    }));
  }
  co_return co_await Together(std::move(lanes));
}

}  // namespace cairn
