// How a checkpoint gets into another root. Each numbered step completes before the next begins.
//
// 1. Hold. The checkpoint's files get second names in the source root (store/hold.h), so that its writer may retire,
//    replace and recycle meanwhile.
// 2. Begin. In the target, which this process has opened as its writer: look for the free space that is needed; make
//    `.attempt-<id>`, with the id of the source's attempt. What is frozen, and in a checkpoint there already, is linked
//    from it, as a save does.
// 3. Copy. The header of each file must have the digest that the manifest gives it, and each block the sum that the
//    header gives it; otherwise the copy ends as Corrupt. Reads and writes bypass the page cache, several at once. A
//    file's first block is written last, so that no file with an old header precedes its data.
// 4. Seal. Truncate and fsync each file.
// 5. Commit (commit.cc), as a save does, but with the manifest's bytes as they are: make the line the counter in
//    `.writer`; write and fsync the manifest; fsync the folder; rename it to step-N, or exchange it with an old one;
//    fsync the root. A writer that has taken the target over meanwhile ends this before the rename.
// 6. Retire at the target what its own rules retire; drop the second names in the source.
//
// A mirror that is killed leaves at most second names in its own folder of the source, which it or the source's next
// writer removes, and an attempt in the target, which the target's next writer removes.

#include "mirror/copy.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "mirror/blocks.h"
#include "mirror/headers.h"
#include "store/commit.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"
#include "store/space.h"
#include "store/suspect.h"

namespace cairn {
namespace {

constexpr std::size_t kFilesAtOnce = 16;
// How long to wait for readers of what is to be replaced at the target.
constexpr std::chrono::seconds kReaderTimeout{10};

}  // namespace

/// A file on its way.
struct CheckpointCopy::File {
  File(ManifestShard shard, AttemptFile::Spec to) : what(std::move(shard)), target(std::move(to)) {}

  const ManifestShard what;
  AttemptFile target;
  ShardFile source;
  bool is_index = false;
  // The first byte that Lane copies; those before it come last. A multiple of kBlock.
  std::uint64_t begin = 0;
  // Where the next run of pieces begins.
  std::uint64_t next = 0;
  // Of a file in an object store: what is before `begin`.
  std::string head;
};

CheckpointCopy::CheckpointCopy(Spec spec)
    : spec_(std::move(spec)), folder_(spec_.to.at(), spec_.from.checkpoint.manifest.attempt, spec_.directory_mode) {}

CheckpointCopy::~CheckpointCopy() = default;

Status CheckpointCopy::OfSource(Status status) {
  if (status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported) source_damaged_ = true;
  return status;
}

IoTask<Status> CheckpointCopy::Run() {
  Status copied = co_await Copy();
  files_.clear();  // NFS keeps the folder of an open file.
  if (copied.ok() || in_place_) co_return copied;
  // Another writer that has taken over has renamed the attempt away, and removes it.
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(folder_.root().text(), [this] { return spec_.to.CheckWriter(); }));
  static_cast<void>(co_await folder_.Remove());
  co_return copied;
}

IoTask<Status> CheckpointCopy::Copy() {
  const Manifest& manifest = spec_.from.checkpoint.manifest;
  static_cast<void>(co_await RemoveUnnamed(folder_.path()));  // Of an earlier try, if it could not be removed then.
  CAIRN_CO_RETURN_IF_ERROR(co_await folder_.Make());
  CAIRN_CO_RETURN_IF_ERROR(co_await LinkKept());
  if (spec_.from.index) {
    const ManifestShard index{.file = manifest.index->file, .length = manifest.index->length};
    const PathAt path = JoinPath(folder_.path(), index.file);
    files_.push_back(std::make_unique<File>(
        index, AttemptFile::Spec{.path = path, .bytes = index.length, .mode = spec_.file_mode, .stop = &failed_}));
    files_.back()->is_index = true;
  }
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(folder_.path().text(), [this] { return CheckRoom(); }));
  const std::span<const std::unique_ptr<File>> files(files_);
  for (std::size_t at = 0; at < files.size(); at += kFilesAtOnce) {
    CAIRN_CO_RETURN_IF_ERROR(co_await CopyBatch(files.subspan(at, std::min(kFilesAtOnce, files.size() - at))));
  }
  if (spec_.from.checkpoint.info.suspect) {
    CAIRN_CO_RETURN_IF_ERROR(co_await MarkSuspectFolder(folder_.path(), spec_.file_mode));
  }
  co_return co_await Commit();
}

