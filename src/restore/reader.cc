#include "restore/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "restore/locate.h"
#include "restore/open.h"
#include "restore/pipeline.h"
#include "restore/plan.h"
#include "restore/source.h"
#include "store/names.h"

namespace cairn {
namespace {

// How often to choose again because the choice was removed or replaced before it could be locked: first at once, then
// after pauses, because a replacement keeps the lock for a few fsyncs. In all for a minute, as NFS caches names.
constexpr int kMaxChoices = 1200;
constexpr int kChoicesAtOnce = 10;
constexpr std::chrono::milliseconds kChoicePause{50};

using Use = std::function<Status(const StoredCheckpoint& checkpoint)>;

// Calls `use` for the checkpoint that `selector` selects. If it returns NotFound, the checkpoint is gone: chooses
// again. Returns NotFound only if there is none to choose.
Status UseChosen(const RestoreParts& parts, const std::string& root, const Selector& selector, const Use& use) {
  Status status;
  for (int times = 0;; ++times) {
    CAIRN_RETURN_IF_ERROR(PauseBeforeChoice(times, status));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> candidates,
                           ChooseCheckpoints(root, selector, parts.memory));
    const std::string& attempt = candidates.front().info.attempt;
    for (const StoredCheckpoint& one : candidates) {
      const bool copy = !attempt.empty() && one.info.attempt == attempt;
      if (&one != &candidates.front() && !copy) break;
      status = use(one);
      if (status.code() != StatusCode::kCorrupt) break;
      if (parts.on_damaged) parts.on_damaged(one.info);
    }
    if (status.code() != StatusCode::kNotFound) return status;
  }
}

// A few shards at a time, to limit headers in memory and open files.
Status VerifyShards(const RestoreParts& parts, std::unique_ptr<IoQueue> queue, const StoredCheckpoint& checkpoint,
                    std::span<const std::uint32_t> shards, OpenedCheckpoint& opened, const Progress& progress) {
  CAIRN_RETURN_IF_ERROR(ReadHeaders(*queue, checkpoint, shards, opened.files));
  std::vector<PlannedRead> reads;
  for (const std::uint32_t s : shards) {
    const auto of_shard = PlanWholeShard(s, opened.files[s].header, parts.pool->chunk_bytes());
    reads.insert(reads.end(), of_shard.begin(), of_shard.end());
  }
  const std::vector<std::vector<PlannedCopy>> no_copies(opened.files.size());
  DeviceCopies no_devices;
  Pipeline pipeline(parts, std::move(queue), opened.files, reads, no_copies, no_devices);
  CAIRN_RETURN_IF_ERROR(pipeline.Run({}, progress));
  for (const std::uint32_t s : shards) {
    Forget(opened.files[s]);
  }
  return Status::Ok();
}

// Without the kept files, which hold no values.
std::span<ShardFile> RankFiles(const StoredCheckpoint& checkpoint, OpenedCheckpoint& opened) {
  return std::span(opened.files).first(checkpoint.manifest.world);
}

CheckpointDetails DetailsOf(const StoredCheckpoint& checkpoint, OpenedCheckpoint& opened) {
  CheckpointDetails details{.info = checkpoint.info};
  for (StoredTensor& tensor : ListTensors(opened.files, ShardNames(checkpoint))) {
    details.tensors.push_back(std::move(tensor.info));
  }
  details.values.resize(checkpoint.manifest.world);
  for (ShardFile& file : RankFiles(checkpoint, opened)) {
    if (!file.has_header || file.header.shard >= details.values.size()) continue;
    details.values[file.header.shard] = std::move(file.header.values);
  }
  return details;
}

// The rank's header, without the values, which DetailsOf took out of it.
void KeepHeader(const RestoreParts& parts, std::uint64_t rank, std::span<ShardFile> files) {
  if (parts.kept == nullptr) return;
  for (ShardFile& file : files) {
    if (!file.has_header || file.header.shard != rank) continue;
    file.fd.Reset();
    parts.kept->Put(std::make_unique<ShardFile>(std::move(file)));
    return;
  }
}

void UseKeptHeader(const RestoreParts& parts, OpenedCheckpoint& opened) {
  if (parts.kept == nullptr || parts.values) return;
  std::unique_ptr<ShardFile> kept = parts.kept->Take();
  if (kept == nullptr) return;
  const auto same = [&kept](const ShardFile& file) { return file.name == kept->name; };
  const auto found = std::ranges::find_if(opened.files, same);
  if (found != opened.files.end()) found->before = std::move(kept);
}

// Whether other ranks of this node read much of the same: what a rank reads of other ranks' shards is replicated.
// `own` is -1 where no shard is this rank's.
bool AreShared(const RestoreParts& parts, std::span<const PlannedRead> reads, std::span<const ShardFile> files,
               std::int64_t own) {
  if (parts.ranks_of_node <= 1 || parts.world == 1) return parts.ranks_of_node > 1;
  std::uint64_t all = 0;
  std::uint64_t of_others = 0;
  for (const PlannedRead& read : reads) {
    all += read.file_bytes;
    if (static_cast<std::int64_t>(files[read.shard].header.shard) != own) of_others += read.file_bytes;
  }
  return 3 * of_others >= all;
}

}  // namespace

