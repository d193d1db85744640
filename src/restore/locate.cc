#include "restore/locate.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/fields.h"
#include "restore/index_lookup.h"
#include "restore/select.h"
#include "store/names.h"

namespace cairn {
namespace {

// The rank's shard and its kept file, as far as there are any.
std::vector<std::uint32_t> FilesOf(const Manifest& manifest, std::uint64_t rank) {
  const std::string name = ShardName(rank);
  std::vector<std::uint32_t> files;
  for (std::uint32_t s = 0; s < manifest.shards.size(); ++s) {
    const ManifestShard& shard = manifest.shards[s];
    if (shard.kept ? shard.kept->rank == rank : shard.file == name) files.push_back(s);
  }
  return files;
}

// Wanted tensors that the files do not hold in this form.
std::vector<const TensorEntry*> MissingFrom(std::span<const ShardFile> files, std::span<const std::uint32_t> own,
                                            const TensorTable& table, const std::vector<std::uint32_t>& wanted) {
  std::unordered_map<std::string_view, const ShardTensor*> held;
  for (const std::uint32_t file : own) {
    for (const ShardTensor& tensor : files[file].header.tensors) held.emplace(tensor.name, &tensor);
    for (const auto& [alias, holder] : files[file].header.aliases) held.emplace(alias, held.at(holder));
  }
  std::vector<const TensorEntry*> missing;
  for (const std::uint32_t i : wanted) {
    const TensorEntry& entry = table[i];
    const auto found = held.find(entry.name);
    const bool same = found != held.end() && found->second->dtype == entry.dtype &&
                      found->second->shape == entry.shape && found->second->part == entry.part;
    if (!same) missing.push_back(&entry);
  }
  return missing;
}

// Names that are in no header read so far.
std::vector<std::string_view> MissingNames(const OpenedCheckpoint& opened, std::vector<std::string_view> names) {
  std::unordered_set<std::string_view> held;
  for (const ShardFile& file : opened.files) {
    for (const ShardTensor& tensor : file.header.tensors) held.insert(tensor.name);
    for (const auto& [alias, holder] : file.header.aliases) held.insert(alias);
  }
  std::erase_if(names, [&held](std::string_view name) { return held.contains(name); });
  return names;
}

void ReportAllHeadersRead(const EventCallback& on_event, const StoredCheckpoint& checkpoint, const Status& why) {
  if (!on_event) return;
  on_event({.kind = EventKind::kFallBack,
            .severity = Severity::kInfo,
            .step = checkpoint.manifest.step,
            .status = why,
            .message = fmt::format("restore: reading the headers of all {} shards: {}",
                                   checkpoint.manifest.shards.size(), why.message()),
            .phase = "restore",
            .path = checkpoint.info.path});
}

}  // namespace

Result<MatchedTensors> LocateTensors(IoQueue& queue, const StoredCheckpoint& checkpoint, std::uint64_t rank,
                                     bool own_shard, const TensorTable& table, const RestoreOptions& options,
                                     const EventCallback& on_event, OpenedCheckpoint& opened) {
  // A pattern that matches no tensor of the state is an error, whatever was saved.
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> wanted, SelectEntries(table, options.names));
  RestoreOptions all_found = options;
  all_found.allow_missing = false;
  const auto match = [&](const RestoreOptions& how) {
    return MatchTensors(SavedShards(opened.files), rank, table, how);
  };

  const std::vector<std::uint32_t> own = own_shard ? FilesOf(checkpoint.manifest, rank) : std::vector<std::uint32_t>();
  CAIRN_RETURN_IF_ERROR(ReadHeaders(queue, checkpoint, own, opened.files));
  if (opened.files.size() > std::max<std::size_t>(own.size(), 1)) {
    const auto missing = MissingFrom(opened.files, own, table, wanted);
    if (missing.empty()) return match(all_found);
    Result<std::vector<std::uint32_t>> named = LookUpIndex(queue, checkpoint, own, missing);
    Status why = named.status();
    if (named.ok()) {
      CAIRN_RETURN_IF_ERROR(ReadHeaders(queue, checkpoint, *named, opened.files));
      Result<MatchedTensors> matched = match(all_found);
      if (matched.ok()) return matched;
      why = matched.status();
    }
    ReportAllHeadersRead(on_event, checkpoint, why);
  }
  CAIRN_RETURN_IF_ERROR(ReadAllHeaders(queue, checkpoint, opened.files));
  return match(options);
}

Status LocatePart(IoQueue& queue, const StoredCheckpoint& checkpoint, const InspectPart& part,
                  const EventCallback& on_event, OpenedCheckpoint& opened) {
  std::vector<std::uint32_t> own;
  if (part.rank) own = FilesOf(checkpoint.manifest, *part.rank);
  CAIRN_RETURN_IF_ERROR(ReadHeaders(queue, checkpoint, own, opened.files));
  std::vector<std::string_view> missing = MissingNames(opened, {part.names.begin(), part.names.end()});
  if (missing.empty()) return Status::Ok();
  if (opened.files.size() > std::max<std::size_t>(own.size(), 1)) {
    const Result<std::vector<std::uint32_t>> named = LookUpIndex(queue, checkpoint, missing);
    Status why = named.status();
    if (named.ok()) {
      CAIRN_RETURN_IF_ERROR(ReadHeaders(queue, checkpoint, *named, opened.files));
      missing = MissingNames(opened, std::move(missing));
      if (missing.empty()) return Status::Ok();
      why = Error(StatusCode::kNotFound, "{} is not in the shard that the index names", Quoted(missing.front()));
    }
    ReportAllHeadersRead(on_event, checkpoint, why);
  }
  return ReadAllHeaders(queue, checkpoint, opened.files);
}

}  // namespace cairn
