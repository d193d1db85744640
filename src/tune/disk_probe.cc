#include "tune/disk_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "device/buffer_pool.h"
#include "io/io_task.h"
#include "store/attempt.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/space.h"
#include "tune/process_cpu.h"

namespace cairn {
namespace {

using Clock = Deadline::Clock;

constexpr std::uint64_t kMiB = 1U << 20;
constexpr std::uint64_t kProbeMemory = 64 * kMiB;  // In flight with the deepest and with the largest shape.
constexpr std::uint64_t kMinFileBytes = 4 * kMiB;
constexpr std::uint64_t kFirstFileBytes = 32 * kMiB;
constexpr int kRounds = 3;
constexpr std::array<IoShape, 5> kShapes = {
    {{4 * kMiB, 8}, {4 * kMiB, 4}, {4 * kMiB, kProbeDepth}, {2 * kMiB, 8}, {8 * kMiB, 8}}};

double Seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

/// The value that `share` of the values do not exceed. `values` is not empty.
double Quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

/// The time and size of one transfer.
struct ProbePass {
  double seconds = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] double rate() const { return static_cast<double>(bytes) / std::max(seconds, 1e-9); }
};

/// An attempt that never becomes a checkpoint. The destructor removes its files.
class ProbeAttempt {
 public:
  ProbeAttempt(IoQueue& queue, const ProbeLimits& limits, Clock::time_point end, std::string root, std::byte* memory)
      : queue_(queue),
        limits_(limits),
        end_(end),
        root_(std::move(root)),
        folder_(JoinPath(root_, AttemptName(uuid_)).text()),
        retired_(JoinPath(root_, RetiredName(uuid_)).text()),
        memory_(memory) {}
  ~ProbeAttempt() {
    attempt_.reset();
    for (const std::string& folder : {folder_, retired_}) {
      ::unlink(JoinPath(folder, ShardName(0)).c_str());
      ::unlink(JoinPath(folder, kManifestName).c_str());
      ::rmdir(folder.c_str());
    }
  }
  ProbeAttempt(const ProbeAttempt&) = delete;
  ProbeAttempt& operator=(const ProbeAttempt&) = delete;

