#include "store_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/uuid.h"
#include "format/index.h"
#include "store/names.h"

namespace cairn {
namespace {

constexpr std::size_t kChunk = 2 * kBlock;
// The header, one chunk, and one chunk with a tail.
constexpr std::size_t kShardBytes = kBlock + kChunk + kBlock + 100;

std::unique_ptr<IoQueue> NoQueue(const Status& status) {
  ADD_FAILURE() << status;
  return nullptr;
}

}  // namespace

IoQueueFactory PlainFactory() {
  auto choice = ChooseIoQueue(IoQueueKind::kAuto, 8);
  if (!choice.ok()) return [status = choice.status()]() -> Result<std::unique_ptr<IoQueue>> { return status; };
  return choice->factory;
}

std::unique_ptr<IoQueue> MakeQueue(const IoQueueFactory& factory) {
  auto queue = factory();
  return queue.ok() ? *std::move(queue) : NoQueue(queue.status());
}

MemoryDir::MemoryDir()
    : TempDir(::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path()) {}

Status WaitFor(IoQueue& queue, const std::function<void(StatusDone)>& start) {
  std::optional<Status> outcome;
  start([&outcome](Status status) { outcome = std::move(status); });
  EXPECT_FALSE(outcome.has_value()) << "the callback ran within the call";
  while (!outcome.has_value()) {
    CAIRN_ASSIGN_OR_RETURN([[maybe_unused]] const std::size_t called, queue.RunOnce(Deadline::Infinite()));
  }
  return *outcome;
}

std::string ShardContent(const TestSave& save, std::uint64_t shard) {
  std::string content(kShardBytes + save.more * kBlock, '\0');
  std::uint64_t state = save.step * 1000003 + save.seed * 10007 + shard + 1;
  for (char& c : content) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    c = static_cast<char>(state >> 56);
  }
  // The first block is the header, which begins with the length of the rest.
  for (std::size_t i = 0; i < sizeof(std::uint64_t); ++i) content[i] = static_cast<char>((kBlock - 8) >> (8 * i));
  return content;
}

Manifest ManifestOf(const TestSave& save, const std::string& uuid) {
  Manifest manifest;
  manifest.step = save.step;
  manifest.line = save.line;
  manifest.root = save.root;
  manifest.attempt = uuid;
  manifest.world = save.shards;
  for (std::uint64_t shard = 0; shard < save.shards; ++shard) {
    const std::string content = ShardContent(save, shard);
    manifest.shards.push_back({.file = ShardName(shard),
                               .length = content.size(),
                               .header_digest = Crc32c(std::as_bytes(std::span(content)).first(kBlock))});
  }
  return manifest;
}

namespace {

/// Each shard's run of the index: one tensor. None for a single shard.
std::vector<std::string> IndexRunsOf(const TestSave& save) {
  std::vector<std::string> runs;
  for (std::uint64_t shard = 0; save.shards > 1 && shard < save.shards; ++shard) {
    ShardHeader header;
    header.tensors.push_back({.name = ShardName(shard), .shape = {1}, .end = 4});
    runs.push_back(EncodeIndexRun(header));
  }
  return runs;
}

Status CheckIndex(const std::string& folder, const TestSave& save, const std::optional<ManifestIndex>& found) {
  const std::vector<std::string> runs = IndexRunsOf(save);
  const std::optional<BuiltIndex> expected = runs.empty() ? std::nullopt : BuildIndex(runs);
  const bool same =
      expected.has_value() == found.has_value() &&
      (!found || (ReadAll(folder + "/" + found->file) == expected->bytes && found->length == expected->bytes.size() &&
                  found->head == expected->head_bytes && found->digest == expected->head_digest));
  return same ? Status::Ok() : Error(StatusCode::kCorrupt, "{}: the index differs", folder);
}

}  // namespace

void TestRanks::Free::operator()(std::byte* memory) const { std::free(memory); }