Result<Restored> RestoreCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint, int rank,
                                   const State& state, const RestoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, LockCheckpoint(checkpoint));
  for (ShardFile& file : opened.files) {
    file.with_values = parts.values;
    file.in_memory = parts.memory.Has(checkpoint.info);
  }
  UseKeptHeader(parts, opened);
  const auto own = static_cast<std::uint64_t>(rank);
  CAIRN_ASSIGN_OR_RETURN(MatchedTensors matched, LocateTensors(*queue, checkpoint, own, parts.own_shard, *state.table(),
                                                               options, parts.on_event, opened));

  std::vector<PlannedRead> reads;
  for (std::uint32_t s = 0; s < opened.files.size(); ++s) {
    if (matched.copies[s].empty()) continue;
    const auto of_shard = PlanReads(s, opened.files[s].header, matched.copies[s], parts.pool->chunk_bytes());
    reads.insert(reads.end(), of_shard.begin(), of_shard.end());
  }
  if (options.page_cache.value_or(AreShared(parts, reads, opened.files, parts.own_shard ? rank : -1))) {
    for (ShardFile& file : opened.files) UsePageCache(file);
  }
  DeviceCopies devices;
  CAIRN_RETURN_IF_ERROR(devices.Prepare(matched.copies, parts.device));
  Pipeline pipeline(parts, std::move(queue), opened.files, reads, matched.copies, devices);
  if (Status status = pipeline.Run(options.streams, options.progress); !status.ok()) {
    return ExplainFailure(checkpoint, std::move(status));
  }

  if (checkpoint.info.copy && parts.on_event) {
    parts.on_event({.step = checkpoint.info.step,
                    .message = fmt::format("restored {}: line {} of root {}, a copy", checkpoint.info.path,
                                           checkpoint.info.line, checkpoint.info.root)});
  }
  if (checkpoint.info.suspect && parts.on_event) {
    parts.on_event({.severity = Severity::kWarning,
                    .step = checkpoint.info.step,
                    .message = fmt::format("restored {}, which is suspect: a later save has found that what is frozen "
                                           "had changed unseen, so it may be that of an earlier step",
                                           checkpoint.info.path)});
  }
  Restored restored{.step = checkpoint.manifest.step,
                    .line = checkpoint.manifest.line,
                    .attempt = checkpoint.manifest.attempt,
                    .tensors = matched.tensors,
                    .bytes = matched.bytes,
                    .missing = std::move(matched.missing)};
  for (ShardFile& file : RankFiles(checkpoint, opened)) {
    const bool wanted = parts.values && parts.own_shard && file.has_header;
    if (wanted && file.header.shard == own) restored.values = std::move(file.header.values);
  }
  return restored;
}

Status VerifyCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint, const Progress& progress) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, LockCheckpoint(checkpoint));
  std::uint64_t total = 0;
  for (const ManifestShard& shard : checkpoint.manifest.shards) total += shard.length;
  std::uint64_t done = 0;
  std::vector<std::uint32_t> shards;
  for (std::uint32_t s = 0; s < opened.files.size(); ++s) {
    shards.push_back(s);
    if (shards.size() < kHeaderReads && s + 1 < opened.files.size()) continue;
    std::uint64_t bytes = 0;
    for (const std::uint32_t one : shards) bytes += checkpoint.manifest.shards[one].length;
    // The first call has read these shards' headers.
    const auto tell = [&](std::uint64_t of_data, std::uint64_t data) {
      return !progress || progress(done + (bytes - data) + of_data, total);
    };
    if (queue == nullptr) {
      CAIRN_ASSIGN_OR_RETURN(queue, parts.queue());
    }
    Status status = VerifyShards(parts, std::move(queue), checkpoint, shards, opened, tell);
    if (!status.ok() && status.code() != StatusCode::kCancelled) return ExplainFailure(checkpoint, std::move(status));
    done += bytes;
    shards.clear();
    const bool goes_on = status.ok() && (!progress || progress(done, total));
    if (!goes_on) return Error(StatusCode::kCancelled, "verifying {} was cancelled", checkpoint.info.path);
  }
  return Status::Ok();
}

