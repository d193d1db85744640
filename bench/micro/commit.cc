// Committing a checkpoint whose data is written: header, fsyncs, manifest, rename.
//
//   build/release/bin/bench_micro --dir DIR --benchmark_filter=commit
//
// Peers: the same operations on a file of the same size in the same folder, as sequential system calls; and the minimum
// of any commit, an fsync of the file, a rename and an fsync of the directory. Cairn's side is the attempt alone,
// driven like in the engine, and the whole library, from SaveStats::written to SaveStats::durable. The counters include
// the seconds of each of the peer's operations.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "cairn/cairn.h"
#include "store/attempt.h"
#include "store/names.h"
#include "testing/forwarding_queue.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;
using namespace literals;

constexpr std::uint64_t kDataBytes = 1_MiB;

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<std::byte, Free>;

Block AlignedBytes(std::size_t bytes) {
  Block block(static_cast<std::byte*>(std::aligned_alloc(kBlock, bytes)));
  Expect(block != nullptr, "commit: no memory");
  std::fill_n(block.get(), bytes, std::byte{1});
  return block;
}

// The content that a commit writes.
struct Content {
  std::uint64_t header_bytes = kBlock;
  std::uint64_t data_bytes = kDataBytes;
  [[nodiscard]] std::uint64_t file_bytes() const { return header_bytes + data_bytes; }
};

// The commit protocol as sequential system calls.
class BareCommit {
 public:
  BareCommit(std::string root, const Content& content)
      : root_(std::move(root)), content_(content), block_(AlignedBytes(AlignUp(content.file_bytes(), kBlock))) {}

  double Protocol() {
    WriteData();
    const auto begin = Begin();
    WriteHeader();
    Did("fsync shard", ::fsync(shard_.get()));
    shard_.Reset();
    Did("fsync folder", ::fsync(folder_.get()));
    const UniqueFd root = Open(root_, O_RDONLY | O_DIRECTORY);
    UniqueFd manifest = Open(attempt_ + "/manifest.json", O_WRONLY | O_CREAT | O_EXCL);
    Did("write manifest", ::pwrite(manifest.get(), block_.get(), kManifestBytes, 0));
    Did("fsync manifest", ::fsync(manifest.get()));
    manifest.Reset();
    Did("fsync folder again", ::fsync(folder_.get()));
    Rename();
    Did("fsync root", ::fsync(root.get()));
    return Since(begin);
  }

  double Least() {
    WriteData();
    Begin();
    WriteHeader();
    const UniqueFd root = Open(root_, O_RDONLY | O_DIRECTORY);
    const auto begin = Begin();
    Did("fsync shard", ::fsync(shard_.get()));
    Rename();
    Did("fsync root", ::fsync(root.get()));
    return Since(begin);
  }

  void Report(benchmark::UserCounters& counters) const {
    for (const auto& [operation, seconds] : seconds_) counters["peer " + operation] = Median(seconds);
  }

 private:
  static constexpr std::size_t kManifestBytes = 400;

  static UniqueFd Open(const std::string& path, int flags) {
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
    Expect(fd.valid(), "commit: cannot open " + path);
    return fd;
  }
  Clock::time_point Begin() { return last_ = Clock::now(); }
  void Did(const char* operation, std::int64_t result) {
    Expect(result >= 0, std::string("commit: ") + operation + " failed");
    const auto now = Clock::now();
    seconds_[operation].push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

  void WriteData() {
    attempt_ = root_ + "/attempt-" + std::to_string(made_++);
    Expect(::mkdir(attempt_.c_str(), 0755) == 0, "commit: cannot create " + attempt_);
    folder_ = Open(attempt_, O_RDONLY | O_DIRECTORY);
    const std::string path = attempt_ + "/shard";
    shard_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0644));
    if (!shard_.valid()) shard_ = Open(path, O_WRONLY | O_CREAT);
    const std::uint64_t laid_out = AlignUp(content_.file_bytes(), kBlock);
    // May be unsupported by the filesystem; then it fails for the attempt too.
    static_cast<void>(::fallocate(shard_.get(), 0, 0, static_cast<off_t>(laid_out)));
    const std::uint64_t padded = laid_out - content_.header_bytes;
    const auto written =
        ::pwrite(shard_.get(), block_.get() + content_.header_bytes, padded, static_cast<off_t>(content_.header_bytes));
    Expect(written == static_cast<ssize_t>(padded), "commit: a short write");
  }

  void WriteHeader() {
    Did("write header", ::pwrite(shard_.get(), block_.get(), content_.header_bytes, 0));
    Did("ftruncate", ::ftruncate(shard_.get(), static_cast<off_t>(content_.file_bytes())));
  }

  void Rename() {
    const std::string step = root_ + "/step-" + std::to_string(made_);
    Did("rename", ::renameat2(AT_FDCWD, attempt_.c_str(), AT_FDCWD, step.c_str(), RENAME_NOREPLACE));
  }

  const std::string root_;
  const Content content_;
  const Block block_;
  std::uint64_t made_ = 0;
  std::string attempt_;
  UniqueFd folder_;
  UniqueFd shard_;
  Clock::time_point last_;
  std::map<std::string, std::vector<double>> seconds_;
};

