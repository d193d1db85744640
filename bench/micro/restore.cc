// One rank's restore from a checkpoint of 1,024 ranks with 1,000 tensors each, on a filesystem where every open takes 1
// ms.
//
//   build/release/bin/bench_micro --dir DIR --benchmark_filter=restore
//
// Each tensor is cut by rows into one piece per rank. "own" restores as one of 1,024 ranks, "half" as one of 512, whose
// tensors are in two shards each.
//
// Peer: opening the files with wanted bytes one after another, reading each completely and computing its checksum: the
// minimum for a restore that knows where everything is. Counters: shards opened, shards with wanted bytes (including
// the rank's typed values, which are in the shard of its number), bytes read outside tensors, and bytes of the headers
// of those shards.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/unique_fd.h"
#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "format/index.h"
#include "format/manifest.h"
#include "restore/reader.h"
#include "store/names.h"
#include "testing/forwarding_queue.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using namespace literals;

constexpr std::chrono::milliseconds kOpenTime{1};
constexpr std::int64_t kRows = 2;  // Of each tensor, per rank.
constexpr std::int64_t kColumns = 8;
constexpr std::uint64_t kPieceBytes = kRows * kColumns * sizeof(float);

// The files and bytes that a restore has requested.
struct Asked {
  std::set<std::string> shards;
  std::uint64_t bytes = 0;
};

// Each open takes a millisecond on a thread of the queue.
class FarQueue final : public ForwardingQueue {
 public:
  FarQueue(std::shared_ptr<Asked> asked, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), asked_(std::move(asked)) {}

  void Submit(IoRequest request, IoDone done) override {
    if (request.op == IoOp::kRead) {
      return inner_->Submit(std::move(request), [asked = asked_, done = std::move(done)](std::int64_t result) {
        asked->bytes += result > 0 ? static_cast<std::uint64_t>(result) : 0;
        done(result);
      });
    }
    if (request.op != IoOp::kOpen) return inner_->Submit(std::move(request), std::move(done));
    if (request.path.text().find("shard-") != std::string::npos) asked_->shards.insert(request.path.text());
    const auto fd = std::make_shared<std::int64_t>(0);
    IoRequest call{.op = IoOp::kCall, .path = request.path};
    call.call = [fd, request = std::move(request)] {
      std::this_thread::sleep_for(kOpenTime);
      *fd = ::openat(request.path.directory(), request.path.c_str(), request.flags | O_CLOEXEC, request.mode);
      if (*fd < 0) *fd = -errno;
    };
    inner_->Submit(std::move(call), [fd, done = std::move(done)](std::int64_t /*called*/) { done(*fd); });
  }

 private:
  const std::shared_ptr<Asked> asked_;
};

// A checkpoint written by this many ranks.
class Checkpoint {
 public:
  Checkpoint(const std::string& dir, int ranks, std::size_t tensors) : root_(dir), ranks_(ranks), tensors_(tensors) {
    std::filesystem::create_directory(folder());
    Manifest manifest{.step = 1, .attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11"};
    manifest.world = static_cast<std::uint64_t>(ranks);
    std::vector<std::string> runs;
    for (int rank = 0; rank < ranks; ++rank) {
      ShardHeader header = HeaderOfRank(manifest, rank);
      runs.push_back(EncodeIndexRun(header));
      manifest.shards.push_back(Write(header));
    }
    const std::optional<BuiltIndex> index = BuildIndex(runs);
    Expect(index.has_value(), "restore: the index was not built");
    std::ofstream(folder() + "/" + std::string(kIndexName), std::ios::binary) << index->bytes;
    manifest.index = ManifestIndex{.file = std::string(kIndexName),
                                   .length = index->bytes.size(),
                                   .head = index->head_bytes,
                                   .digest = index->head_digest};
    std::ofstream(folder() + "/" + std::string(kManifestName), std::ios::binary) << EncodeManifest(manifest);
  }

  [[nodiscard]] std::string folder() const { return root_ / StepName(1); }
  [[nodiscard]] std::string ShardPath(int rank) const {
    return folder() + "/" + ShardName(static_cast<std::uint64_t>(rank));
  }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] std::size_t tensors() const { return tensors_; }
  [[nodiscard]] std::uint64_t header_bytes() const { return header_bytes_; }

 private:
  [[nodiscard]] ShardHeader HeaderOfRank(const Manifest& manifest, int rank) const {
    ShardHeader header;
    header.step = manifest.step;
    header.attempt = manifest.attempt;
    header.shard = static_cast<std::uint64_t>(rank);
    std::map<std::string, int> names;
    for (std::size_t i = 0; i < tensors_; ++i) names.emplace(TensorName(i), 0);
    std::uint64_t at = 0;
    for (const auto& [name, unused] : names) {
      header.tensors.push_back({.name = name,
                                .shape = {kRows, kColumns},
                                .begin = at,
                                .end = at + kPieceBytes,
                                .part = TensorPart{name, {ranks_ * kRows, kColumns}, {rank * kRows, 0}}});
      at += kPieceBytes;
    }
    const std::string zeros(at, '\0');
    for (std::uint64_t begin = 0; begin < at; begin += kChecksumBlock) {
      header.sums.push_back(
          Crc32c(std::as_bytes(std::span(zeros).subspan(begin, std::min(at - begin, kChecksumBlock)))));
    }
    return header;
  }
  ManifestShard Write(const ShardHeader& header) {
    Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header);
    Check(writer.status());
    writer->SetSums(header.sums);
    header_bytes_ = writer->bytes().size();
    const std::string path = folder() + "/" + ShardName(header.shard);
    std::ofstream(path, std::ios::binary) << writer->bytes() << std::string(header.data_bytes(), '\0');
    return {.file = ShardName(header.shard),
            .length = header_bytes_ + header.data_bytes(),
            .header_digest = writer->digest()};
  }

  const TempDir root_;
  const int ranks_;
  const std::size_t tensors_;
  std::uint64_t header_bytes_ = 0;
};