Status CheckpointCopy::CheckRoom() const {
  std::uint64_t needed = 0;
  for (const auto& file : files_) needed += file->target.laid_out();
  const PathAt step = JoinPath(spec_.to.at(), StepName(spec_.from.checkpoint.info.step));
  return CheckFreeSpace(spec_.to.at(), step.text(), needed);
}

// Step 2

IoTask<Status> CheckpointCopy::LinkKept() {
  for (const ManifestShard& shard : spec_.from.checkpoint.manifest.shards) {
    bool linked = false;
    for (auto other = spec_.there.rbegin(); shard.kept && !linked && other != spec_.there.rend(); ++other) {
      const bool has =
          other->info.status.ok() && std::ranges::find(other->manifest.shards, shard) != other->manifest.shards.end();
      if (has) CAIRN_CO_RETURN_IF_ERROR(co_await LinkOne(shard, *other, linked));
    }
    if (linked) continue;
    const PathAt path = JoinPath(folder_.path(), shard.file);
    files_.push_back(std::make_unique<File>(
        shard, AttemptFile::Spec{.path = path, .bytes = shard.length, .mode = spec_.file_mode, .stop = &failed_}));
  }
  co_return Status::Ok();
}

// Whatever is wrong with the file there: then it is copied.
IoTask<Status> CheckpointCopy::LinkOne(const ManifestShard& shard, const StoredCheckpoint& other, bool& linked) {
  ShardFile there;
  there.name = JoinPath(other.info.path, shard.file).text();
  there.length = shard.length;
  Status good = co_await ReadShardHeader(other, shard, there);
  if (good.ok() && !spec_.whole.contains(shard.file)) good = co_await VerifyAll(there);
  if (!good.ok()) co_return Status::Ok();
  spec_.whole.insert(shard.file);
  IoResult made = co_await io::Link(there.fd, there.name, JoinPath(folder_.path(), shard.file));
  linked = made.ok();
  co_return Status::Ok();
}

IoTask<Status> CheckpointCopy::VerifyAll(ShardFile& file) {
  const BufferPool::Chunk chunk = spec_.pool.TryAcquire(BufferPool::Priority::kSave);
  if (!chunk) co_return Error(StatusCode::kInternal, "the pool has no chunk to read {}", file.name);
  for (std::uint64_t offset = file.header.data_begin; offset < file.length; offset += spec_.pool.chunk_bytes()) {
    if (spec_.interrupted()) co_return Error(StatusCode::kCancelled, "{} was not read: interrupted", file.name);
    const std::uint64_t length = std::min(spec_.pool.chunk_bytes(), file.length - offset);
    CAIRN_CO_RETURN_IF_ERROR(co_await ReadAt(file, chunk.data(), offset, AlignUp(length, kBlock)));
    CAIRN_CO_RETURN_IF_ERROR(VerifyBlocks(file, offset, Bytes(chunk.data(), length)));
  }
  co_return Status::Ok();
}

// Step 3

IoTask<Status> CheckpointCopy::CopyBatch(std::span<const std::unique_ptr<File>> batch) {
  std::vector<IoTask<Status>> begins;
  for (const auto& file : batch) begins.push_back(BeginFile(*file));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(begins)));
  std::vector<IoTask<Status>> lanes;
  for (std::uint64_t lane = 0; lane < kCopyLanes; ++lane) lanes.push_back(Lane(batch));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(lanes)));
  std::vector<IoTask<Status>> ends;
  for (const auto& file : batch) ends.push_back(EndFile(*file));
  co_return co_await WhenAll(std::move(ends));
}

