#include "engine/staged_chunks.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// In one run: the first of them goes to the host once the last has arrived.
constexpr std::size_t kMostChunks = 32;

}  // namespace

StagingArea* StagedChunks::AreaOf(DeviceId id) const {
  const auto found = std::ranges::find_if(areas_, [id](const StagingArea& area) { return area.device()->id() == id; });
  return found == areas_.end() ? nullptr : &*found;
}

StagedChunks::Run StagedChunks::StageNext(std::uint64_t from) {
  for (StagingArea& area : areas_) {
    Progress& progress = progress_[&area];
    if (progress.staged_to < from) progress = {.staged_to = from};
    if (progress.needs_slot && area.full()) continue;
    if (Run run = StageOn(area, progress); !run.pieces.empty()) return run;
  }
  return {};
}

StagedChunks::Run StagedChunks::StageOn(StagingArea& area, Progress& progress) {
  Run run{.device = area.device()};
  progress.needs_slot = false;
  while (progress.staged_to < snapshot_.bytes() && run.begins.size() < kMostChunks &&
         run.pieces.size() < kMaxBatchOperations) {
    progress.needs_slot = !Stage(area, progress.staged_to, snapshot_.ChunkEnd(progress.staged_to), run);
    if (progress.needs_slot) break;
    progress.staged_to = snapshot_.NextChunk(progress.staged_to);
  }
  return run;
}

bool StagedChunks::Stage(StagingArea& area, std::uint64_t begin, std::uint64_t end, Run& run) {
  std::byte* const base = area.base();  // Replaced piece by piece.
  std::vector<Snapshot::Piece> pieces = snapshot_.Pieces(begin, end, base);
  const auto is_here = [&](const Snapshot::Piece& piece) { return piece.device == area.device()->id(); };
  const bool is_read_directly = std::ranges::any_of(pieces, [&](const Snapshot::Piece& piece) {
    return AreaOf(piece.device) == nullptr && (piece.device.kind != DeviceKind::kCpu || snapshot_.reads_cpu());
  });
  const bool stages = std::ranges::any_of(pieces, is_here);
  if (stages && area.full()) return false;
  Chunk& chunk = chunks_[begin];
  if (is_read_directly && !std::exchange(chunk.partly, true)) ++partly_staged_;
  if (!stages) return true;
  Slot& slot = chunk.slots[area.device()->id()];
  slot = {.area = &area, .layout = {.base = area.Acquire(), .row_bytes = chunk_bytes_, .bytes = chunk_bytes_}};
  run.begins.push_back(begin);
  for (Snapshot::Piece& piece : pieces) {
    if (!is_here(piece)) continue;
    piece.copy.memory = slot.layout.base + (piece.copy.memory - base);
    run.bytes += piece.copy.bytes();
    CopyPiece* const last = run.pieces.empty() ? nullptr : &run.pieces.back();
    if (last != nullptr && last->tensor == piece.copy.tensor && last->memory + last->bytes() == piece.copy.memory) {
      last->end = piece.copy.end;
    } else {
      run.pieces.push_back(piece.copy);
    }
  }
  return true;
}

bool StagedChunks::StagedFrom(std::uint64_t from) const {
  if (from == snapshot_.bytes()) return true;
  if (areas_.empty() || partly_staged_ != 0) return false;
  return std::ranges::all_of(areas_, [&](const StagingArea& area) {
    const auto progress = progress_.find(&area);
    return progress != progress_.end() && progress->second.staged_to == snapshot_.bytes();
  });
}

void StagedChunks::Arrived(const Run& run) {
  for (const std::uint64_t begin : run.begins) chunks_.at(begin).slots.at(run.device->id()).arrived = true;
}

bool StagedChunks::Arriving(std::uint64_t begin) const {
  const auto found = chunks_.find(begin);
  if (found == chunks_.end()) return false;
  return std::ranges::any_of(found->second.slots, [](const auto& slot) { return !slot.second.arrived; });
}

std::vector<DeviceId> StagedChunks::Redirect(std::uint64_t begin, std::vector<Snapshot::Piece>& pieces) {
  std::vector<DeviceId> devices;
  const auto found = chunks_.find(begin);
  if (found == chunks_.end()) return devices;
  Chunk& chunk = found->second;
  if (std::exchange(chunk.partly, false)) --partly_staged_;
  for (const auto& [device, slot] : chunk.slots) devices.push_back(device);

  std::byte* const buffer = pieces.empty() ? nullptr : pieces.front().copy.memory;
  std::vector<Snapshot::Piece> redirected;
  for (Snapshot::Piece& piece : pieces) {
    const auto slot = chunk.slots.find(piece.device);
    if (slot == chunk.slots.end()) {
      redirected.push_back(piece);
      continue;
    }
    const auto at = static_cast<std::uint64_t>(piece.copy.memory - buffer);
    const std::uint64_t bytes = piece.copy.bytes();
    Snapshot::Piece* const last = redirected.empty() ? nullptr : &redirected.back();
    if (last != nullptr && last->device == piece.device && last->copy.end == at) {
      last->copy.end += bytes;
    } else {
      redirected.push_back({piece.device, {&slot->second.layout, at, at + bytes, piece.copy.memory}});
    }
  }
  pieces = std::move(redirected);
  return devices;
}

void StagedChunks::Release(std::uint64_t begin) {
  const auto found = chunks_.find(begin);
  if (found == chunks_.end()) return;
  for (const auto& [device, slot] : found->second.slots) slot.area->Release(slot.layout.base);
  chunks_.erase(found);
}

void StagedChunks::ReleaseAll() {
  while (!chunks_.empty()) Release(chunks_.begin()->first);
}

}  // namespace cairn