TestRanks::TestRanks(IoQueue& queue, const PathAt& root, const TestSave& save, const WriterCheck& check_writer)
    : queue_(queue), save_(save), uuid_(MakeUuid()) {
  for (std::uint64_t shard = 0; shard < save.shards; ++shard) {
    const std::string content = ShardContent(save, shard);
    const std::size_t size = AlignUp(content.size(), kBlock);
    Memory memory{std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(std::aligned_alloc(kBlock, size))), size};
    std::fill_n(memory.bytes.get(), size, std::byte{0});
    std::copy_n(std::as_bytes(std::span(content)).begin(), content.size(), memory.bytes.get());
    memory_.push_back(std::move(memory));
    folders_.push_back(std::make_shared<AttemptFolder>(root, uuid_, 0755));
    attempts_.push_back(std::make_unique<Attempt>(
        queue, AttemptSpec{.folder = folders_.back(),
                           .step = save.step,
                           .shard = shard,
                           .file_bytes = content.size(),
                           .pin = save.pin,
                           .check_writer = check_writer,
                           .reader_timeout = save.reader_timeout,
                           .spare_folders = save.recycle ? 2U : 0U,
                           .not_recycled = [this](const std::string& why) { not_recycled_ = why; }}));
  }
}

Bytes TestRanks::memory(std::size_t rank) const { return {memory_[rank].bytes.get(), memory_[rank].size}; }

Status TestRanks::Each(const std::function<void(std::size_t rank, StatusDone done)>& call) {
  return WaitFor(queue_, [this, &call](StatusDone done) {
    struct Round {
      std::size_t missing;
      Status first;
      StatusDone done;
    };
    const auto round = std::make_shared<Round>(Round{attempts_.size(), {}, std::move(done)});
    for (std::size_t rank = 0; rank < attempts_.size(); ++rank) {
      call(rank, [round](const Status& status) {
        if (round->first.ok()) round->first = status;
        if (--round->missing == 0) round->done(round->first);
      });
    }
  });
}

Status TestRanks::Begin() {
  if (folders_.size() > 1) {
    if (Status made = RunTaskBlocking(queue_, folders_[0]->Make()); !made.ok()) return made;
    for (std::size_t rank = 1; rank < folders_.size(); ++rank) {
      if (Status opened = RunTaskBlocking(queue_, folders_[rank]->Open()); !opened.ok()) return opened;
    }
  }
  return Each([this](std::size_t rank, StatusDone done) { attempts_[rank]->Begin(std::move(done)); });
}

Status TestRanks::Write() {
  return Each([this](std::size_t rank, StatusDone done) {
    const Bytes data = memory(rank).subspan(kBlock);
    const auto missing = std::make_shared<std::size_t>(2);
    const auto first = std::make_shared<Status>();
    const auto part = [missing, first, done = std::move(done)](const Status& status) {
      if (first->ok()) *first = status;
      if (--*missing == 0) done(*first);
    };
    attempts_[rank]->Write(kBlock, data.first(kChunk), part);
    attempts_[rank]->Write(kBlock + kChunk, data.subspan(kChunk), part);
  });
}

Status TestRanks::Seal() {
  return Each([this](std::size_t rank, StatusDone done) {
    attempts_[rank]->Seal(memory(rank).first(kBlock), std::move(done));
  });
}

Status TestRanks::Commit() {
  return WaitFor(queue_, [this](StatusDone done) {
    attempts_[0]->Commit(ManifestOf(save_, uuid_), IndexRunsOf(save_), save_.replace, std::move(done));
  });
}

Status TestRanks::SealAndCommit() {
  if (attempts_.size() == 1) {
    return WaitFor(queue_, [this](StatusDone done) {
      attempts_[0]->SealAndCommit(memory(0).first(kBlock), ManifestOf(save_, uuid_), save_.replace, std::move(done));
    });
  }
  if (Status status = Seal(); !status.ok()) return status;
  return Commit();
}

