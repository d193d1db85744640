// The end of a save of many ranks: from the last rank's "prepared" message to the step's rename.
//
//   build/release/bin/bench_micro --dir DIR --benchmark_filter=ranks
//
// Of 1,024 ranks with 1,000 tensors each, rank 0 is the library. This file simulates the others: once the attempt has
// its folder, they write their shards into it, with the library's headers and holes for data, and report that they are
// prepared; the last one when everything else is done. The target is at most 0.2 s. The headers are in the page cache,
// so the time of a network filesystem is not included.
//
// Peer: the same work sequentially, over the shards of a committed step: open each, read, checksum and decode its
// header; then build and write the index, write a manifest of the same length, fsyncs, rename. Counters: the time until
// the manifest is made, which covers the rest of headers and index, and from there to the rename.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/wiring.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/unique_fd.h"
#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "cairn/cairn.h"
#include "cairn/group.h"
#include "engine/agreement.h"
#include "format/index.h"
#include "store/names.h"
#include "testing/forwarding_queue.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;
using namespace literals;

double Between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// The progress of rank 0's queues in the current save. Safe from any thread.
class Watch {
 public:
  void Forget() {
    const std::lock_guard lock(mutex_);
    folder_made_ = folder_synced_ = shard_closed_ = false;
    shard_ = folder_ = -1;
  }
  void Submitted(const IoRequest& request) {
    const std::lock_guard lock(mutex_);
    ++under_way_;
    const std::string& path = request.path.text();
    if (request.op == IoOp::kOpen && InAttempt(path) && path.ends_with(kManifestName)) manifest_ = Clock::now();
  }
  void Completed(const IoRequest& request, std::int64_t result) {
    const std::lock_guard lock(mutex_);
    const std::string& path = request.path.text();
    const auto fd = static_cast<int>(result);
    const bool in_attempt = InAttempt(path);
    if (request.op == IoOp::kMkdir && in_attempt) folder_made_ = true;
    if (request.op == IoOp::kOpen && in_attempt && path.ends_with(ShardName(0))) shard_ = fd;
    if (request.op == IoOp::kOpen && in_attempt && (request.flags & O_DIRECTORY) != 0) folder_ = fd;
    if (request.op == IoOp::kFsync && request.fd == folder_) folder_synced_ = true;
    if (request.op == IoOp::kClose && request.fd == shard_) shard_closed_ = true;
    if (request.op == IoOp::kRename && request.path2.text().find("/step-") != std::string::npos)
      renamed_ = Clock::now();
  }
  // By then it has submitted the next operation.
  void CalledBack() {
    const std::lock_guard lock(mutex_);
    --under_way_;
    changed_.notify_all();
  }
  void WaitForFolder() {
    Wait([this] { return folder_made_; });
  }
  // Waits until rank 0 is prepared and idle.
  void WaitPrepared() {
    Wait([this] { return folder_synced_ && shard_closed_ && under_way_ == 0; });
  }

  [[nodiscard]] Clock::time_point manifest() const { return manifest_; }
  [[nodiscard]] Clock::time_point renamed() const { return renamed_; }

 private:
  static bool InAttempt(const std::string& path) { return path.find("/.attempt-") != std::string::npos; }
  template <typename Until>
  void Wait(Until until) {
    std::unique_lock lock(mutex_);
    Expect(changed_.wait_for(lock, std::chrono::minutes(1), until), "ranks: rank 0 makes no progress");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool folder_made_ = false;
  bool folder_synced_ = false;
  bool shard_closed_ = false;
  int shard_ = -1;
  int folder_ = -1;
  int under_way_ = 0;
  Clock::time_point manifest_;
  Clock::time_point renamed_;
};

class WatchedQueue final : public ForwardingQueue {
 public:
  WatchedQueue(std::shared_ptr<Watch> watch, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), watch_(std::move(watch)) {}

  void Submit(IoRequest request, IoDone done) override {
    IoRequest seen = request;
    watch_->Submitted(seen);
    inner_->Submit(std::move(request), [watch = watch_, seen = std::move(seen), done = std::move(done)](auto result) {
      watch->Completed(seen, result);
      done(result);
      watch->CalledBack();
    });
  }