  /// Seconds until it can be written to.
  Result<double> Begin(std::uint64_t data_bytes) {
    const auto begin = limits_.now();
    attempt_ = std::make_unique<Attempt>(
        queue_,
        AttemptSpec{.folder = std::make_shared<AttemptFolder>(root_, uuid_, 0755), .file_bytes = kBlock + data_bytes});
    CAIRN_RETURN_IF_ERROR(Await([this](StatusDone done) { attempt_->Begin(std::move(done)); }));
    data_bytes_ = data_bytes;
    return Seconds(limits_.now() - begin);
  }
  Result<ProbePass> WriteFresh(const IoShape& shape) {
    CAIRN_ASSIGN_OR_RETURN(const ProbePass pass,
                           Stream(shape, data_bytes_, [this](std::uint64_t at, Bytes piece, auto done) {
                             attempt_->Write(kBlock + at, piece, std::move(done));
                           }));
    written_ = pass.bytes;
    return pass;
  }
  Result<ProbePass> Overwrite(const IoShape& shape) { return TransferAgain(shape, IoOp::kWrite, O_WRONLY); }
  Result<ProbePass> Read(const IoShape& shape) { return TransferAgain(shape, IoOp::kRead, O_RDONLY); }
  /// Seconds from the last byte to durable. Like Attempt::SealAndCommit, writes the shard and the manifest
  /// concurrently.
  Result<double> Commit() {
    const auto begin = limits_.now();
    std::memset(memory_, 0, kBlock);
    CAIRN_RETURN_IF_ERROR(
        AwaitBoth([this](StatusDone done) { attempt_->Seal(Bytes(memory_, kBlock), std::move(done)); },
                  [this](StatusDone done) { RunTask(queue_, WriteManifest(), std::move(done)); }));
    CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, RenameAway()));
    return Seconds(limits_.now() - begin);
  }
  [[nodiscard]] bool direct() const { return attempt_->direct(); }

 private:
  using Transfer = std::function<void(std::uint64_t at, Bytes piece, StatusDone done)>;

  IoTask<Status> WriteManifest() {
    const PathAt path = JoinPath(folder_, kManifestName);
    UniqueFd fd;
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(path, 0, 0600, fd));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(fd, path.text(), 0, Bytes(memory_, kBlock / 8), /*alignment=*/1));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(fd, path.text()));
    co_return co_await io::Close(fd, path.text());
  }
  IoTask<Status> RenameAway() {
    UniqueFd root;
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(root_, /*follow=*/true, root));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Rename(folder_, retired_, RenameMode::kPlain));
    co_return co_await io::Fsync(root, root_);
  }

  template <typename Call>
  Status Await(const Call& call) {
    const auto outcome = std::make_shared<std::optional<Status>>();
    call([outcome](Status status) { *outcome = std::move(status); });
    while (!outcome->has_value()) CAIRN_RETURN_IF_ERROR(queue_.RunOnce(Deadline::Infinite()).status());
    return **outcome;
  }

  /// Runs both at once. Returns the first error after both have ended.
  template <typename First, typename Second>
  Status AwaitBoth(const First& first, const Second& second) {
    struct Both {
      int left = 2;
      Status status;
    };
    return Await([&](const StatusDone& done) {
      const auto ended = [both = std::make_shared<Both>(), done](Status status) {
        if (both->status.ok()) both->status = std::move(status);
        if (--both->left == 0) done(both->status);
      };
      first(ended);
      second(ended);
    });
  }

  /// Transfers `bytes` through the queue, keeping the shape's depth, or fewer if the time ends. The first queueful is
  /// always transferred.
  Result<ProbePass> Stream(const IoShape& shape, std::uint64_t bytes, const Transfer& transfer) {
    struct Flight {
      std::vector<std::byte*> free;
      std::uint64_t done = 0;
      Status status;
    };
    // Shared: a broken queue may keep callbacks beyond this call.
    const auto flight = std::make_shared<Flight>();
    for (int i = 0; i < shape.queue_depth; ++i) {
      flight->free.push_back(memory_ + static_cast<std::uint64_t>(i) * shape.chunk_bytes);
    }
    const auto depth = flight->free.size();
    const auto begin = limits_.now();
    bool over = false;
    for (std::uint64_t next = 0; flight->free.size() < depth || (next < bytes && !over && flight->status.ok());) {
      over = over || (next >= shape.chunk_bytes * depth && limits_.now() >= end_);
      if (limits_.stopped && limits_.stopped() && flight->status.ok()) {
        flight->status = Error(StatusCode::kCancelled, "the probe of {} was stopped", root_);
      }
      while (next < bytes && !over && flight->status.ok() && !flight->free.empty()) {
        std::byte* const memory = flight->free.back();
        flight->free.pop_back();
        const std::uint64_t size = std::min(shape.chunk_bytes, bytes - next);
        transfer(next, Bytes(memory, size), [flight, memory, size](Status status) {
          flight->free.push_back(memory);
          flight->done += size;
          if (flight->status.ok()) flight->status = std::move(status);
        });
        next += size;
      }
      if (flight->free.size() < depth) CAIRN_RETURN_IF_ERROR(queue_.RunOnce(Deadline::Infinite()).status());
    }
    CAIRN_RETURN_IF_ERROR(flight->status);
    return ProbePass{.seconds = Seconds(limits_.now() - begin), .bytes = flight->done};
  }

  /// Transfers the written bytes once more, through a new descriptor.
  Result<ProbePass> TransferAgain(const IoShape& shape, IoOp op, int access) {
    const std::string path = JoinPath(folder_, ShardName(0)).text();
    CAIRN_ASSIGN_OR_RETURN(const std::int64_t opened,
                           RunBlocking(queue_, {.op = IoOp::kOpen,
                                                .path = path,
                                                .flags = access | O_NOFOLLOW | (attempt_->direct() ? O_DIRECT : 0)}));
    const UniqueFd fd(static_cast<int>(opened));
    return Stream(shape, written_, [&](std::uint64_t at, Bytes piece, const StatusDone& done) {
      queue_.Submit(
          {.op = op,
           .fd = fd.get(),
           .buffer = const_cast<std::byte*>(piece.data()),
           .length = piece.size(),
           .offset = kBlock + at},
          [path, op, done, size = piece.size()](std::int64_t value) {
            if (value < 0) return done(ErrnoStatus(static_cast<int>(-value), path));
            if (static_cast<std::uint64_t>(value) == size) return done(Status::Ok());
            done(Error(StatusCode::kIoError, "{} of {}: expected {} bytes, found {}", IoOpName(op), path, size, value));
          });
    });
  }

  IoQueue& queue_;
  const ProbeLimits& limits_;
  const Clock::time_point end_;
  const std::string uuid_ = MakeUuid();
  const std::string root_;
  const std::string folder_;
  const std::string retired_;
  std::byte* const memory_;
  std::unique_ptr<Attempt> attempt_;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t written_ = 0;
};

/// How many bytes, in whole MiB, a probe may allocate under `root`.
Result<std::uint64_t> FileBytes(const std::string& root, std::uint64_t most) {
  CAIRN_RETURN_IF_ERROR(StatDirectory(root).status());
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> free, FindFreeSpace(root));
  const std::uint64_t bytes = AlignDown(free ? std::min(most, *free / 4) : most, kMiB);
  if (bytes >= kMinFileBytes) return bytes;
  return Error(StatusCode::kNoSpace, "{}: expected at least {} free bytes for a probe's file of {}, found {}", root,
               4 * kMinFileBytes, kMinFileBytes, free.value_or(0));
}

