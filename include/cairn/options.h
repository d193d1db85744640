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
  /// Saturates: a span too long to be added is for ever.
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

/// What Save does when Options::max_in_flight saves are on their way already.
enum class WhenFull : std::uint8_t {
  kWait,     ///< Hold the caller up, until Options::full_deadline; the time counts as stall.
  kSkip,     ///< Give this save up; its handle ends Cancelled.
  kReplace,  ///< Give up the youngest save that is not captured, or wait where every one is.
};

enum class IoQueueKind : std::uint8_t {
  kAuto,     ///< io_uring where the kernel and its sandbox allow it, else threads.
  kUring,    ///< io_uring, or Open fails with the reason.
  kThreads,  ///< pread/pwrite threads.
};

/// What Checkpointer::ShouldSave keeps to.
struct SteeringOptions {
  /// How much longer training may take for its saves, above 0 up to 1: 0.01 is one per cent.
  double slowdown = 0.01;
  /// Running time from one failure of the whole job to the next, on average.
  std::chrono::nanoseconds mtbf = std::chrono::hours(24);
  /// From a failure until training goes on.
  std::chrono::nanoseconds restart{0};
};

struct Options {
  // Behaviour.

  /// Directory of the run's checkpoints; made, with its parents, where missing. One writer a root.
  std::string root;
  /// Take no lock, sweep nothing, refuse every call that writes; waits find nothing in flight.
  bool read_only = false;
  /// How long Open waits for the lock of another writer before it fails and names that one: a job that is restarted may
  /// meet its predecessor's end. One of this very process is not waited for.
  std::chrono::nanoseconds open_deadline = std::chrono::seconds(10);
  /// Takes the root over from a writer that holds the lock longer (a machine that hangs, and with it its lock). From
  /// then on that one's saves fail, should it ever go on.
  bool take_over = false;
  /// Committed checkpoints to keep, newest first by {generation, step}. 0 keeps all.
  std::uint64_t keep_last = 3;
  /// Also keep every step divisible by this. 0: none. Pinned checkpoints always stay.
  std::uint64_t keep_every = 0;
  /// Saves between queued and durable at once, 1 to 64. Each may hold a copy of the state on disk.
  int max_in_flight = 2;
  /// In a group rank 0's saves decide.
  WhenFull when_full = WhenFull::kWait;
  /// How long Save holds the caller before it fails with DeadlineExceeded: where every place is taken
  /// (WhenFull::kWait), and while an old checkpoint of its step is being removed.
  std::chrono::nanoseconds full_deadline = std::chrono::hours(1);
  /// How long the destructor waits for saves in flight before it abandons them (they are reported as failed).
  std::chrono::nanoseconds drain_deadline = std::chrono::minutes(10);
  /// How long it then waits for what the kernel and the devices have under way. What has not ended by then (a disk that
  /// hangs) is left behind with what it uses: threads, the pool, the root's lock, until the process ends.
  std::chrono::nanoseconds close_deadline = std::chrono::minutes(1);
  /// The ranks that write each checkpoint together, and this one among them; null: this process alone. All of them open
  /// one root, and call Save alike: as often, and with the same steps. Rank 0 decides what becomes of each save.
  std::shared_ptr<Group> group = nullptr;
  /// How long the coordinator waits, once its own shard is written, for those of the others; and they for its word that
  /// a save begins. For the outcome they wait twice that, and then look on the disk.
  std::chrono::nanoseconds group_deadline = std::chrono::minutes(10);
  /// Permissions of the files and directories made, before the umask. A group's evaluation job wants 0640 and 0750.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
  /// Lets Checkpointer::ShouldSave choose when to save, by what saves are seen to cost. Without it that call is
  /// refused; with several ranks it is refused at Open.
  std::optional<SteeringOptions> steering = std::nullopt;
  /// Everything worth telling; the library prints nothing. May be empty.
  EventCallback on_event = nullptr;

  // Performance.

  /// Hard cap of the pinned pool, in bytes. More lets captures run ahead of the disk; the state itself may be larger.
  /// At least queue_depth chunks, and at most what the process's memory control group has left (Open refuses more).
  /// Memory that describes tensors (1 KiB and the name, each, per save) comes on top.
  std::uint64_t host_memory_bytes = 1ULL << 30;
  /// Size of one copy and one write: a multiple of 1 MiB, up to 1 GiB. 0: 8 MiB, not seen to be slower than 4 MiB
  /// and a tenth less CPU time (scripts/bench roofline --only chunks), or 4 MiB where the pool holds less than twice
  /// queue_depth of those.
  std::uint64_t chunk_bytes = 0;
  /// Writes (and reads) given to the disk at once.
  int queue_depth = 8;
  /// Threads that checksum, and that copy CPU tensors. 0: up to 4, by the machine's cores.
  int worker_threads = 0;
  /// CUDA copy streams a device.
  int copy_streams = 2;
  /// Device memory, in bytes a device, that snapshots may be staged in. 0: none. Taken at Open.
  std::uint64_t staging_bytes = 0;
  /// CUDA devices that saves will use. Empty: found from the first state's tensors, which then pays for their setup.
  std::vector<int> cuda_devices = {};
  /// CRC32C over every MiB. Off: files are committed without a block table and restore cannot find a flipped bit.
  bool checksums = true;
  /// Write new checkpoints over the blocks of retired ones that nobody has open, mapped or linked: a quarter faster
  /// than laying out new ones. With them keep_last + max_in_flight + 1 checkpoints are on the disk at most, plus what
  /// keep_every and pins keep. Off: what retention retires is unlinked.
  bool recycle = true;
  IoQueueKind io_queue = IoQueueKind::kAuto;
  /// Events kept for WriteTrace. 0: tracing is off.
  std::size_t trace_events = 0;
};

}  // namespace cairn