IoTask<Status> CheckpointCopy::BeginFile(File& file) {
  const StoredCheckpoint& from = spec_.from.checkpoint;
  file.source.name = JoinPath(from.info.path, file.what.file).text();
  file.source.length = file.what.length;
  if (spec_.bucket != nullptr) {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await io::OnThread(file.source.name, [&] { return FetchHeader(file); })));
    file.begin = file.is_index ? kBlock : file.source.header.data_begin;
  } else if (file.is_index) {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await OpenShardFile(file.source)));
    file.begin = kBlock;
  } else {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await ReadShardHeader(from, file.what, file.source)));
    file.begin = file.source.header.data_begin;
  }
  file.next = file.begin;
  CAIRN_CO_RETURN_IF_ERROR(file.target.CheckSize());
  CAIRN_CO_RETURN_IF_ERROR(co_await file.target.Make());
  IoResult laid_out = co_await file.target.Allocate();
  if (laid_out.error == EOPNOTSUPP) co_return Status::Ok();
  co_return laid_out.status;
}

IoTask<Status> CheckpointCopy::Lane(std::span<const std::unique_ptr<File>> batch) {
  std::vector<BufferPool::Chunk> chunks;
  for (std::uint64_t i = 0; i < ChunksOfLane(spec_.bucket); ++i) {
    chunks.push_back(spec_.pool.TryAcquire(BufferPool::Priority::kSave));
    if (!chunks.back()) co_return Error(StatusCode::kInternal, "the pool has no chunk for a lane");
  }
  for (const auto& file : batch) {
    while (file->next < file->what.length) {
      if (failed_.ok() && spec_.interrupted()) {
        failed_ = Error(StatusCode::kCancelled, "step {} was not copied: interrupted", spec_.from.checkpoint.info.step);
      }
      if (!failed_.ok()) co_return failed_;
      const std::uint64_t most = spec_.bucket == nullptr ? spec_.pool.chunk_bytes() : RunBytes(file->what.length);
      const std::uint64_t offset = std::exchange(file->next, file->next + most);
      Status copied = co_await CopyRun(*file, offset, std::min(most, file->what.length - offset), chunks);
      if (failed_.ok()) failed_ = std::move(copied);
    }
  }
  co_return failed_;
}

IoTask<Status> CheckpointCopy::CopyRun(File& file, std::uint64_t offset, std::uint64_t length,
                                       std::span<const BufferPool::Chunk> chunks) {
  std::unique_ptr<RcloneCall> call;
  if (spec_.bucket != nullptr) {
    auto started = spec_.bucket->StartRead(ObjectName(file), offset, length);
    CAIRN_CO_RETURN_IF_ERROR(started.status());
    call = *std::move(started);
  }
  const std::uint64_t end = offset + length;
  std::uint64_t read_at = offset;
  Bytes read;  // The piece before, which is written while the next is read.
  for (std::size_t i = 0; failed_.ok() && (offset < end || !read.empty()); ++i) {
    const std::uint64_t piece = std::min(spec_.pool.chunk_bytes(), end - offset);
    std::byte* const memory = chunks[i % chunks.size()].data();
    std::vector<IoTask<Status>> both;
    if (!read.empty()) both.push_back(file.target.Write(read_at, read));
    if (piece != 0) both.push_back(ReadPiece(file, offset, piece, memory, call.get()));
    CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(both)));
    bytes_ += piece;
    read_at = offset;
    read = Bytes(memory, AlignUp(piece, kBlock));
    offset += piece;
  }
  co_return Status::Ok();
}