class DiskProbe {
 public:
  DiskProbe(IoQueue& queue, const ProbeLimits& limits, std::string root, std::byte* memory)
      : queue_(queue), limits_(limits), root_(std::move(root)), memory_(memory), end_(limits.now() + limits.time) {}

  Result<DiskRates> Run(std::uint64_t most_bytes) {
    // The first pass only wakes the disk and determines the size of the others.
    CAIRN_ASSIGN_OR_RETURN(const ProbePass first,
                           MeasurePass(0, std::min(most_bytes, kFirstFileBytes), /*record=*/false));
    const double left = Seconds(end_ - limits_.now());
    const double each = first.rate() * std::max(left, 0.0) / (kRounds * static_cast<double>(kShapes.size() + 2));
    const auto wanted = AlignDown(static_cast<std::uint64_t>(std::min(each, static_cast<double>(most_bytes))), kMiB);
    const std::uint64_t bytes = std::min(std::max(wanted, kFirstFileBytes), most_bytes);
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t shape = 0; shape < kShapes.size(); ++shape) {
        const bool needed = round == 0 && shape == 0;
        if (!needed && limits_.now() >= end_) break;
        CAIRN_RETURN_IF_ERROR(MeasurePass(shape, bytes, /*record=*/true).status());
      }
    }
    return Summary();
  }

 private:
  Result<ProbePass> MeasurePass(std::size_t shape, std::uint64_t bytes, bool record) {
    ProbeAttempt probe(queue_, limits_, end_, root_, memory_);
    CAIRN_ASSIGN_OR_RETURN(const double begin, probe.Begin(bytes));
    const double cpu = ProcessCpuSeconds();
    CAIRN_ASSIGN_OR_RETURN(const ProbePass pass, probe.WriteFresh(kShapes.at(shape)));
    const double cpu_taken = ProcessCpuSeconds() - cpu;
    direct_ = probe.direct();
    if (record && shape == 0) {
      CAIRN_ASSIGN_OR_RETURN(const ProbePass over, probe.Overwrite(kShapes[0]));
      CAIRN_ASSIGN_OR_RETURN(const ProbePass read, probe.Read(kShapes[0]));
      overwrite_.push_back(over.rate());
      read_.push_back(read.rate());
    }
    CAIRN_ASSIGN_OR_RETURN(const double commit, probe.Commit());
    if (!record) return pass;
    rates_.at(shape).push_back(pass.rate());
    begin_.push_back(begin);
    commit_.push_back(commit);
    cpu_.push_back(cpu_taken / static_cast<double>(pass.bytes));
    return pass;
  }

  [[nodiscard]] DiskRates Summary() const {
    DiskRates sum{.overwrite = Quantile(overwrite_, 0.5),
                  .read = Quantile(read_, 0.5),
                  .begin_seconds = Quantile(begin_, 0.5),
                  .commit_seconds = Quantile(commit_, 0.5),
                  .cpu_seconds_per_byte = Quantile(cpu_, 0.5),
                  .direct = direct_,
                  .passes = begin_.size()};
    std::vector<double> shares;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      if (rates_.at(i).empty()) continue;
      sum.shapes.push_back(kShapes.at(i));
      sum.shapes.back().write_rate = Quantile(rates_.at(i), 0.5);
      for (const double rate : rates_.at(i)) shares.push_back(rate / sum.shapes.back().write_rate);
    }
    sum.slow_share = std::min(1.0, Quantile(shares, 0.25));
    return sum;
  }

  IoQueue& queue_;
  const ProbeLimits& limits_;
  const std::string root_;
  std::byte* const memory_;
  const Clock::time_point end_;
  std::array<std::vector<double>, kShapes.size()> rates_;
  std::vector<double> overwrite_;
  std::vector<double> read_;
  std::vector<double> begin_;
  std::vector<double> commit_;
  std::vector<double> cpu_;
  bool direct_ = false;
};

}  // namespace

Result<DiskRates> ProbeDisk(const IoQueueFactory& factory, const std::string& root, const ProbeLimits& limits) {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t most, FileBytes(root, limits.file_bytes));
  // Before the queue: operations in flight use this memory until the queue is destroyed.
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<BufferPool> pool, BufferPool::Make(kProbeMemory, kProbeMemory, 1));
  const BufferPool::Chunk memory = pool->TryAcquire(BufferPool::Priority::kSave);
  // Random, because a disk may compress zeroes.
  std::mt19937_64 random(1);
  for (std::uint64_t at = 0; at < kProbeMemory; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, factory());
  return DiskProbe(*queue, limits, root, memory.data()).Run(most);
}

}  // namespace cairn
