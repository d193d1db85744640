#include "engine/shard_writer.h"

#include <utility>

#include "base/status_macros.h"
#include "format/index.h"
#include "store/names.h"

namespace cairn {

ShardWriter::ShardWriter(EngineContext& context, SaveTask& task, Callbacks callbacks)
    : context_(context), task_(task), callbacks_(std::move(callbacks)) {}

template <typename... Args>
std::function<void(Args...)> ShardWriter::Later(void (ShardWriter::*then)(Args...)) {
  ++in_flight_;
  return [self = shared_from_this(), then, inbox = context_.inbox](Args... args) {
    inbox->Post([self, then, ... args = std::move(args)]() mutable {
      --self->in_flight_;
      ((*self).*then)(std::move(args)...);
    });
  };
}

bool ShardWriter::Ends(const Status& status) {
  if (stage_ == Stage::kStopped) {
    callbacks_.quiet();
  } else if (!status.ok()) {
    callbacks_.failed(status);
  } else {
    return false;
  }
  return true;
}

void ShardWriter::MakeHeader(std::shared_ptr<AttemptFolder> folder, ChunkSource& source) {
  if (!stage_.MoveTo(Stage::kPlanning)) return;
  source_ = &source;
  folder_ = std::move(folder);
  context_.parts.workers->Post([this, self = shared_from_this(), done = Later(&ShardWriter::OnHeader)] {
    const Group& group = *context_.parts.group;
    const ShardHeader header = task_.snapshot().Header(
        task_.plan().step, folder_->uuid(), static_cast<std::uint64_t>(group.rank()), context_.parts.options.checksums);
    const bool indexed = group.rank() == 0 && group.size() > 1;
    done(std::make_shared<Planned>(
        Planned{.header = ShardHeaderWriter::Make(header), .index_run = indexed ? EncodeIndexRun(header) : ""}));
  });
}

void ShardWriter::OnHeader(std::shared_ptr<Planned> planned) {
  if (Ends(planned->header.status())) return;
  if (!stage_.MoveTo(Stage::kReady)) return;
  header_ = *std::move(planned->header);
  index_run_ = std::move(planned->index_run);
  AttemptSpec spec{.folder = folder_,
                   .step = task_.plan().step,
                   .shard = static_cast<std::uint64_t>(context_.parts.group->rank()),
                   .file_bytes = header_->data_begin() + task_.snapshot().bytes(),
                   .pin = task_.plan().pin,
                   .file_mode = context_.parts.options.file_mode,
                   .check_writer = context_.parts.check_writer,
                   // The other ranks wait twice as long for the outcome.
                   .reader_timeout = context_.parts.options.group_timeout / 2,
                   .spare_folders = context_.spare_folders(),
                   .not_recycled = context_.not_recycled};
  attempt_ = std::make_unique<Attempt>(*context_.queue, std::move(spec));
}

void ShardWriter::Begin() {
  if (!stage_.MoveTo(Stage::kBeginning)) return;
  attempt_->Begin(Later(&ShardWriter::OnBegun));
}

void ShardWriter::OnBegun(Status status) {
  if (Ends(status)) return;
  if (!stage_.MoveTo(Stage::kWriting)) return;
  callbacks_.begun();
}

void ShardWriter::SubmitWrite() {
  std::shared_ptr<FilledChunk> chunk = std::move(ready_.front());
  ready_.pop_front();
  const auto begun = SaveTask::Clock::now();
  ++in_flight_;
  ++context_.writes_in_flight;
  const std::uint64_t offset = header_->data_begin() + chunk->begin;
  const Bytes memory(chunk->buffer.data(), AlignUp(chunk->end - chunk->begin, kBlock));
  attempt_->Write(offset, memory, [this, self = shared_from_this(), chunk, begun](const Status& status) {
    --in_flight_;
    --context_.writes_in_flight;
    context_.parts.trace->Span("disk", "write", begun, SaveTask::Clock::now(), task_.plan().step,
                               chunk->end - chunk->begin);
    OnChunkWritten(chunk, status);
  });
}

void ShardWriter::OnChunkWritten(const std::shared_ptr<FilledChunk>& chunk, const Status& status) {
  if (Ends(status)) return;
  written_ += chunk->end - chunk->begin;
  // Only after the write: the header, which holds the checksums, is written last, so the disk need not wait for them.
  // And data that one core has just copied is slower to read from its cache than from memory.
  source_->Sum(chunk);
  SealIfWritten();
}

std::optional<Deadline> ShardWriter::release_by() const {
  if (stage_ == Stage::kHeld) return release_by_;
  return std::nullopt;
}

void ShardWriter::SealIfWritten() {
  if (stage_ != Stage::kWriting && stage_ != Stage::kHeld) return;
  std::optional<StreamSums> sums = written_ == task_.snapshot().bytes() ? source_->sums() : std::nullopt;
  if (!sums) return;
  if (stage_ == Stage::kWriting) {
    task_.MarkWritten(attempt_->bytes_written(), attempt_->direct(), attempt_->recycled());
    if (task_.held()) {
      if (!stage_.MoveTo(Stage::kHeld)) return;
      release_by_ = Deadline::In(task_.plan().hold);
    }
  }
  if (task_.held()) return;
  if (!task_.MarkCommitting()) return callbacks_.failed(task_.cancelled().value_or(task_.status()));
  if (!stage_.MoveTo(Stage::kSealing)) return;
  if (context_.parts.options.checksums) header_->SetSums(sums->checksums);
  nonfinite_ = sums->nonfinite;
  if (context_.parts.group->size() > 1) {
    return attempt_->Seal(std::as_bytes(std::span(header_->bytes())), Later(&ShardWriter::OnSealed));
  }
  shards_ = {shard()};
  BeginCommit();
}

void ShardWriter::BeginCommit() {
  context_.line_record.Ensure(*context_.queue, context_.parts.write_line, task_.plan().line,
                              Later(&ShardWriter::OnLineRecorded));
}

void ShardWriter::OnLineRecorded(Status status) {
  if (stage_ == Stage::kStopped || !status.ok()) return OnCommitted(std::move(status));
  const Manifest manifest = MakeManifest(std::move(shards_));
  const bool replace = task_.plan().replace;
  if (context_.parts.group->size() > 1) {
    return attempt_->Commit(manifest, std::move(index_runs_), replace, Later(&ShardWriter::OnCommitted));
  }
  const Bytes header = std::as_bytes(std::span(header_->bytes()));
  attempt_->SealAndCommit(header, manifest, replace, Later(&ShardWriter::OnCommitted));
}

void ShardWriter::OnSealed(Status status) {
  if (Ends(status)) return;
  if (!stage_.MoveTo(Stage::kSealed)) return;
  callbacks_.sealed();
}

ManifestShard ShardWriter::shard() const {
  return {.file = ShardName(static_cast<std::uint64_t>(context_.parts.group->rank())),
          .length = header_->data_begin() + task_.snapshot().bytes(),
          .header_digest = header_->digest(),
          .nonfinite = nonfinite_};
}

Manifest ShardWriter::MakeManifest(std::vector<ManifestShard> shards) const {
  const SavePlan& plan = task_.plan();
  const std::size_t world = shards.size();
  return {.step = plan.step,
          .line = plan.line,
          .root = context_.parts.root_id,
          .attempt = folder_->uuid(),
          .parent = plan.parent,
          .world = world,
          .shards = std::move(shards)};
}

void ShardWriter::Commit(std::vector<ManifestShard> shards, std::vector<std::string> index_runs) {
  if (!stage_.MoveTo(Stage::kCommitting)) return;
  index_runs.at(0) = std::move(index_run_);
  index_runs_ = std::move(index_runs);
  nonfinite_ = WorstOf(shards);
  shards_ = std::move(shards);
  BeginCommit();
}

void ShardWriter::OnCommitted(Status status) {
  // It was given up before the rename.
  stage_ == Stage::kStopped ? callbacks_.quiet() : callbacks_.committed(std::move(status));
}

void ShardWriter::Stop() {
  if (!stage_.MoveTo(Stage::kStopped)) return;
  ready_.clear();
}

void ShardWriter::Abandon(const std::shared_ptr<AttemptFolder>& folder, StatusDone done) {
  const StatusDone later = [self = shared_from_this(), folder, inbox = context_.inbox,
                            done = std::move(done)](const Status& status) {
    inbox->Post([self, done, status] {
      --self->in_flight_;
      done(status);
    });
  };
  ++in_flight_;
  if (attempt_ != nullptr) return attempt_->Abandon(later);
  if (folder != nullptr) return RunInBackground(*context_.queue, folder->Remove(), later);
  later(Status::Ok());
}

}  // namespace cairn