// Records how long each operation between Begin and End took, from Submit to completion, by kind and number.
class TimedQueue final : public ForwardingQueue {
 public:
  using ForwardingQueue::ForwardingQueue;

  void Begin() {
    timing_ = true;
    counts_.clear();
  }
  void End() { timing_ = false; }
  void Report(benchmark::UserCounters& counters) const {
    for (const auto& [operation, seconds] : seconds_) counters["cairn " + operation] = Median(seconds);
  }

  void Submit(IoRequest request, IoDone done) override {
    if (!timing_) return inner_->Submit(std::move(request), std::move(done));
    const std::string kind = IoOpName(request.op);
    const std::string operation = kind + " " + std::to_string(++counts_[kind]);
    inner_->Submit(std::move(request),
                   [this, operation, begin = Clock::now(), done = std::move(done)](std::int64_t result) {
                     seconds_[operation].push_back(Since(begin));
                     done(result);
                   });
  }

 private:
  bool timing_ = false;
  std::map<std::string, int> counts_;
  std::map<std::string, std::vector<double>> seconds_;
};

// Attempts on a queue driven by this thread.
class StoreCommit {
 public:
  StoreCommit(std::string root, const Content& content)
      : root_(std::move(root)), content_(content), block_(AlignedBytes(content.file_bytes())) {
    Result<IoQueueChoice> choice = ChooseIoQueue(IoQueueKind::kAuto, 8);
    Check(choice.status());
    Result<std::unique_ptr<IoQueue>> queue = choice->factory();
    Check(queue.status());
    queue_ = std::make_unique<TimedQueue>(*std::move(queue));
    const std::uint64_t behind_length = content_.header_bytes - sizeof(std::uint64_t);
    std::memcpy(block_.get(), &behind_length, sizeof(behind_length));
  }

  double operator()() {
    Manifest manifest{.step = ++step_, .attempt = MakeUuid()};
    const Bytes bytes(block_.get(), content_.file_bytes());
    const auto attempt = std::make_unique<Attempt>(
        *queue_, AttemptSpec{.folder = std::make_shared<AttemptFolder>(root_, manifest.attempt, 0755),
                             .step = step_,
                             .file_bytes = bytes.size()});
    Wait([&](StatusDone done) { attempt->Begin(std::move(done)); });
    Wait([&](StatusDone done) {
      attempt->Write(content_.header_bytes, bytes.subspan(content_.header_bytes), std::move(done));
    });
    manifest.shards.push_back(
        {.file = ShardName(0), .length = bytes.size(), .header_digest = Crc32c(bytes.first(content_.header_bytes))});
    queue_->Begin();
    const auto begin = Clock::now();
    Wait([&](StatusDone done) { attempt->Seal(bytes.first(content_.header_bytes), std::move(done)); });
    Wait([&](StatusDone done) { attempt->Commit(manifest, /*index_runs=*/{}, /*replace=*/false, std::move(done)); });
    const double seconds = Since(begin);
    queue_->End();
    return seconds;
  }
  void Report(benchmark::UserCounters& counters) const { queue_->Report(counters); }

