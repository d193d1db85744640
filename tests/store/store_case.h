#pragma once

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

/// The queue that this machine would get. A machine that gives none is a test failure.
[[nodiscard]] IoQueueFactory PlainFactory();
[[nodiscard]] std::unique_ptr<IoQueue> MakeQueue(const IoQueueFactory& factory = PlainFactory());

/// A directory in memory, where the machine has one: for tests that run the same few files through thousands of fsyncs
/// and look at the operations' order alone.
class MemoryDir : public TempDir {
 public:
  MemoryDir();
};

/// Starts an asynchronous call and runs the queue until its callback has come.
Status WaitFor(IoQueue& queue, const std::function<void(StatusDone)>& start);

/// A small checkpoint, whose bytes follow from its members: two chunks a shard and a tail that is no whole block.
struct TestSave {
  std::uint64_t step = 1;
  std::uint64_t seed = 0;  ///< Tells two saves of one step apart.
  std::uint64_t shards = 1;
  std::uint64_t generation = 0;
  bool replace = false;
  bool recycle = false;    ///< Over a spare of one of two folders, where there is one.
  std::uint64_t more = 0;  ///< So many blocks more in each shard.
};
[[nodiscard]] std::string ShardContent(const TestSave& save, std::uint64_t shard);
[[nodiscard]] Manifest ManifestOf(const TestSave& save, const std::string& uuid);

/// The attempts of all ranks of a save, each with its own memory.
class TestRanks {
 public:
  TestRanks(IoQueue& queue, const PathAt& root, const TestSave& save, const WriterCheck& still_writer = {});

  Status Begin();
  /// All chunks of all ranks at once.
  Status Write();
  Status Seal();
  Status Commit();
  /// In one where there is one rank, as the engine does.
  Status SealAndCommit();
  Status Abandon();
  /// All of it; abandons after an error, and returns that error.
  Status Save();

  [[nodiscard]] Attempt& rank(std::size_t i) { return *attempts_[i]; }
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  [[nodiscard]] const TestSave& save() const { return save_; }
  [[nodiscard]] const std::shared_ptr<AttemptFolder>& folder(std::size_t rank) const { return folders_[rank]; }
  /// Why the last spare that was not taken was not.
  [[nodiscard]] const std::string& not_recycled() const { return not_recycled_; }
  /// 4096-aligned, a multiple of 4096 long; the header is the first block.
  [[nodiscard]] Bytes memory(std::size_t rank) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Memory {
    std::unique_ptr<std::byte, Free> bytes;
    std::size_t size = 0;
  };
  /// Calls every rank, waits for all, returns the first error.
  Status Each(const std::function<void(std::size_t rank, StatusDone done)>& call);

  IoQueue& queue_;
  const TestSave save_;
  const std::string uuid_;
  std::string not_recycled_;
  std::vector<Memory> memory_;
  std::vector<std::shared_ptr<AttemptFolder>> folders_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
};

Status SaveTo(IoQueue& queue, const PathAt& root, const TestSave& save, const WriterCheck& still_writer = {});
Status Remove(IoQueue& queue, const std::string& root, std::uint64_t step);
/// Retention's removal, which keeps the files of so many ranks as spares where it can, so many folders of them; `why`
/// of the last that it did not keep.
Status Retire(IoQueue& queue, const std::string& root, std::uint64_t step, std::uint64_t shards = 1,
              std::string* why = nullptr, std::uint64_t folders = 1);

/// What the sweep of an open root had to leave.
std::vector<std::string> SweepNow(IoQueue& queue, const std::string& root, const SpareWish& spares = {});
/// Opens the root as its coordinator, and sweeps it; what that had to leave is a test failure.
[[nodiscard]] Result<std::unique_ptr<Root>> OpenRoot(IoQueue& queue, const std::string& path,
                                                     const SpareWish& spares = {});

/// Ok where the step is committed and every byte of its shards is as `save` wrote it.
Status CheckContent(const std::string& root, const TestSave& save);
/// The same of a folder under any name.
Status CheckFolder(const std::string& folder, const TestSave& save);
/// The steps listed under a root, in the list's order. A damaged one, or one that lacks a shard, is a test failure.
[[nodiscard]] std::vector<std::uint64_t> GoodSteps(const std::string& root);
/// All names under a folder, sorted.
[[nodiscard]] std::vector<std::string> Names(const std::string& folder);

[[nodiscard]] std::string ReadAll(const std::string& path);
void WriteAll(const std::string& path, const std::string& content);

}  // namespace cairn