Result<CheckpointDetails> InspectCheckpoint(const StoredCheckpoint& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice choice, ChooseIoQueue(IoQueueKind::kThreads, kHeaderReads));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, choice.factory());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(*queue, checkpoint));
  return DetailsOf(checkpoint, opened);
}

Result<CheckpointDetails> InspectCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                            const InspectPart& part) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, LockCheckpoint(checkpoint));
  CAIRN_RETURN_IF_ERROR(LocatePart(*queue, checkpoint, part, parts.on_event, opened));
  CheckpointDetails details = DetailsOf(checkpoint, opened);
  for (std::size_t rank = 0; rank < details.values.size(); ++rank) {
    if (rank != part.rank) details.values[rank].clear();
  }
  std::set<std::string_view> own;
  for (std::size_t i = 0; i < opened.files.size(); ++i) {
    const ShardFile& file = opened.files[i];
    if (file.has_header && file.header.shard == part.rank) own.insert(checkpoint.manifest.shards[i].file);
  }
  const std::set<std::string_view> names(part.names.begin(), part.names.end());
  std::erase_if(details.tensors,
                [&](const TensorInfo& tensor) { return !own.contains(tensor.file) && !names.contains(tensor.name); });
  if (part.rank) KeepHeader(parts, *part.rank, RankFiles(checkpoint, opened));
  return details;
}

Status PauseBeforeChoice(int times, const Status& gone) {
  if (times == kMaxChoices) {
    return Error(StatusCode::kFailedPrecondition,
                 "chosen {} times, but each time it was gone or being removed or replaced: {}", times, gone.message());
  }
  if (times >= kChoicesAtOnce) std::this_thread::sleep_for(kChoicePause);
  return Status::Ok();
}

Status VerifySelected(const RestoreParts& parts, const std::string& root, const Selector& selector,
                      const Progress& progress) {
  return UseChosen(parts, root, selector,
                   [&](const StoredCheckpoint& chosen) { return VerifyCheckpoint(parts, chosen, progress); });
}

Result<CheckpointDetails> InspectSelected(const std::string& root, const Selector& selector,
                                          const MemoryPlace& memory) {
  CheckpointDetails details;
  RestoreParts parts;
  parts.memory = memory;
  CAIRN_RETURN_IF_ERROR(UseChosen(parts, root, selector, [&](const StoredCheckpoint& chosen) -> Status {
    CAIRN_ASSIGN_OR_RETURN(details, InspectCheckpoint(chosen));
    return Status::Ok();
  }));
  return details;
}

Result<CheckpointDetails> InspectSelected(const RestoreParts& parts, const std::string& root, const Selector& selector,
                                          const InspectPart& part) {
  CheckpointDetails details;
  CAIRN_RETURN_IF_ERROR(UseChosen(parts, root, selector, [&](const StoredCheckpoint& chosen) -> Status {
    CAIRN_ASSIGN_OR_RETURN(details, InspectCheckpoint(parts, chosen, part));
    return Status::Ok();
  }));
  return details;
}

Result<Chosen> ChooseSelected(const RestoreParts& parts, const std::string& root, const Selector& selector,
                              bool inspect) {
  Chosen chosen;
  const auto hold = [&](const StoredCheckpoint& checkpoint) -> Status {
    CAIRN_RETURN_IF_ERROR(checkpoint.info.status);
    CAIRN_ASSIGN_OR_RETURN(ReadLock lock, ReadLock::Take(checkpoint.info.path));
    chosen.hold = std::make_shared<const ReadLock>(std::move(lock));
    chosen.details = {.info = checkpoint.info};
    if (!inspect) return Status::Ok();
    CAIRN_ASSIGN_OR_RETURN(chosen.details, InspectCheckpoint(checkpoint));
    return Status::Ok();
  };
  CAIRN_RETURN_IF_ERROR(UseChosen(parts, root, selector, hold));
  return chosen;
}

}  // namespace cairn
