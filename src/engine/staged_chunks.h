#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "engine/snapshot.h"
#include "engine/staging.h"

namespace cairn {

/// The chunks of one save that are copied to staging memory before the pool has buffers for them, in stream order for
/// each device: one whose area is full holds up no other.
///
/// A chunk has the same layout in its slots as in its buffer. For the engine's thread.
class StagedChunks {
 public:
  StagedChunks(std::deque<StagingArea>& areas, const Snapshot& snapshot, std::uint64_t chunk_bytes)
      : areas_(areas), snapshot_(snapshot), chunk_bytes_(chunk_bytes) {}
  StagedChunks(const StagedChunks&) = delete;
  StagedChunks& operator=(const StagedChunks&) = delete;

  /// What one device copies to its slots of some chunks, and what tells that this has ended.
  struct Run {
    Device* device = nullptr;
    /// Of the chunks.
    std::vector<std::uint64_t> begins;
    /// Merged where tensors go on in the next chunk, and slots lie back to back.
    std::vector<CopyPiece> pieces;
    std::uint64_t bytes = 0;
  };
  /// Takes slots for some device's next chunks, from the one that begins at `from` on, and returns the copies that fill
  /// them: as many chunks as one batch is enough for, so that its end tells of all. Without pieces: there is no chunk
  /// left that has a slot now.
  [[nodiscard]] Run StageNext(std::uint64_t from);
  /// No copy to the host of a chunk from the one that begins at `from` on reads the caller's tensors.
  [[nodiscard]] bool StagedFrom(std::uint64_t from) const;

  /// The run's copies have ended.
  void Arrived(const Run& run);
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
    bool arrived = false;
  };
  struct Chunk {
    std::map<DeviceId, Slot> slots;
    // Some of its tensors are on devices without an area, and are not read yet.
    bool partly = false;
  };
  struct Progress {
    // Every chunk before this one has a slot in the area, or needs none.
    std::uint64_t staged_to = 0;
    // The next one found the area full.
    bool needs_slot = false;
  };
  [[nodiscard]] StagingArea* AreaOf(DeviceId id) const;
  [[nodiscard]] Run StageOn(StagingArea& area, Progress& progress);
  // If the chunk has tensors of the area's device, takes a slot and adds their copies to the run. False if there is no
  // slot.
  [[nodiscard]] bool Stage(StagingArea& area, std::uint64_t begin, std::uint64_t end, Run& run);

  // Grows at its end while chunks are staged.
  std::deque<StagingArea>& areas_;
  const Snapshot& snapshot_;
  const std::uint64_t chunk_bytes_;
  std::map<const StagingArea*, Progress> progress_;
  std::uint64_t partly_staged_ = 0;
  // By begin. Layouts stay where they are until the chunk is released.
  std::map<std::uint64_t, Chunk> chunks_;
};

}  // namespace cairn
