#include "mirror_case.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/status_macros.h"
#include "store/names.h"
#include "store/remove.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> ReadFolder(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files.emplace(entry.path().filename(), ReadWholeFile(entry.path()));
  }
  return files;
}

fs::path FastFolder() { return ::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : fs::temp_directory_path(); }

}  // namespace

IoQueueFactory PlainFactory() {
  const auto choice = ChooseIoQueue(IoQueueKind::kAuto, 8);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice->factory;
}

IoQueueFactory ThreadsFactory() {
  const auto choice = ChooseIoQueue(IoQueueKind::kThreads, 8);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice->factory;
}

std::unique_ptr<IoQueue> MakeQueue(const IoQueueFactory& factory) {
  auto queue = factory();
  EXPECT_TRUE(queue.ok()) << queue.status();
  return queue.ok() ? *std::move(queue) : nullptr;
}

std::unique_ptr<Mirror> OpenMirror(IoQueue& queue, const MirrorOptions& options) {
  auto mirror = Mirror::Open(queue, options);
  EXPECT_TRUE(mirror.ok()) << mirror.status();
  return mirror.ok() ? *std::move(mirror) : nullptr;
}

Result<std::vector<std::uint64_t>> CopyAll(Mirror& mirror) {
  std::vector<std::uint64_t> steps;
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<Mirror::Copied> copied, mirror.CopyNext([] { return false; }));
    if (!copied) return steps;
    steps.push_back(copied->info.step);
  }
}

MirrorCase::MirrorCase() : base_(FastFolder()) {
  fs::create_directory(base_ / "disk");
  const auto queue = MakeQueue();
  const auto opened = Root::Open(*queue, {.path = root_});
  EXPECT_TRUE(opened.ok()) << opened.status();
  id_ = (*opened)->id();
}

StoredCheckpoint MirrorCase::Save(std::uint64_t step, std::uint32_t seed, std::uint64_t line) {
  CheckpointContent content{.step = step, .line = line, .root = id_};
  content.attempt = fmt::format("attempt-{}-{}-{}", line, step, seed);
  const auto tensor_seed = static_cast<std::uint32_t>(100 * step + 10 * seed + line);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    content.shards.push_back({.tensors = {MakeTensor("bias", DType::kF32, {7}, tensor_seed + 5 + rank),
                                          MakeTensor("weight", DType::kF32, {elements}, tensor_seed + rank)}});
  }
  if (frozen) {
    content.kept.push_back({.origin = {.rank = 0, .step = 1, .attempt = "frozen"},
                            .content = {.tensors = {MakeTensor("base", DType::kBF16, {500'003}, *frozen)}}});
  }
  // As a commit: the folder appears whole.
  const std::string draft = base_ / "draft";
  const std::string written = WriteCheckpoint(draft, content);
  saved_[content.attempt] = ReadFolder(written);
  fs::remove_all(base_ / "old");
  if (fs::exists(StepFolder(step))) fs::rename(StepFolder(step), base_ / "old");
  fs::rename(written, StepFolder(step));
  const auto stored = ReadCheckpointFolder(StepFolder(step));
  EXPECT_TRUE(stored.ok()) << stored.status();
  return *stored;
}

Status MirrorCase::Retire(std::uint64_t step) const {
  const auto queue = MakeQueue();
  return RemoveCheckpointBlocking(*queue, root_, step, {.spares = {.folders = 1, .shards = 2}}).status;
}

Status MirrorCase::Compare(const std::string& target, std::uint64_t step) const {
  return CompareFolder(target + "/" + StepName(step));
}

Status MirrorCase::CompareFolder(const std::string& folder) const {
  CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint found, ReadCheckpointFolder(folder));
  const auto saved = saved_.find(found.info.attempt);
  if (saved == saved_.end()) return Error(StatusCode::kCorrupt, "{}: nobody saved it", folder);
  std::map<std::string, std::string> files = ReadFolder(folder);
  files.erase(std::string(kSuspectName));
  files.erase(std::string(kPinName));
  return files == saved->second ? Status::Ok() : Error(StatusCode::kCorrupt, "{} is not what was saved", folder);
}

std::vector<std::uint64_t> MirrorCase::GoodSteps(const std::string& target) const {
  std::vector<std::uint64_t> steps;
  const auto list = ListInfos(target);
  EXPECT_TRUE(list.ok()) << list.status();
  for (const CheckpointInfo& info : *list) {
    EXPECT_EQ(info.status, Status::Ok());
    EXPECT_EQ(Compare(target, info.step), Status::Ok());
    EXPECT_FALSE(info.copy) << "the target has the root's id";
    steps.push_back(info.step);
  }
  return steps;
}

std::vector<std::string> MirrorCase::Leftovers(const std::string& folder) const {
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().string().substr(folder.size() + 1);
    const std::string name = entry.path().filename();
    const bool is_of_mirrors = path.starts_with(kMirrorsName) && !ParseStepName(name) && !name.ends_with(".new");
    if (path.starts_with("step-") || name == kLockName || name == kWriterName || is_of_mirrors) continue;
    left.push_back(path);
  }
  return left;
}

MirrorOptions MirrorCase::Options(const MirrorRules& rules) {
  return {.root = root_,
          .target = target_,
          .rules = rules,
          .wait = std::chrono::milliseconds(50),
          .on_note = [this](const std::string& note) { notes_.push_back(note); }};
}

std::string MirrorCase::StepFolder(std::uint64_t step) const { return root_ + "/" + StepName(step); }

void MirrorCase::FlipABit(std::uint64_t step, std::uint32_t shard, std::uint64_t offset) const {
  const std::string path = StepFolder(step) + "/" + ShardName(shard);
  std::string bytes = ReadWholeFile(path);
  bytes.at(offset) = static_cast<char>(bytes.at(offset) ^ 1);
  WriteWholeFile(path, bytes);
}

}  // namespace cairn
