#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/pccheck/channel.h"
#include "bench/pccheck/shared_memory.h"
#include "cairn/status.h"

namespace cairn::bench {

/// PCcheck's writer: a process of its own, bench_pccheck_writer, that keeps a training's checkpoints in its slot file.
///
/// It ends as soon as the training's process has ended or lets go of it, in whatever way; only a write that the kernel
/// is busy with holds it up. Until then it holds the slot file, and the next writer waits for that.
class WriterProcess {
 public:
  /// Returns when it is ready. `slots` is the path of the slot file, which the writer lays out if there is none.
  [[nodiscard]] static Result<std::unique_ptr<WriterProcess>> Start(const std::string& slots,
                                                                    const SharedMemory& memory);
  /// Shuts the channels, so that every wait on them ends, and waits for the process's end.
  ~WriterProcess();
  WriterProcess(const WriterProcess&) = delete;
  WriterProcess& operator=(const WriterProcess&) = delete;

  void Shut();
  /// How it ended; waits for that.
  [[nodiscard]] Status Death() const;
  [[nodiscard]] PcCheckChannel& control() { return channels_[0]; }
  [[nodiscard]] PcCheckChannel& disk() { return channels_[1]; }
  [[nodiscard]] PcCheckChannel& saver(int saver) { return channels_[2 + static_cast<std::size_t>(saver)]; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  WriterProcess() = default;

  std::vector<PcCheckChannel> channels_;
  pid_t pid_ = -1;
};

/// The writer's descriptors: the shared memory, the channels for control and for the disk, and one for each checkpoint
/// in flight.
inline constexpr int kWriterMemoryFd = 3;
inline constexpr int kWriterControlFd = 4;
inline constexpr int kWriterDiskFd = 5;
inline constexpr int kWriterFirstSaverFd = 6;
/// Its body. Ends the process.
[[noreturn]] void RunWriter(const std::string& slots);

}  // namespace cairn::bench
