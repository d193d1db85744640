#include "tools/in_bucket.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "mirror/headers.h"
#include "store/names.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

/// "s3://bucket/run7/step-00000000000000000070.<attempt>"; of a root only the place.
struct PathInBucket {
  std::string place;
  std::optional<std::uint64_t> step;
  std::string attempt;
};

PathInBucket SplitPathInBucket(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  const std::string_view name = path.substr(std::min(slash, path.size() - 1) + 1);
  const std::size_t dot = std::min(name.find('.'), name.size());
  PathInBucket parts{.step = ParseStepName(name.substr(0, dot))};
  if (parts.step && dot < name.size()) parts.attempt = name.substr(dot + 1);
  parts.place = parts.step ? path.substr(0, slash) : path;
  return parts;
}

Result<std::unique_ptr<Bucket>> OpenBucket(const std::string& place) {
  CAIRN_ASSIGN_OR_RETURN(BucketAddress address, BucketAddress::Parse(place));
  CAIRN_ASSIGN_OR_RETURN(Rclone rclone, Rclone::Find());
  return std::make_unique<Bucket>(std::move(rclone), std::move(address));
}

Result<InBucket> ReadList(const std::string& place) {
  InBucket found;
  CAIRN_ASSIGN_OR_RETURN(found.bucket, OpenBucket(place));
  CAIRN_ASSIGN_OR_RETURN(found.checkpoints, found.bucket->List(Bucket::Rank::kWhole));
  std::vector<CheckpointInfo> infos;
  for (StoredCheckpoint& one : found.checkpoints) {
    one.info.status = found.bucket->CheckObjects(one);
    infos.push_back(one.info);
  }
  found.several_lines = HaveSeveralLines(infos);
  return found;
}

}  // namespace

Result<InBucket> ListInBucket(const std::string& place) {
  if (!SplitPathInBucket(place).step) return ReadList(place);
  return Error(StatusCode::kInvalidArgument, "{}: expected a place of checkpoints, found a checkpoint's folder", place);
}

Result<InBucket> ChooseInBucket(const std::string& path, const std::optional<std::uint64_t>& step) {
  const PathInBucket parts = SplitPathInBucket(path);
  if (parts.step && step) {
    return Error(StatusCode::kInvalidArgument, "{}: a checkpoint's folder takes no step", path);
  }
  CAIRN_ASSIGN_OR_RETURN(InBucket found, ReadList(parts.place));
  std::vector<CheckpointInfo> infos;
  for (const StoredCheckpoint& one : found.checkpoints) infos.push_back(one.info);
  const std::optional<std::uint64_t> wanted = parts.step ? parts.step : step;
  std::erase_if(found.checkpoints, [&](const StoredCheckpoint& one) {
    return (wanted && one.info.step != *wanted) || (!parts.attempt.empty() && one.info.attempt != parts.attempt);
  });
  if (!found.checkpoints.empty()) return found;
  if (infos.empty()) return Error(StatusCode::kNotFound, "there is no checkpoint under {}", parts.place);
  return NoSuchStep(parts.place, std::to_string(*wanted) + (parts.attempt.empty() ? "" : ", attempt " + parts.attempt),
                    infos);
}

Result<std::optional<WriterRecord>> WriterInBucket(const std::string& place) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bucket> bucket, OpenBucket(place));
  return bucket->ReadWriter();
}

TensorSource HeadersInBucket(const Bucket& bucket, const StoredCheckpoint& checkpoint) {
  const auto read = [&bucket](const StoredCheckpoint& of, std::span<const std::uint32_t> shards,
                              std::vector<ShardFile>& files) -> Status {
    std::vector<WantedHeader> wanted;
    for (const std::uint32_t shard : shards) {
      wanted.push_back({.checkpoint = &of, .shard = &of.manifest.shards[shard], .file = &files[shard]});
    }
    FetchHeaders(bucket, wanted);
    for (const WantedHeader& one : wanted) CAIRN_RETURN_IF_ERROR(one.status);
    return Status::Ok();
  };
  return TensorSource::OfHeaders(checkpoint, read);
}

}  // namespace cairn::tools
