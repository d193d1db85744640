// How a checkpoint gets into an object store. Each numbered step completes before the next begins.
//
// 1. Hold, as for a directory (copy.cc).
// 2. Copy. Each file becomes an object in the folder step-N.<attempt>, through a pipe to rclone: its header must have
//    the digest that the manifest gives it, and each block the sum that the header gives it, before they are written
//    to that pipe. What the folder has already, in its whole length, is of an earlier try. A kept file that another
//    checkpoint there has is copied by the store.
// 3. List. Every object that the manifest names must be there with its length: a store, or a version of rclone, may
//    take a cut-off stream for the whole.
// 4. Commit. If nobody else has become the writer, put the manifest, byte for byte. The checkpoint exists from then on.
//
// A mirror that is killed leaves objects without a manifest. The next one goes on with them, or removes them once they
// are old.

#include "mirror/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "mirror/blocks.h"
#include "store/names.h"

namespace cairn {
namespace {

constexpr int kUploadLanes = 4;

}  // namespace

Status CheckpointUpload::OfSource(Status status) {
  if (status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported) source_damaged_ = true;
  return status;
}

IoTask<Status> CheckpointUpload::Run() {
  const std::vector<File> files = Missing();
  std::vector<IoTask<Status>> lanes;
  for (int lane = 0; lane < kUploadLanes; ++lane) lanes.push_back(Lane(files));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(lanes)));
  co_return co_await io::OnThread(spec_.to.text(), [this] { return Commit(); });
}

// Step 2

std::vector<CheckpointUpload::File> CheckpointUpload::Missing() const {
  const StoredCheckpoint& from = spec_.from.checkpoint;
  const Bucket::Folder* const there = spec_.to.Find(Bucket::FolderName(from.info));
  std::vector<File> files;
  const auto add = [&](File file) {
    if (there == nullptr || there->Length(file.what.file) != file.what.length) files.push_back(std::move(file));
  };
  for (const ManifestShard& shard : from.manifest.shards) add({.what = shard});
  if (spec_.from.index) {
    const ManifestIndex& index = *from.manifest.index;
    add({.what = {.file = index.file, .length = index.length}, .is_index = true});
  }
  return files;
}

IoTask<Status> CheckpointUpload::Lane(std::span<const File> files) {
  const BufferPool::Chunk chunk = spec_.pool.TryAcquire(BufferPool::Priority::kSave);
  if (!chunk) co_return Error(StatusCode::kInternal, "the pool has no chunk for a lane");
  while (failed_.ok() && next_ < files.size()) {
    Status copied = co_await CopyFile(files[next_++], chunk.data());
    if (failed_.ok()) failed_ = std::move(copied);
  }
  co_return failed_;
}

std::string CheckpointUpload::FindKept(const ManifestShard& shard) const {
  for (const StoredCheckpoint& other : spec_.there) {
    if (!shard.kept || !other.info.status.ok() || other.info.attempt == spec_.from.checkpoint.info.attempt) continue;
    if (std::ranges::find(other.manifest.shards, shard) == other.manifest.shards.end()) continue;
    return Bucket::FolderName(other.info) + "/" + shard.file;
  }
  return {};
}

IoTask<Status> CheckpointUpload::CopyFile(const File& file, std::byte* memory) {
  const StoredCheckpoint& from = spec_.from.checkpoint;
  const std::string name = Bucket::FolderName(from.info) + "/" + file.what.file;
  if (const std::string kept = FindKept(file.what); !kept.empty()) {
    Result<std::unique_ptr<RcloneCall>> call = spec_.to.StartCopy(kept, name);
    CAIRN_CO_RETURN_IF_ERROR(call.status());
    co_return co_await io::OnThread(name, [&call] { return (*call)->End(); });
  }
  ShardFile source;
  source.name = JoinPath(from.info.path, file.what.file).text();
  source.length = file.what.length;
  if (file.is_index) {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await OpenShardFile(source)));
  } else {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await ReadShardHeader(from, file.what, source)));
  }
  Result<std::unique_ptr<RcloneCall>> call = spec_.to.StartWrite(name, file.what.length);
  CAIRN_CO_RETURN_IF_ERROR(call.status());
  co_return co_await Send(file, source, **call, memory);
}

IoTask<Status> CheckpointUpload::Send(const File& file, ShardFile& source, RcloneCall& call, std::byte* memory) {
  const std::uint64_t data = file.is_index ? 0 : source.header.data_begin;
  std::uint32_t digest = 0;
  for (std::uint64_t offset = 0; offset < file.what.length;) {
    if (!failed_.ok()) co_return failed_;
    if (spec_.interrupted()) {
      co_return Error(StatusCode::kCancelled, "step {} was not copied: interrupted", spec_.from.checkpoint.info.step);
    }
    // A piece is of the header, or of whole blocks of the data.
    const std::uint64_t end = offset < data ? data : file.what.length;
    const std::uint64_t length = std::min(spec_.pool.chunk_bytes(), end - offset);
    CAIRN_CO_RETURN_IF_ERROR(co_await spec_.limit.Await(length, spec_.interrupted));
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await ReadAt(source, memory, offset, AlignUp(length, kBlock))));
    const Bytes piece(memory, length);
    if (offset < data) {
      digest = Crc32c(piece, digest);
      if (offset + length == data && digest != file.what.header_digest) {
        co_return OfSource(Error(StatusCode::kCorrupt, "{}: header digest: expected {:08x}, found {:08x}", source.name,
                                 file.what.header_digest, digest));
      }
    } else if (!file.is_index) {
      CAIRN_CO_RETURN_IF_ERROR(OfSource(VerifyBlocks(source, offset, piece)));
    }
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(source.name, [&call, piece] { return call.Write(piece); }));
    offset += length;
    bytes_ += length;
  }
  co_return co_await io::OnThread(source.name, [&call] { return call.End(); });
}

// Steps 3 and 4

Status CheckpointUpload::Commit() {
  const StoredCheckpoint& from = spec_.from.checkpoint;
  const std::string folder = Bucket::FolderName(from.info);
  if (from.info.suspect) CAIRN_RETURN_IF_ERROR(spec_.to.MarkSuspect(from.info));
  CAIRN_RETURN_IF_ERROR(spec_.to.List().status());
  for (const File& file : Missing()) {
    const Bucket::Folder* const there = spec_.to.Find(folder);
    const auto found = there == nullptr ? std::nullopt : there->Length(file.what.file);
    return Error(StatusCode::kIoError, "{}/{}/{}: expected {} bytes, found {}", spec_.to.text(), folder, file.what.file,
                 file.what.length, found ? std::to_string(*found) : "none");
  }
  CAIRN_RETURN_IF_ERROR(spec_.check_writer());
  return spec_.to.PutManifest(from, spec_.from.manifest);
}

}  // namespace cairn