IoTask<Status> CheckpointCopy::ReadPiece(File& file, std::uint64_t offset, std::uint64_t length, std::byte* memory,
                                         RcloneCall* call) {
  const std::uint64_t padded = AlignUp(length, kBlock);
  const auto verify = [&file, offset, bytes = Bytes(memory, length)] {
    return file.is_index ? Status::Ok() : VerifyBlocks(file.source, offset, bytes);
  };
  CAIRN_CO_RETURN_IF_ERROR(co_await spec_.limit.Await(length, spec_.interrupted));
  if (call != nullptr) {
    const auto fetch = [&] {
      Status status = call->Read(memory, length);
      return status.ok() ? verify() : status;
    };
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await io::OnThread(file.source.name, fetch)));
  } else {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await ReadAt(file.source, memory, offset, padded)));
    CAIRN_CO_RETURN_IF_ERROR(OfSource(verify()));
  }
  std::fill_n(memory + length, padded - length, std::byte{});
  co_return Status::Ok();
}

std::string CheckpointCopy::ObjectName(const File& file) const {
  return Bucket::FolderName(spec_.from.checkpoint.info) + "/" + file.what.file;
}

Status CheckpointCopy::FetchHeader(File& file) const {
  if (file.is_index) {
    const Bucket::Range first{.name = ObjectName(file), .length = std::min(file.what.length, kBlock)};
    CAIRN_ASSIGN_OR_RETURN(file.head, spec_.bucket->Get(std::array{first}).front());
    return Status::Ok();
  }
  file.source.with_values = false;
  std::array wanted{WantedHeader{.checkpoint = &spec_.from.checkpoint, .shard = &file.what, .file = &file.source}};
  FetchHeaders(*spec_.bucket, wanted);
  file.head = std::move(wanted[0].bytes);
  return wanted[0].status;
}

// Steps 3 and 4

IoTask<Status> CheckpointCopy::EndFile(File& file) {
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kBlock, file.begin)), &std::free);
  if (memory == nullptr) {
    co_return Error(StatusCode::kResourceExhausted, "{}: no {} bytes for its header", file.source.name, file.begin);
  }
  const Bytes first(memory.get(), file.begin);
  std::fill_n(memory.get(), file.begin, std::byte{});
  if (spec_.bucket != nullptr) {
    std::ranges::copy(std::as_bytes(std::span(file.head)), memory.get());
  } else {
    CAIRN_CO_RETURN_IF_ERROR(OfSource(co_await ReadAt(file.source, memory.get(), 0, file.begin)));
  }
  const std::uint32_t digest = Crc32c(first);
  if (!file.is_index && digest != file.what.header_digest) {
    co_return OfSource(Error(StatusCode::kCorrupt, "{}: header digest: expected {:08x}, found {:08x}", file.source.name,
                             file.what.header_digest, digest));
  }
  CAIRN_CO_RETURN_IF_ERROR(co_await file.target.WriteHeader(first));
  bytes_ += std::min(file.begin, file.what.length);
  Forget(file.source);
  co_return co_await file.target.Fsync();
}

// Step 5

IoTask<Status> CheckpointCopy::Commit() {
  const StoredCheckpoint& from = spec_.from.checkpoint;
  const bool replace = std::ranges::any_of(
      spec_.there, [&from](const StoredCheckpoint& one) { return one.info.step == from.info.step; });
  CAIRN_CO_RETURN_IF_ERROR(co_await spec_.to.WriteLine(from.info.line));
  FolderCommit commit({.root = spec_.to.at(),
                       .folder = folder_.path(),
                       .manifest = from.manifest,
                       .text = spec_.from.manifest,
                       .replace = replace,
                       .readers = {.timeout = kReaderTimeout},
                       .file_mode = spec_.file_mode,
                       .check_writer = [this] { return spec_.to.CheckWriter(); }},
                      folder_.fd(), in_place_);
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.Begin());
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.WriteManifest());
  std::vector<IoTask<Status>> fsyncs;
  fsyncs.push_back(commit.FsyncPin());
  fsyncs.push_back(commit.FsyncManifest());
  fsyncs.push_back(io::FsyncTask(folder_.fd(), folder_.path().text()));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(fsyncs)));
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.RenameIntoPlace());
  co_return co_await commit.RemoveOld();
}

}  // namespace cairn
