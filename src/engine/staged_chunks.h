#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "engine/snapshot.h"
#include "engine/staging.h"

namespace cairn {

/// The chunks of one save that are copied to staging memory before the pool has buffers for them, in stream order.
///
/// A chunk has the same layout in its slot as in its buffer. For the engine's thread.
class StagedChunks {
 public:
  StagedChunks(std::deque<StagingArea>& areas, const Snapshot& snapshot, std::uint64_t chunk_bytes)
      : areas_(areas), snapshot_(snapshot), chunk_bytes_(chunk_bytes) {}
  StagedChunks(const StagedChunks&) = delete;
  StagedChunks& operator=(const StagedChunks&) = delete;

  struct Staged {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::map<Device*, std::vector<CopyPiece>> copies;
  };
  /// Takes slots for the next chunk, which begins at `from` at the earliest, and returns the copies that fill them.
  /// Without copies: there is no chunk left, or no slot for it now.
  [[nodiscard]] Staged StageNext(std::uint64_t from);
  /// Every chunk before this one is staged, or was not to be.
  [[nodiscard]] std::uint64_t staged_to() const { return staged_to_; }
  /// Staged chunks with tensors that only the copy to the host reads.
  [[nodiscard]] std::uint64_t partly_staged() const { return partly_staged_; }

  /// The copies of the chunk that begins there have arrived in its slots.
  void Arrived(std::uint64_t begin);
  /// The chunk is staged, but has not arrived yet.
  [[nodiscard]] bool Arriving(std::uint64_t begin) const;
  /// Changes the chunk's pieces, which are in stream order, to read from its slots where it is staged. Returns the
  /// devices that they then read staged memory of.
  [[nodiscard]] std::vector<DeviceId> Redirect(std::uint64_t begin, std::vector<Snapshot::Piece>& pieces);
  /// Frees the slots of the chunk that begins there, or of all.
  void Release(std::uint64_t begin);
  void ReleaseAll();

 private:
  struct Slot {
    StagingArea* area = nullptr;
    StridedLayout layout;
  };
  struct Chunk {
    std::map<DeviceId, Slot> slots;
    bool arrived = false;
    // Some of its tensors have no slot and are not read yet.
    bool partly = false;
  };
  [[nodiscard]] StagingArea* AreaOf(DeviceId id) const;

  // Grows at its end while chunks are staged.
  std::deque<StagingArea>& areas_;
  const Snapshot& snapshot_;
  const std::uint64_t chunk_bytes_;
  std::uint64_t staged_to_ = 0;
  std::uint64_t partly_staged_ = 0;
  // By begin. Layouts stay where they are until the chunk is released.
  std::map<std::uint64_t, Chunk> chunks_;
};

}  // namespace cairn