Status TestRanks::Abandon() {
  return Each([this](std::size_t rank, StatusDone done) { attempts_[rank]->Abandon(std::move(done)); });
}

Status TestRanks::Save() {
  Status status = Begin();
  if (status.ok()) status = Write();
  if (status.ok()) status = SealAndCommit();
  // The next sweep removes what is left, so the status does not matter here.
  if (!status.ok()) static_cast<void>(Abandon());
  return status;
}

Status SaveTo(IoQueue& queue, const PathAt& root, const TestSave& save, const WriterCheck& check_writer) {
  return TestRanks(queue, root, save, check_writer).Save();
}

Status Remove(IoQueue& queue, const std::string& root, std::uint64_t step) {
  return RemoveCheckpointBlocking(queue, root, step, {.pinned = Pinned::kGoes}).status;
}

Status Retire(IoQueue& queue, const std::string& root, std::uint64_t step, std::uint64_t shards, std::string* why,
              std::uint64_t folders) {
  const OnNotRecycled note = [why](const std::string& reason) {
    if (why != nullptr) *why = reason;
  };
  RemovalOptions options{.spares = {.folders = folders, .shards = shards, .not_recycled = note}};
  return RemoveCheckpointBlocking(queue, root, step, std::move(options)).status;
}

std::vector<std::string> SweepNow(IoQueue& queue, const std::string& root, const SparePolicy& spares) {
  std::optional<Swept> swept;
  Sweep(queue, root, spares, {}, [&swept](Swept result) { swept = std::move(result); });
  while (!swept) EXPECT_TRUE(queue.RunOnce(Deadline::Infinite()).ok());
  if (swept->unnamed) {
    swept->left.pop_back();
    EXPECT_EQ(RunTaskBlocking(queue, RemoveUnnamed(root + "/" + swept->unnamed->folder)), Status::Ok());
  }
  return swept->left;
}

Result<std::unique_ptr<Root>> OpenRoot(IoQueue& queue, const std::string& path, const SparePolicy& spares) {
  Result<std::unique_ptr<Root>> root = Root::Open(queue, {.path = path});
  if (root.ok()) {
    EXPECT_THAT(SweepNow(queue, path, spares), ::testing::IsEmpty());
  }
  return root;
}

Status CheckContent(const std::string& root, const TestSave& save) {
  return CheckFolder(root + "/" + StepName(save.step), save);
}

Status CheckFolder(const std::string& folder, const TestSave& save) {
  CAIRN_ASSIGN_OR_RETURN(StoredCheckpoint found, ReadCheckpointFolder(folder));
  CAIRN_RETURN_IF_ERROR(CheckIndex(folder, save, std::exchange(found.manifest.index, std::nullopt)));
  if (found.manifest != ManifestOf(save, found.info.attempt)) {
    return Error(StatusCode::kCorrupt, "{}: the manifest differs", folder);
  }
  for (std::uint64_t shard = 0; shard < save.shards; ++shard) {
    if (ReadAll(folder + "/" + ShardName(shard)) != ShardContent(save, shard)) {
      return Error(StatusCode::kCorrupt, "{}: shard {} is not what was saved", folder, shard);
    }
  }
  return Status::Ok();
}

std::vector<std::uint64_t> GoodSteps(const std::string& root) {
  std::vector<std::uint64_t> steps;
  const auto list = ListCheckpoints(root);
  if (!list.ok()) {
    ADD_FAILURE() << list.status();
    return steps;
  }
  for (const StoredCheckpoint& checkpoint : *list) {
    EXPECT_TRUE(checkpoint.info.status.ok()) << checkpoint.info.status;
    EXPECT_EQ(CheckShardFiles(checkpoint), Status::Ok());
    steps.push_back(checkpoint.info.step);
  }
  return steps;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

}  // namespace cairn