 private:
  const std::shared_ptr<Watch> watch_;
};

// All ranks except rank 0, behind rank 0's Group.
class OtherRanks final : public Group {
 public:
  OtherRanks(std::string root, int size, std::size_t tensors)
      : root_(std::move(root)), size_(size), header_(HeaderOf(tensors)) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return size_; }
  void Send(const std::string& /*key*/, std::string /*message*/) override { Expect(false, "ranks: rank 0 sends"); }
  void Await(const std::string& /*key*/, Deadline /*deadline*/, OnAnnounced /*on_announced*/) override {
    Expect(false, "ranks: unexpected wait by rank 0");
  }
  void Announce(const std::string& key, std::string message) override {
    if (!key.starts_with("attempt/")) return;
    const Result<AttemptProposal> attempt = DecodeAttempt(message);
    Check(attempt.status());
    const std::lock_guard lock(mutex_);
    header_.step = attempt->step;
    header_.attempt = attempt->uuid;
  }
  void Collect(const std::string& /*key*/, Deadline /*deadline*/, OnMessage on_message, OnEnd /*end*/) override {
    const std::lock_guard lock(mutex_);
    on_message_ = std::move(on_message);
    changed_.notify_all();
  }

  // Call once the attempt has its folder and rank 0 listens. Prepares all ranks and sends all messages but the last,
  // which it returns.
  std::string Prepare() {
    OnMessage on_message;
    {
      std::unique_lock lock(mutex_);
      Expect(changed_.wait_for(lock, std::chrono::minutes(1), [this] { return on_message_ != nullptr; }),
             "ranks: rank 0 does not listen");
      on_message = on_message_;
    }
    const std::string folder = root_ + "/" + AttemptName(header_.attempt);
    std::string message;
    for (int of = 1; of < size_; ++of) {
      if (of > 1) on_message(of - 1, message);
      message = WriteShard(folder, of);
    }
    const UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    Expect(::syncfs(directory.get()) == 0, "ranks: syncfs failed");
    return message;
  }
  void SayLast(std::string message) { std::exchange(on_message_, nullptr)(size_ - 1, std::move(message)); }

 private:
  std::string WriteShard(const std::string& folder, int of) {
    const auto number = static_cast<std::uint64_t>(of);
    header_.shard = number;
    Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header_);
    Check(writer.status());
    writer->SetSums(header_.sums);
    const std::string_view bytes = writer->bytes();
    const std::string path = folder + "/" + ShardName(number);
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    Expect(file.valid(), "ranks: cannot create " + path);
    const std::uint64_t length = bytes.size() + header_.data_bytes();
    Expect(::pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
           "ranks: a short write");
    Expect(::ftruncate(file.get(), static_cast<off_t>(length)) == 0, "ranks: ftruncate failed");
    const ManifestShard shard{.file = ShardName(number), .length = length, .header_digest = writer->digest()};
    return EncodePrepared({.step = header_.step, .shard = shard});
  }

  const std::string root_;
  const int size_;
  std::mutex mutex_;  // Guards the other members until Prepare.
  std::condition_variable changed_;
  ShardHeader header_;
  OnMessage on_message_;
};

// Saves of all ranks on one root. Each commit retires the previous turn's checkpoint.
class ManyRanks {
 public:
  ManyRanks(const std::string& root, int ranks, std::size_t tensors)
      : root_(root), ranks_(std::make_shared<OtherRanks>(root, ranks, tensors)), memory_(tensors) {
    Wiring wiring;
    wiring.node = NodeRanks();  // The other ranks say nothing of their nodes.
    wiring.wrap_queue = [watch = watch_](IoQueueFactory inner) {
      return WrapQueues<WatchedQueue>(watch, std::move(inner));
    };
    const Options options{.root = root,
                          .keep_last = 1,
                          .group = ranks_,
                          .host_memory_bytes = 8_MiB,
                          .chunk_bytes = 1_MiB,
                          .recycle = false};
    Result<std::unique_ptr<Checkpointer>> opened = Checkpointer::Open(options, wiring);
    Check(opened.status());
    checkpointer_ = *std::move(opened);
    for (std::size_t i = 0; i < tensors; ++i) {
      Check(state_.Add("rank0." + TensorName(i), {.data = &memory_[i], .shape = {1}}));
    }
    operator()();
    const auto list = checkpointer_->List();
    Check(list.status());
    Expect(list->size() == 1 && list->back().world == static_cast<std::uint64_t>(ranks), "ranks: wrong checkpoint");
  }

  double operator()() {
    watch_->Forget();
    const auto save = checkpointer_->Save(++step_, state_);
    Check(save.status());
    watch_->WaitForFolder();
    std::string last = ranks_->Prepare();
    watch_->WaitPrepared();
    const auto said = Clock::now();
    ranks_->SayLast(std::move(last));
    Check(save->WaitDurable());
    Check(checkpointer_->Drain());
    headers_.push_back(Between(said, watch_->manifest()));
    manifests_.push_back(Between(watch_->manifest(), watch_->renamed()));
    return Between(said, watch_->renamed());
  }
  void Report(benchmark::UserCounters& counters) const {
    counters["cairn until the manifest"] = Median(headers_);
    counters["cairn manifest to rename"] = Median(manifests_);
  }
  // The newest checkpoint.
  [[nodiscard]] std::string folder() const { return root_ + "/" + StepName(step_); }

