// Reads a whole checkpoint of hostile text by restore, verify and the tools. tests/fuzz/folder.h describes the input.

#include <algorithm>

#include "device/host_device.h"
#include "fuzz/check.h"
#include "fuzz/folder.h"
#include "fuzz/inline_queue.h"
#include "fuzz/oracle.h"
#include "restore/reader.h"
#include "restore/source.h"
#include "store/names.h"

namespace cairn {
namespace {

class Reading {
 public:
  Reading() {
    auto pool = BufferPool::Make(kChunks * kChecksumBlock, kChecksumBlock, 1);
    Require(pool.ok(), "there is memory for a pool", pool.status().message());
    pool_ = *std::move(pool);
  }

  void Read(std::string_view input) {
    folder_.Write(input);
    const Result<StoredCheckpoint> stored = ReadCheckpointFolder(folder_.path());
    if (!stored.ok()) return RequireRefusal(stored.status(), folder_.path());
    if (!DecodeHeaders(stored->manifest)) {
      // The same reader: a header that it refuses must make the checkpoint fail.
      Require(!VerifyCheckpoint(Parts(), *stored, {}).ok(), "a header that is refused fails the checkpoint");
    }
    const Status verified = Verify(*stored);
    Restore(*stored, verified);
    if (!folder_.plan().inspect) return;
    const Result<CheckpointDetails> details = InspectCheckpoint(*stored);
    if (!details.ok()) RequireRefusal(details.status(), folder_.path());
    Require(details.ok() || !verified.ok(), "a verified checkpoint can be listed");
    ReadTensors(*stored, verified);
  }

 private:
  static constexpr std::uint64_t kChunks = 3;

  [[nodiscard]] RestoreParts Parts() {
    return {.queue = InlineQueue::Make,
            .pool = pool_.get(),
            .workers = &workers_,
            .device = [this](DeviceId id) { return Result<Device*>(id == device_->id() ? device_.get() : nullptr); },
            .queue_depth = 2};
  }

  // Reads the headers of the manifest's shards; the others stay empty. False if one is refused.
  bool DecodeHeaders(const Manifest& manifest) {
    const std::vector<FuzzedShard>& shards = folder_.shards();
    headers_.assign(shards.size(), {});
    bool all = true;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (!Names(manifest, shards[i])) continue;
      Result<ShardHeader> header =
          DecodeShardHeader(std::as_bytes(std::span(shards[i].header)), shards[i].file_bytes(), shards[i].name);
      all = all && header.ok();
      if (header.ok()) headers_[i] = *std::move(header);
    }
    return all;
  }
  static bool Names(const Manifest& manifest, const FuzzedShard& shard) {
    return std::any_of(manifest.shards.begin(), manifest.shards.end(),
                       [&](const ManifestShard& named) { return named.file == shard.name; });
  }

  Status Verify(const StoredCheckpoint& stored) {
    Status verified = VerifyCheckpoint(Parts(), stored, {});
    if (!verified.ok()) RequireRefusal(verified, folder_.path());
    for (std::size_t i = 0; i < headers_.size() && verified.ok(); ++i) {
      const FuzzedShard& shard = folder_.shards()[i];
      if (!Names(stored.manifest, shard)) continue;
      Require(!shard.cut, "a truncated shard is detected", shard.name);
      Require(!shard.flipped || (*shard.flipped >= shard.header.size() && !headers_[i].checksums),
              "a flipped bit is detected", shard.name);
    }
    return verified;
  }

  void Restore(const StoredCheckpoint& stored, const Status& verified) {
    const Plan& plan = folder_.plan();
    const RestoreTargets wanted(folder_, headers_);
    const RestoreOptions options{.allow_missing = plan.allow_missing};
    const Result<Restored> restored = RestoreCheckpoint(Parts(), stored, plan.rank, wanted.state(), options);
    if (restored.ok()) {
      wanted.RequireRestored(*restored);
      const bool has_shard = plan.rank < headers_.size() && folder_.shards()[plan.rank].name == ShardName(plan.rank);
      Values own = has_shard ? headers_[plan.rank].values : Values();
      if (has_shard) {
        for (const LongValue& one : headers_[plan.rank].long_values) own[one.name] = restored->values.at(one.name);
      }
      Require(EncodeValues(restored->values) == EncodeValues(own), "a rank gets its own values");
      return;
    }
    if (restored.status().code() == StatusCode::kInvalidArgument) return wanted.RequireUntouched();
    RequireRefusal(restored.status(), folder_.path());
    Require(!verified.ok(), "a verified checkpoint can be restored", restored.status().message());
  }

  // Reads all tensors into memory of exactly their sizes.
  void ReadTensors(const StoredCheckpoint& stored, const Status& verified) {
    Result<TensorSource> source = TensorSource::OpenCheckpoint(stored);
    const Status selected = source.ok() ? source->SelectRange(Parts(), 0, source->files()) : source.status();
    if (!selected.ok()) return RequireRefusal(selected, folder_.path());
    std::vector<std::vector<std::byte>> memory;
    std::vector<TensorSource::Piece> pieces;
    for (const StoredTensor& tensor : source->tensors()) {
      memory.emplace_back(tensor.info.bytes);
      pieces.push_back({.tensor = &tensor, .begin = 0, .end = tensor.info.bytes, .to = memory.back().data()});
    }
    const Status read = source->Read(Parts(), pieces);
    if (!read.ok()) RequireRefusal(read, folder_.path());
    Require(read.ok() || !verified.ok(), "a verified checkpoint can be read", read.message());
    for (std::size_t i = 0; i < pieces.size() && read.ok(); ++i) {
      const FuzzedShard& shard = *std::find_if(folder_.shards().begin(), folder_.shards().end(),
                                               [&](const auto& s) { return s.name == pieces[i].tensor->info.file; });
      if (shard.flipped) continue;
      Require(std::equal(memory[i].begin(), memory[i].end(),
                         reinterpret_cast<const std::byte*>(shard.data) + pieces[i].tensor->begin),
              "a tensor's bytes are the shard's", pieces[i].tensor->info.name);
    }
  }

  FuzzedFolder folder_;
  // In the order of the folder's shards.
  std::vector<ShardHeader> headers_;
  WorkerPool workers_{"fuzz", 1};
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<HostDevice> device_ = HostDevice::Make({.id = {.kind = DeviceKind::kCuda}}, workers_);
};

}  // namespace
}  // namespace cairn

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static cairn::Reading reading;
  reading.Read({reinterpret_cast<const char*>(data), size});
  return 0;
}
