#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// How the writer is to work.
struct WriterSettings {
  std::uint64_t state_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunks = 0;  ///< In the shared memory.
  int in_flight = 1;
  int writers = 1;    ///< Threads a checkpoint.
  int core = 0;       ///< The only one that it runs on.
  bool polls = true;  ///< Looks for the next save again and again, as the authors' writer does, or sleeps until then.
  bool ordered = false;  ///< No checkpoint is recorded before an older one has ended.
  bool paced = false;    ///< There is an emulated disk.
};

/// Memory of both processes, every page touched: the settings, then the chunks that the GPU copies to.
class SharedMemory {
 public:
  [[nodiscard]] static Result<std::unique_ptr<SharedMemory>> Make(const WriterSettings& settings);
  /// The same memory, in the other process.
  [[nodiscard]] static Result<std::unique_ptr<SharedMemory>> Map(UniqueFd file);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] const WriterSettings& settings() const;
  [[nodiscard]] MutableBytes chunks() const { return memory_.subspan(kBlock); }
  [[nodiscard]] const UniqueFd& file() const { return file_; }

 private:
  SharedMemory(UniqueFd file, MutableBytes memory) : file_(std::move(file)), memory_(memory) {}

  const UniqueFd file_;
  const MutableBytes memory_;
};

}  // namespace cairn::bench