 private:
  template <typename Start>
  void Wait(Start start) {
    std::optional<Status> outcome;
    start([&outcome](Status status) { outcome = std::move(status); });
    while (!outcome) Check(queue_->RunOnce(Deadline::Infinite()).status());
    Check(*outcome);
  }

  const std::string root_;
  const Content content_;
  const Block block_;
  std::unique_ptr<TimedQueue> queue_;
  std::uint64_t step_ = 0;
};

// Complete saves of a small state.
class EngineCommit {
 public:
  EngineCommit(const std::string& root, std::size_t tensors) : root_(root), memory_(kDataBytes / sizeof(float)) {
    Result<std::unique_ptr<Checkpointer>> opened =
        Checkpointer::Open({.root = root, .keep_last = 0, .host_memory_bytes = 8_MiB, .chunk_bytes = 1_MiB});
    Check(opened.status());
    checkpointer_ = *std::move(opened);
    const std::size_t elements = memory_.size() / tensors;
    for (std::size_t i = 0; i < tensors; ++i) {
      Check(state_.Add(TensorName(i),
                       {.data = memory_.data() + i * elements, .shape = {static_cast<std::int64_t>(elements)}}));
    }
  }

  double operator()() {
    const auto save = checkpointer_->Save(++step_, state_);
    Check(save.status());
    Check(save->WaitDurable());
    const SaveStats stats = save->stats();
    return std::chrono::duration<double>(stats.durable - stats.written).count();
  }

  // Of the newest checkpoint.
  [[nodiscard]] Content Written() const {
    std::ifstream file(root_ + "/" + StepName(step_) + "/" + ShardName(0), std::ios::binary);
    std::array<std::byte, 8> word{};
    file.read(reinterpret_cast<char*>(word.data()), word.size());
    file.seekg(0, std::ios::end);
    const auto size = static_cast<std::uint64_t>(file.tellg());
    const Result<std::uint64_t> header = ShardHeaderLength(word, size, "the shard");
    Check(header.status());
    return {.header_bytes = *header, .data_bytes = size - *header};
  }

 private:
  const std::string root_;
  std::vector<float> memory_;
  State state_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::uint64_t step_ = 0;
};

using Bare = double (BareCommit::*)();

template <typename Commit, typename... Args>
Pair CommitBeside(Bare bare, const std::string& dir, Args... args) {
  // Flushes what earlier benchmarks left in the page cache.
  ::sync();
  const auto ours = std::make_shared<TempDir>(dir);
  const auto theirs = std::make_shared<TempDir>(dir);
  const auto commit = std::make_shared<Commit>(ours->path(), args...);
  (*commit)();
  Content content;
  if constexpr (requires { commit->Written(); }) content = commit->Written();
  const auto peer = std::make_shared<BareCommit>(theirs->path(), content);
  return {.cairn = [ours, commit] { return (*commit)(); },
          .peer = [theirs, peer, bare] { return ((*peer).*bare)(); },
          .more =
              [commit, peer](benchmark::UserCounters& counters) {
                peer->Report(counters);
                if constexpr (requires { commit->Report(counters); }) commit->Report(counters);
              }};
}

}  // namespace

void AddCommit(const Settings& settings) {
  const std::size_t tensors = settings.Sized(100'000, 100);
  const std::string& dir = settings.dir;
  const std::string same = "the same system calls in a row";
  const std::string least = "one fsync, one rename, one fsync of the directory";
  AddPair(settings, "commit/store_of_same", same, 1.1, 20,
          [dir] { return CommitBeside<StoreCommit>(&BareCommit::Protocol, dir, Content{}); });
  AddPair(settings, "commit/library_of_same", same, 1.1, 20,
          [dir] { return CommitBeside<EngineCommit>(&BareCommit::Protocol, dir, std::size_t{1}); });
  AddPair(settings, "commit/library_100000_tensors_of_same", same, 1.1, 10,
          [dir, tensors] { return CommitBeside<EngineCommit>(&BareCommit::Protocol, dir, tensors); });
  AddPair(settings, "commit/library_of_least", least, 1.1, 20,
          [dir] { return CommitBeside<EngineCommit>(&BareCommit::Least, dir, std::size_t{1}); });
}

}  // namespace cairn::bench