 private:
  const std::string root_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  const std::shared_ptr<OtherRanks> ranks_;
  std::vector<float> memory_;
  State state_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::uint64_t step_ = 0;
  std::vector<double> headers_;
  std::vector<double> manifests_;
};

// The same work, sequentially.
class InARow {
 public:
  InARow(std::string root, std::shared_ptr<const ManyRanks> of, int ranks)
      : root_(std::move(root)), of_(std::move(of)), ranks_(ranks) {}

  double operator()() {
    const UniqueFd step = Open(of_->folder(), O_RDONLY | O_DIRECTORY);
    struct stat manifest {};
    Expect(::fstatat(step.get(), std::string(kManifestName).c_str(), &manifest, 0) == 0, "ranks: no manifest");
    const std::string text(static_cast<std::size_t>(manifest.st_size), ' ');
    const std::string attempt = root_ + "/attempt-" + std::to_string(++made_);
    Expect(::mkdir(attempt.c_str(), 0755) == 0, "ranks: cannot create " + attempt);
    const UniqueFd folder = Open(attempt, O_RDONLY | O_DIRECTORY);

    const auto begin = Clock::now();
    std::vector<std::string> runs;
    for (int of = 0; of < ranks_; ++of) runs.push_back(RunOf(step, ShardName(static_cast<std::uint64_t>(of))));
    const std::optional<BuiltIndex> index = BuildIndex(runs);
    Expect(index.has_value(), "ranks: the index was not built");
    const UniqueFd index_file = Open(attempt + "/index.cairn", O_WRONLY | O_CREAT | O_EXCL);
    Expect(::pwrite(index_file.get(), index->bytes.data(), index->bytes.size(), 0) ==
               static_cast<ssize_t>(index->bytes.size()),
           "ranks: a short write");
    Expect(::fsync(index_file.get()) == 0, "ranks: fsync failed");
    const UniqueFd file = Open(attempt + "/manifest.json", O_WRONLY | O_CREAT | O_EXCL);
    Expect(::pwrite(file.get(), text.data(), text.size(), 0) == manifest.st_size, "ranks: a short write");
    Expect(::fsync(file.get()) == 0 && ::fsync(folder.get()) == 0, "ranks: fsync failed");
    const std::string target = root_ + "/" + std::to_string(made_);
    Expect(::renameat2(AT_FDCWD, attempt.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0,
           "ranks: cannot rename " + attempt);
    return Between(begin, Clock::now());
  }

 private:
  static UniqueFd Open(const std::string& path, int flags) {
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
    Expect(fd.valid(), "ranks: cannot open " + path);
    return fd;
  }
  // A shard's entries in the index, from its header.
  std::string RunOf(const UniqueFd& folder, const std::string& name) {
    const UniqueFd file(::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat found {};
    std::uint64_t json = 0;
    Expect(file.valid() && ::fstat(file.get(), &found) == 0 && ::pread(file.get(), &json, 8, 0) == 8,
           "ranks: cannot read " + name);
    header_.resize(8 + json);
    Expect(::pread(file.get(), header_.data(), header_.size(), 0) == static_cast<ssize_t>(header_.size()),
           "ranks: a short read of " + name);
    benchmark::DoNotOptimize(Crc32c(header_));
    const Result<ShardHeader> header = DecodeShardHeader(header_, static_cast<std::uint64_t>(found.st_size), name);
    Check(header.status());
    return EncodeIndexRun(*header);
  }

  const std::string root_;
  const std::shared_ptr<const ManyRanks> of_;
  const int ranks_;
  int made_ = 0;
  std::vector<std::byte> header_;
};

Pair CommitBesideARow(const std::string& dir, int ranks, std::size_t tensors) {
  ::sync();
  const auto ours = std::make_shared<TempDir>(dir);
  const auto theirs = std::make_shared<TempDir>(dir);
  const auto commit = std::make_shared<ManyRanks>(ours->path(), ranks, tensors);
  const auto peer = std::make_shared<InARow>(theirs->path(), commit, ranks);
  return {.cairn = [ours, commit] { return (*commit)(); },
          .peer = [theirs, peer] { return (*peer)(); },
          .more = [commit](benchmark::UserCounters& counters) { commit->Report(counters); }};
}

}  // namespace

void AddRanks(const Settings& settings) {
  const auto ranks = static_cast<int>(settings.Sized(1024, 4));
  const std::size_t tensors = settings.Sized(1000, 10);
  AddPair(settings, "ranks/last_word_to_rename_of_same", "the same in a row, from the first header on", 1.1, 5,
          [dir = settings.dir, ranks, tensors] { return CommitBesideARow(dir, ranks, tensors); });
}

}  // namespace cairn::bench
