#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/stats.h"
#include "cairn/tensor.h"

namespace cairn {

class Group;

inline namespace literals {
constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) { return n << 30; }
}  // namespace literals

/// A moment after which a wait gives up. Default: never.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] static Deadline Infinite() { return Deadline(Clock::time_point::max()); }
  [[nodiscard]] static Deadline At(Clock::time_point when) { return Deadline(when); }
  /// After `span` from now. Infinite where that is beyond the clock's range.
  [[nodiscard]] static Deadline In(std::chrono::nanoseconds span) {
    const auto now = Clock::now();
    return span >= Clock::time_point::max() - now ? Infinite() : Deadline(now + span);
  }
  [[nodiscard]] Clock::time_point when() const { return when_; }
  [[nodiscard]] bool infinite() const { return when_ == Clock::time_point::max(); }
  [[nodiscard]] bool passed() const { return !infinite() && Clock::now() >= when_; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

/// What Save does when Options::max_in_flight saves are already in flight.
enum class WhenFull : std::uint8_t {
  kWait,     ///< Block the caller, at most Options::full_timeout. The time counts as stall.
  kSkip,     ///< Skip this save. Its handle ends Cancelled.
  kReplace,  ///< Cancel the youngest save that is not captured yet. If all are captured, wait.
};

enum class IoQueueKind : std::uint8_t {
  kAuto,     ///< io_uring if the kernel and its sandbox allow it, otherwise threads.
  kUring,    ///< io_uring. If it is unavailable, Open fails with the reason.
  kThreads,  ///< pread/pwrite threads.
};

/// Whether checkpoints with tensors that are not finite are marked.
enum class MarkNonFinite : std::uint8_t {
  kAuto,  ///< kMark where it costs little: the host computes the checksums, and the CPU has AVX2. Otherwise kOff.
  kOff,
  kMark,
};

/// The goals of Checkpointer::ShouldSave.
struct SteeringOptions {
  /// How much saves may slow training down: above 0, at most 1. 0.01 is one per cent.
  double slowdown = 0.01;
  /// Mean time between failures of the whole job.
  std::chrono::nanoseconds mtbf = std::chrono::hours(24);
  /// Time from a failure until training continues.
  std::chrono::nanoseconds restart_time{0};
};

/// A copy of a root's checkpoints elsewhere, which a process of its own makes: `cairn mirror`.
struct MirrorSpec {
  /// A directory of its own, made if it is missing; or a place in an object store, by rclone: "s3://BUCKET/PREFIX",
  /// "gs://", "az://" or "rclone:REMOTE:PATH".
  std::string target = {};
  /// Only steps divisible by it: 1 or more.
  std::uint64_t every = 1;
  /// Checkpoints to keep there, newest first. 0 keeps all.
  std::uint64_t keep_last = 0;
  /// With keep_last: also keep each step divisible by it. 0: none.
  std::uint64_t keep_every = 0;
  /// How many bytes it may copy in a second. 0: no limit.
  std::uint64_t bandwidth = 0;
};

struct Options {
  // Behaviour.

  /// Directory of the run's checkpoints. Created, with its parents, if missing. It has one writer at a time.
  std::string root = {};
  /// A folder on tmpfs, such as "/dev/shm": saves are first kept there, in a root of their own. Then the death of the
  /// process loses none (that of the machine does), and no save waits for the disk. Empty: none.
  ///
  /// The disk gets what it can take: whenever it is free, the newest that is kept. A save that a newer one has
  /// overtaken before that never gets there (SaveHandle::WaitDurable), and the destructor waits for the newest; so it
  /// is with what an earlier run has left there alone. Restore takes the newest of both places; a copy in memory that
  /// is damaged is passed over for the disk's copy of the same save. Pinned saves, and those of keep_every, go to the
  /// disk alone; of several ranks, those of rank 0.
  ///
  /// Takes max_in_flight + 2 times the state of memory, allocated by the first Save, and again by one of a state of
  /// another size. For GPUs it is pinned in that call, too: they copy into it, without staging_bytes. Where it is more
  /// than the tmpfs, the machine or the control group has, or cannot be pinned, an event says so, and saves go to the
  /// disk alone. For ranks of one node, all with the same memory_root, and with checksums. What is frozen is written
  /// each time. Opened read_only, only reads look there.
  std::string memory_root = {};
  /// With memory_root: the disk gets a save only if its step is at least so many above that of the newest that it
  /// has; 0: whenever it is free. Whoever waits for the disk (Drain, SaveHandle::WaitDurable, the destructor) has it
  /// get the newest at once; of several ranks, whoever does so on rank 0.
  std::uint64_t disk_every = 0;
  /// Only read: no lock is taken, nothing is removed, and every call that writes is refused.
  bool read_only = false;
  /// How long Open waits while another process writes the root, before it fails and names that process. A restarted job
  /// may overlap with the end of the previous one. Open does not wait for a writer in the same process.
  std::chrono::nanoseconds open_timeout = std::chrono::seconds(10);
  /// If the other writer still holds the root after open_timeout, take the root from it (its machine may hang). All
  /// its later saves fail, even if it continues.
  bool take_over = false;
  /// Committed checkpoints to keep, newest first by {line, step}. 0 keeps all.
  /// The newest one that has written all that is frozen in it stays in any case: those behind it link that.
  std::uint64_t keep_last = 3;
  /// Also keep every step divisible by this. 0: none. Pinned checkpoints always stay.
  std::uint64_t keep_every = 0;
  /// How many saves may be between queued and durable at once: 1 to 64. Each may hold a copy of the state on disk.
  int max_in_flight = 2;
  /// What to do at that limit. In a group rank 0 decides for all.
  WhenFull when_full = WhenFull::kWait;
  /// How long Save blocks the caller before it fails with DeadlineExceeded. It blocks at the limit of saves in flight
  /// (WhenFull::kWait), and while an old checkpoint of the same step is being removed.
  std::chrono::nanoseconds full_timeout = std::chrono::hours(1);
  /// When the disk has not answered an operation for so long, it counts as hung. The saves that wait for it then fail,
  /// on all ranks, and further ones fail at once, until it answers; one whose rename was under way ends UnknownOutcome.
  /// Fences return once the device's copies have ended, so training goes on. An event has named the operation after a
  /// second, and again with growing pauses. Shorter than what gives the job up for hung (NCCL's watchdog: 10 minutes),
  /// longer than any one operation: a write of chunk_bytes, an fsync. What removes files does not count. 0: never.
  std::chrono::nanoseconds stall_timeout = std::chrono::minutes(2);
  /// How long the destructor may take. It waits for saves in flight; for the last quarter of the time, at most 5 s, it
  /// abandons them, which are reported as failed, and waits for the kernel and the devices to finish their requests. If
  /// these do not, they stay behind with the threads and the pool, which remain until the process ends. So does the
  /// removal of older checkpoints. The root's lock is released once they have ended.
  std::chrono::nanoseconds close_timeout = std::chrono::minutes(10);
  /// The ranks that write each checkpoint together, this one included. Null: this process alone. All ranks open the
  /// same root, and make the same calls of Save, with the same steps. Rank 0 decides what becomes of each save.
  std::shared_ptr<Group> group = nullptr;
  /// How long rank 0 waits for the other ranks' shards, once its own is written, and how long the others wait for rank
  /// 0 to begin the save. A rank looks as long for what another rank has made but its own filesystem does not show yet.
  /// For the outcome the others wait twice as long, and then look on the disk. A save that
  /// replaces a step waits half as long for processes that read the old one.
  std::chrono::nanoseconds group_timeout = std::chrono::minutes(10);
  /// Permissions of new files and directories, before the umask. Use 0640 and 0750 if another user of the same group,
  /// such as an evaluation job, reads the checkpoints.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
  /// Lets Checkpointer::ShouldSave choose when to save, from the measured cost of saves. Without it ShouldSave fails.
  /// With several ranks ask rank 0 only, and tell the others its answer: all of them must make the same saves.
  std::optional<SteeringOptions> steering = std::nullopt;
  /// After how many failed or refused saves in a row training should stop. See CheckFailures, also for 0.
  int stop_after_failures = 0;
  /// Receives everything worth reporting; the library prints nothing. May be empty.
  EventCallback on_event = nullptr;
  /// A file, "<path>.prom", for node_exporter's textfile collector: Checkpointer::MetricsText, replaced at each save's
  /// end and every 15 s. In a group each rank has one, "<path>-rank<R>.prom". Many jobs may share the folder, which
  /// must exist. Removed when the Checkpointer is closed, so that nobody is alerted of a job that has ended; a process
  /// that dies leaves it. If it cannot be written, an event says so once, and nothing fails. Empty: none.
  std::string metrics_file = {};
  /// Copies of the checkpoints, each made by a child process that is started again, with a growing pause, if it dies.
  /// Whatever becomes of one, nothing waits for it; events say what goes wrong. In a group rank 0 starts them. A child
  /// is a session of its own, ignores the program's signals, and outlives a program that is killed until it has copied
  /// what is due.
  std::vector<MirrorSpec> mirrors = {};
  /// How long the destructor waits, within close_timeout, until the mirrors have copied what is due. An event names
  /// those that take longer: they go on behind, and end by themselves.
  std::chrono::nanoseconds mirror_timeout = std::chrono::seconds(60);
  /// If the root has no checkpoint, Open first copies the newest one from here: a mirror of the root, as in
  /// MirrorSpec::target. Rank 0 does so, and the others wait for it. Where there is none either, an event says so, and
  /// the root begins empty. But if it cannot be read, Open fails, and names it: DeadlineExceeded once nothing has moved
  /// for group_timeout; FailedPrecondition if the root's directory is of another id. So too if a mirror's directory is
  /// missing: its disk may not be mounted. Empty: none.
  std::string restore_from = {};
  /// The `cairn` command, for mirrors and restore_from. Empty: the one beside this program, or else in PATH.
  std::string mirror_command = {};

  // Performance.

  /// Hard limit of the pinned pool, in bytes. A larger pool lets captures run ahead of the disk. The state itself may
  /// be larger than the pool. Minimum: queue_depth chunks. Maximum: what the process's memory control group has left
  /// (Open refuses more). Descriptions of tensors, 1 KiB and the name for each tensor of each save, are not counted.
  ///
  /// 0 chooses: the state's size, but at most a quarter of the memory that is available, divided by the ranks of this
  /// node, or 32 MiB; InvalidArgument for queue_depth chunks that need more. Open makes 2 * queue_depth chunks. The
  /// first Save of a larger state, or a Restore before it, makes a thread add the rest; for GPUs it is pinned, some
  /// tenths of a second per GiB, and an event says so. With a size all of it is pinned at Open.
  ///
  /// The ranks of this node are what the launcher's variables say (torchrun, MPI, SLURM), or the ranks of the group on
  /// the same machine: then Open waits until every rank has called it, at most group_timeout. An event says the number
  /// and from where it is known. Where nothing tells it, it is the whole group: too small a pool is slow, too large a
  /// one takes memory that is not there. Nobody waits if host_memory_bytes, queue_depth and worker_threads are given.
  std::uint64_t host_memory_bytes = 0;
  /// Size of one copy and one write, in bytes: a multiple of 1 MiB, at most 1 GiB. 0 means 8 MiB, or 4 MiB if the
  /// pool's limit is below 2 * queue_depth chunks of 8 MiB. 8 MiB is as fast and takes a tenth less CPU time
  /// (scripts/bench roofline --only chunks).
  std::uint64_t chunk_bytes = 0;
  /// How many writes (and reads) the disk has at once. 0: 8, divided by the ranks of this node, at least 2.
  int queue_depth = 0;
  /// Threads that compute checksums and copy CPU tensors. 0: one for each core, divided by the ranks of this node, at
  /// most 4.
  int worker_threads = 0;
  /// CUDA copy streams for each device.
  int copy_streams = 2;
  /// Device memory, in bytes for each device, to which snapshots are copied first, chunk by chunk; each chunk is free
  /// again once it has been copied to the host. A fence then waits only for what does not fit. At least chunk_bytes;
  /// allocated at Open. 0: none.
  std::uint64_t staging_bytes = 0;
  /// CUDA devices that saves will use, set up at Open: streams, events, staging, the pool pinned. A device that is not
  /// named here is set up by SetUp or by the first call that uses it, and an event says so.
  std::vector<int> cuda_devices = {};
  /// Compute a CRC32C over every MiB. Without it a restore cannot find a flipped bit.
  bool checksums = true;
  /// Have GPUs compute the checksums of their tensors, so that they cost almost no host core; they then also cover the
  /// way from the GPU's memory to the file. In each save the host compares one block in 32 with its copy, and if they
  /// differ, the save fails with Corrupt. The host computes those of chunks that are not all contiguous tensors of one
  /// GPU (staging makes strided ones contiguous), and all of them where a GPU cannot run Cairn's kernels: a warning
  /// says why. Takes pinned memory, about 1/512 of the pool at most. Proven on an H200 alone.
  bool gpu_checksums = false;
  /// Look for NaNs and infinities in floating point tensors (not in F8_E8M0) while the host computes their checksums,
  /// and mark the checkpoint if any rank finds some: CheckpointInfo::nonfinite. Nothing fails. Retention keeps the
  /// newest checkpoint of the best kind (finite; with infinities; with NaNs) besides keep_last, if it is older than
  /// these. So where all have infinities on purpose, as masks do, these count as finite. Costs one to two per cent of
  /// the time of copies and checksums; five for tensors below 128 KiB in the CPU's memory. kMark needs `checksums`
  /// without gpu_checksums.
  MarkNonFinite nonfinite = MarkNonFinite::kAuto;
  /// Write new checkpoints over the blocks of retired ones, if nobody has those open, mapped or linked. This is a
  /// quarter faster than allocating new blocks. At most keep_last + max_in_flight + 1 checkpoints are then on the disk,
  /// plus those that keep_every and pins keep, and one that `nonfinite` keeps. Off: retired checkpoints are unlinked.
  bool recycle = true;
  IoQueueKind io_queue = IoQueueKind::kAuto;
  /// How many events to keep for WriteTrace. 0: tracing is off.
  std::size_t trace_events = 0;
};

}  // namespace cairn
