#include "restore/reader.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "restore/open.h"
#include "restore/pipeline.h"
#include "restore/plan.h"
#include "restore/source.h"

namespace cairn {
namespace {

// How often a choice is made anew because its checkpoint was removed or replaced before it could be locked.
constexpr int kMaxChoices = 4;

std::vector<SavedShard> ShardsOf(const std::vector<ShardFile>& files) {
  std::vector<SavedShard> shards;
  shards.reserve(files.size());
  for (const ShardFile& file : files) shards.push_back({file.name, &file.header});
  return shards;
}

// The one candidate of a choice that may not fall back.
Result<StoredCheckpoint> ChooseOne(const std::string& root, const Which& which) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> candidates, ChooseCheckpoints(root, which));
  if (candidates.empty()) return Error(StatusCode::kNotFound, "no checkpoint under {}", root);
  return std::move(candidates.front());
}

// Calls `use` for the chosen checkpoint, anew where it vanished before it was locked.
template <typename Use>
auto UseOne(const std::string& root, const Which& which, const Use& use) -> decltype(use(StoredCheckpoint{})) {
  for (int i = 1;; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint chosen, ChooseOne(root, which));
    auto result = use(chosen);
    if (result.ok() || i == kMaxChoices) return result;
    Status status;
    if constexpr (std::is_same_v<decltype(result), Status>) {
      status = result;
    } else {
      status = result.status();
    }
    if (status.code() != StatusCode::kNotFound) return result;
  }
}

}  // namespace

Result<Restored> RestoreCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint, int rank,
                                   const State& state, const RestoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(*queue, checkpoint));
  const auto own = static_cast<std::uint64_t>(rank);
  CAIRN_ASSIGN_OR_RETURN(MatchedTensors matched, MatchTensors(ShardsOf(opened.files), own, *state.table(), options));

  std::vector<PlannedRead> reads;
  for (std::uint32_t s = 0; s < opened.files.size(); ++s) {
    const auto of_shard = PlanReads(s, opened.files[s].header, matched.copies[s], parts.pool->chunk_bytes());
    reads.insert(reads.end(), of_shard.begin(), of_shard.end());
  }
  DeviceCopies devices;
  CAIRN_RETURN_IF_ERROR(devices.Prepare(matched.copies, parts.device));
  Pipeline pipeline(parts, std::move(queue), opened.files, reads, matched.copies, devices);
  CAIRN_RETURN_IF_ERROR(pipeline.Run(options.streams, options.progress));

  Restored restored{.step = checkpoint.manifest.step,
                    .generation = checkpoint.manifest.generation,
                    .attempt = checkpoint.manifest.attempt,
                    .tensors = matched.tensors,
                    .bytes = matched.bytes,
                    .missing = std::move(matched.missing)};
  for (ShardFile& file : opened.files) {
    if (file.header.shard == own) restored.values = std::move(file.header.values);
  }
  return restored;
}

Status VerifyCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint, const Progress& progress) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(*queue, checkpoint));
  std::vector<PlannedRead> reads;
  for (std::uint32_t s = 0; s < opened.files.size(); ++s) {
    const auto of_shard = PlanWholeShard(s, opened.files[s].header, parts.pool->chunk_bytes());
    reads.insert(reads.end(), of_shard.begin(), of_shard.end());
  }
  const std::vector<std::vector<PlannedCopy>> no_copies(opened.files.size());
  DeviceCopies no_devices;
  Pipeline pipeline(parts, std::move(queue), opened.files, reads, no_copies, no_devices);
  return pipeline.Run({}, progress);
}

Result<CheckpointDetails> InspectCheckpoint(const StoredCheckpoint& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice choice, ChooseIoQueue(IoQueueKind::kThreads, 1));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, choice.factory());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(*queue, checkpoint));
  CheckpointDetails details{.info = checkpoint.info};
  for (StoredTensor& tensor : ListTensors(opened.files, ShardNames(checkpoint))) {
    details.tensors.push_back(std::move(tensor.info));
  }
  details.values.resize(opened.files.size());
  for (ShardFile& file : opened.files) {
    if (file.header.shard < details.values.size()) details.values[file.header.shard] = std::move(file.header.values);
  }
  return details;
}

namespace {

// The first candidate that is not damaged. NotFound as soon as one has vanished.
Result<Restored> RestoreNewestGood(const RestoreParts& parts, const std::vector<StoredCheckpoint>& candidates, int rank,
                                   const State& state, const RestoreOptions& options) {
  Status first = Error(StatusCode::kNotFound, "no checkpoint");
  std::vector<std::string> passed_over;
  for (const StoredCheckpoint& candidate : candidates) {
    Result<Restored> restored = RestoreCheckpoint(parts, candidate, rank, state, options);
    if (restored.ok()) {
      restored->passed_over = std::move(passed_over);
      return restored;
    }
    const Status status = restored.status();
    if (status.code() != StatusCode::kCorrupt) return status;
    if (passed_over.empty()) first = status;
    passed_over.push_back(fmt::format("{}: {}", candidate.info.path, status.message()));
  }
  return first;
}

}  // namespace

Result<Restored> RestoreWhich(const RestoreParts& parts, const std::string& root, const Which& which, int rank,
                              const State& state, const RestoreOptions& options) {
  if (!which.fall_back()) {
    return UseOne(root, which, [&](const StoredCheckpoint& chosen) {
      return RestoreCheckpoint(parts, chosen, rank, state, options);
    });
  }
  Result<Restored> restored = Error(StatusCode::kNotFound, "no checkpoint under {}", root);
  for (int i = 0; i < kMaxChoices; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> candidates, ChooseCheckpoints(root, which));
    restored = RestoreNewestGood(parts, candidates, rank, state, options);
    // Not found is one that was removed or replaced since it was listed: the newest may be another by now.
    if (restored.ok() || restored.status().code() != StatusCode::kNotFound) break;
  }
  return restored;
}

Status VerifyWhich(const RestoreParts& parts, const std::string& root, const Which& which, const Progress& progress) {
  return UseOne(root, which, [&](const StoredCheckpoint& chosen) { return VerifyCheckpoint(parts, chosen, progress); });
}

Result<CheckpointDetails> InspectWhich(const std::string& root, const Which& which) {
  return UseOne(root, which, [](const StoredCheckpoint& chosen) { return InspectCheckpoint(chosen); });
}

}  // namespace cairn
