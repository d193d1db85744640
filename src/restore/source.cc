#include "restore/source.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "restore/open.h"
#include "restore/pipeline.h"
#include "restore/plan.h"

namespace cairn {

std::vector<StoredTensor> ListTensors(std::span<const ShardFile> files, std::span<const std::string> names) {
  std::vector<StoredTensor> list;
  for (std::uint32_t s = 0; s < files.size(); ++s) {
    if (!files[s].has_header) continue;
    const ShardHeader& header = files[s].header;
    const auto stored = [&](const ShardTensor& tensor) {
      return StoredTensor{.info = {.name = tensor.name,
                                   .dtype = tensor.dtype,
                                   .shape = tensor.shape,
                                   .bytes = tensor.end - tensor.begin,
                                   .file = names[s],
                                   .part = tensor.part},
                          .shard = s,
                          .begin = tensor.begin};
    };
    std::map<std::string_view, const ShardTensor*> holders;
    for (const ShardTensor& tensor : header.tensors) {
      list.push_back(stored(tensor));
      if (!header.aliases.empty()) holders.emplace(tensor.name, &tensor);
    }
    for (const auto& [alias, holder] : header.aliases) {
      list.push_back(stored(*holders.at(holder)));
      list.back().info.name = alias;
      list.back().info.alias_of = holder;
    }
  }
  std::ranges::sort(list, [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.info.name, a.shard) < std::tie(b.info.name, b.shard);
  });
  return list;
}

Result<TensorSource> TensorSource::OpenCheckpoint(const StoredCheckpoint& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, LockCheckpoint(checkpoint));
  TensorSource source;
  source.checkpoint_ = checkpoint;
  source.lock_ = std::move(opened.lock);
  source.files_ = std::move(opened.files);
  source.names_ = ShardNames(checkpoint);
  return source;
}

TensorSource TensorSource::OfHeaders(const StoredCheckpoint& checkpoint, HeaderReader read) {
  TensorSource source;
  source.checkpoint_ = checkpoint;
  source.read_headers_ = std::move(read);
  source.files_.resize(checkpoint.manifest.shards.size());
  source.names_ = ShardNames(checkpoint);
  return source;
}

Result<TensorSource> TensorSource::OpenFile(const RestoreParts& parts, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_ASSIGN_OR_RETURN(ShardFile file, OpenTensorFile(*queue, path));
  TensorSource source;
  source.metadata_ = file.header.metadata;
  source.files_.push_back(std::move(file));
  source.names_.push_back(std::filesystem::path(path).filename().string());
  source.tensors_ = ListTensors(source.files_, source.names_);
  return source;
}

Status TensorSource::Select(const RestoreParts& parts, std::span<const std::uint32_t> files) {
  tensors_.clear();
  if (checkpoint_) {
    for (ShardFile& file : files_) Forget(file);
    if (read_headers_) {
      CAIRN_RETURN_IF_ERROR(read_headers_(*checkpoint_, files, files_));
    } else {
      CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
      CAIRN_RETURN_IF_ERROR(ReadHeaders(*queue, *checkpoint_, files, files_));
    }
  }
  if (!files.empty()) tensors_ = ListTensors(files_, names_);
  return Status::Ok();
}

Status TensorSource::SelectRange(const RestoreParts& parts, std::uint32_t first, std::uint32_t end) {
  end = std::min(end, files());
  std::vector<std::uint32_t> range(end - std::min(first, end));
  std::iota(range.begin(), range.end(), first);
  return Select(parts, range);
}

Result<std::vector<const StoredTensor*>> TensorSource::Find(const RestoreParts& parts,
                                                            std::span<const TensorPlace> places) {
  std::vector<std::uint32_t> files;
  for (const TensorPlace& place : places) files.push_back(place.file);
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  CAIRN_RETURN_IF_ERROR(Select(parts, files));
  std::vector<const StoredTensor*> found;
  const auto before = [](const StoredTensor& tensor, const TensorPlace& place) {
    return std::tie(tensor.info.name, tensor.shard) < std::tie(place.name, place.file);
  };
  for (const TensorPlace& place : places) {
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), place, before);
    if (at == tensors_.end() || at->info.name != place.name || at->shard != place.file) {
      return Error(StatusCode::kInternal, "{}: \"{}\" is no longer in this file", names_[place.file], place.name);
    }
    found.push_back(&*at);
  }
  return found;
}

Status TensorSource::Read(const RestoreParts& parts, std::span<const Piece> pieces) {
  std::vector<StridedLayout> layouts;
  layouts.reserve(pieces.size());
  std::vector<std::vector<PlannedCopy>> copies(files_.size());
  for (const Piece& piece : pieces) {
    const std::uint64_t bytes = piece.end - piece.begin;
    if (bytes == 0) continue;
    layouts.push_back({.base = piece.to, .row_bytes = bytes, .bytes = bytes});
    copies[piece.tensor->shard].push_back({.begin = piece.tensor->begin + piece.begin,
                                           .end = piece.tensor->begin + piece.end,
                                           .target = &layouts.back(),
                                           .name = piece.tensor->info.name});
  }
  return ReadCopies(parts, std::move(copies));
}

Result<MatchedTensors> TensorSource::Match(const TensorTable& table) const {
  return MatchTensors(SavedShards(files_), 0, table, {});
}

Status TensorSource::ReadCopies(const RestoreParts& parts, std::vector<std::vector<PlannedCopy>> copies) {
  std::vector<PlannedRead> reads;
  for (std::uint32_t s = 0; s < files_.size(); ++s) {
    if (copies[s].empty()) continue;
    const auto of_shard = PlanReads(s, files_[s].header, copies[s], parts.pool->chunk_bytes());
    reads.insert(reads.end(), of_shard.begin(), of_shard.end());
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, parts.queue());
  DeviceCopies no_devices;
  Pipeline pipeline(parts, std::move(queue), files_, reads, copies, no_devices);
  Status status = pipeline.Run({}, {});
  return checkpoint_ && !status.ok() ? ExplainFailure(*checkpoint_, std::move(status)) : status;
}

}  // namespace cairn