// Restores what the last rank of a world needs.
class OneRank {
 public:
  OneRank(std::shared_ptr<const Checkpoint> checkpoint, int world)
      : checkpoint_(std::move(checkpoint)), rank_(world - 1), of_each_(checkpoint_->ranks() / world) {
    auto pool = BufferPool::Make(8_MiB, 1_MiB, 8);
    Check(pool.status());
    pool_ = *std::move(pool);
    auto choice = ChooseIoQueue(IoQueueKind::kAuto, 8);
    Check(choice.status());
    choice_ = *std::move(choice);
    const std::size_t piece = kPieceBytes / sizeof(float) * static_cast<std::size_t>(of_each_);
    memory_.resize(piece * checkpoint_->tensors());
    for (std::size_t i = 0; i < checkpoint_->tensors(); ++i) {
      const std::string name = TensorName(i);
      TensorView view{.data = memory_.data() + i * piece, .shape = {of_each_ * kRows, kColumns}};
      view.part = TensorPart{name, {checkpoint_->ranks() * kRows, kColumns}, {rank_ * of_each_ * kRows, 0}};
      Check(state_.Add(name, view));
    }
  }

  double operator()() {
    *asked_ = {};
    RestoreParts parts{.queue = WrapQueues<FarQueue>(asked_, choice_.factory),
                       .pool = pool_.get(),
                       .workers = &workers_,
                       .on_event = [](const Event& event) { Expect(false, "restore: " + event.message); }};
    const auto begin = std::chrono::steady_clock::now();
    const auto stored = ReadCheckpointFolder(checkpoint_->folder());
    Check(stored.status());
    const auto restored = RestoreCheckpoint(parts, *stored, rank_, state_, {});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Check(restored.status());
    Expect(restored->bytes == memory_.size() * sizeof(float), "restore: bytes are missing");
    return seconds;
  }
  [[nodiscard]] std::vector<std::string> Holders() const {
    std::set<std::string> shards = {checkpoint_->ShardPath(rank_)};
    for (int i = 0; i < of_each_; ++i) shards.insert(checkpoint_->ShardPath(rank_ * of_each_ + i));
    return {shards.begin(), shards.end()};
  }
  void Report(benchmark::UserCounters& counters) const {
    const auto holders = static_cast<double>(Holders().size());
    const auto data = static_cast<double>(memory_.size() * sizeof(float));
    counters["shards opened"] = static_cast<double>(asked_->shards.size());
    counters["shards that hold wanted bytes"] = holders;
    counters["metadata read"] = static_cast<double>(asked_->bytes) - data;
    counters["metadata of those shards"] = holders * static_cast<double>(checkpoint_->header_bytes());
  }

 private:
  const std::shared_ptr<const Checkpoint> checkpoint_;
  const int rank_;
  const int of_each_;
  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  std::unique_ptr<BufferPool> pool_;
  WorkerPool workers_{"bench", 2};
  IoQueueChoice choice_;
  std::vector<float> memory_;
  State state_;
};

double ReadAll(const std::vector<std::string>& paths) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& path : paths) {
    std::this_thread::sleep_for(kOpenTime);
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat found {};
    Expect(file.valid() && ::fstat(file.get(), &found) == 0, "restore: cannot open " + path);
    std::vector<std::byte> bytes(static_cast<std::size_t>(found.st_size));
    Expect(::pread(file.get(), bytes.data(), bytes.size(), 0) == found.st_size, "restore: a short read");
    benchmark::DoNotOptimize(Crc32c(bytes));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Pair RestoreBesideRead(const std::string& dir, int ranks, std::size_t tensors, int world) {
  // Shared by all repetitions.
  static std::map<std::string, std::shared_ptr<const Checkpoint>> made;
  std::shared_ptr<const Checkpoint>& checkpoint = made[dir];
  if (checkpoint == nullptr) checkpoint = std::make_shared<const Checkpoint>(dir, ranks, tensors);
  const auto rank = std::make_shared<OneRank>(checkpoint, world);
  (*rank)();
  return {.cairn = [rank] { return (*rank)(); },
          .peer = [paths = rank->Holders()] { return ReadAll(paths); },
          .more = [rank](benchmark::UserCounters& counters) { rank->Report(counters); }};
}

}  // namespace

void AddRestore(const Settings& settings) {
  const int ranks = static_cast<int>(settings.Sized(1024, 8));
  const std::size_t tensors = settings.Sized(1000, 10);
  const std::string peer = "each file that holds wanted bytes read as a whole and summed up";
  AddPair(settings, "restore/own_of_1024_of_reading", peer, 10, 10,
          [dir = settings.dir, ranks, tensors] { return RestoreBesideRead(dir, ranks, tensors, ranks); });
  AddPair(settings, "restore/half_of_1024_of_reading", peer, 10, 10,
          [dir = settings.dir, ranks, tensors] { return RestoreBesideRead(dir, ranks, tensors, ranks / 2); });
}

}  // namespace cairn::bench
