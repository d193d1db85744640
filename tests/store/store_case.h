#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "store/attempt.h"
#include "store/list.h"
#include "store/pins.h"
#include "store/remove.h"
#include "store/root.h"
#include "testing/temp_dir.h"

namespace cairn {

/// The default queue of this machine. None is a test failure.
[[nodiscard]] IoQueueFactory PlainFactory();
[[nodiscard]] std::unique_ptr<IoQueue> MakeQueue(const IoQueueFactory& factory = PlainFactory());

/// A directory in memory if possible, for tests that run a few files through thousands of fsyncs and only check the
/// order of operations.
class MemoryDir : public TempDir {
 public:
  MemoryDir();
};

/// Starts an asynchronous call and runs the queue until its callback has come.
Status WaitFor(IoQueue& queue, const std::function<void(StatusDone)>& start);

/// A small checkpoint with content derived from its members: two chunks for each shard, the last one not a whole block.
struct TestSave {
  std::uint64_t step = 1;
  /// Distinguishes saves of one step.
  std::uint64_t seed = 0;
  std::uint64_t shards = 1;
  std::uint64_t line = 0;
  std::string root = {};
  bool replace = false;
  /// Committed pinned.
  bool pin = false;
  /// Uses a spare from one of two folders, if there is one.
  bool recycle = false;
  /// How long a replacement waits for readers.
  std::chrono::nanoseconds reader_timeout{};
  /// Additional blocks in each shard.
  std::uint64_t more = 0;
};
[[nodiscard]] std::string ShardContent(const TestSave& save, std::uint64_t shard);
[[nodiscard]] Manifest ManifestOf(const TestSave& save, const std::string& uuid);

/// The attempts of all ranks of a save, each with its own memory.
class TestRanks {
 public:
  TestRanks(IoQueue& queue, const PathAt& root, const TestSave& save, const WriterCheck& check_writer = {});

  Status Begin();
  /// All chunks of all ranks at once.
  Status Write();
  Status Seal();
  Status Commit();
  /// As one call for a single rank, like the engine.
  Status SealAndCommit();
  Status Abandon();
  /// All steps. Abandons after an error and returns it.
  Status Save();

  [[nodiscard]] Attempt& rank(std::size_t i) { return *attempts_[i]; }
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  [[nodiscard]] const TestSave& save() const { return save_; }
  [[nodiscard]] const std::shared_ptr<AttemptFolder>& folder(std::size_t rank) const { return folders_[rank]; }
  /// Why the last spare was rejected.
  [[nodiscard]] const std::string& not_recycled() const { return not_recycled_; }
  /// 4096-aligned in address and length; the header is the first block.
  [[nodiscard]] Bytes memory(std::size_t rank) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Memory {
    std::unique_ptr<std::byte, Free> bytes;
    std::size_t size = 0;
  };
  /// Calls `call` for every rank, waits for all, returns the first error.
  Status Each(const std::function<void(std::size_t rank, StatusDone done)>& call);

  IoQueue& queue_;
  const TestSave save_;
  const std::string uuid_;
  std::string not_recycled_;
  std::vector<Memory> memory_;
  std::vector<std::shared_ptr<AttemptFolder>> folders_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
};

Status SaveTo(IoQueue& queue, const PathAt& root, const TestSave& save, const WriterCheck& check_writer = {});
Status Remove(IoQueue& queue, const std::string& root, std::uint64_t step);
/// Removal by retention: keeps the files of the first `shards` ranks as spares, in up to `folders` folders. `why`
/// receives the last reason for not keeping a file.
Status Retire(IoQueue& queue, const std::string& root, std::uint64_t step, std::uint64_t shards = 1,
              std::string* why = nullptr, std::uint64_t folders = 1);

/// Returns what the sweep of an open root had to leave, but for a complete attempt, which it then removes.
std::vector<std::string> SweepNow(IoQueue& queue, const std::string& root, const SparePolicy& spares = {});
/// Opens the root as coordinator and sweeps it. Leftovers are a test failure.
[[nodiscard]] Result<std::unique_ptr<Root>> OpenRoot(IoQueue& queue, const std::string& path,
                                                     const SparePolicy& spares = {});

/// Ok if the step is committed and every byte of its shards is as `save` wrote it.
Status CheckContent(const std::string& root, const TestSave& save);
/// The same for a folder of any name.
Status CheckFolder(const std::string& folder, const TestSave& save);
/// The steps listed under a root, in list order. A damaged step or a missing shard is a test failure.
[[nodiscard]] std::vector<std::uint64_t> GoodSteps(const std::string& root);
/// All names under a folder, sorted.
[[nodiscard]] std::vector<std::string> Names(const std::string& folder);

[[nodiscard]] std::string ReadAll(const std::string& path);
void WriteAll(const std::string& path, const std::string& content);

}  // namespace cairn
