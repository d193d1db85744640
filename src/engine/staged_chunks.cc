#include "engine/staged_chunks.h"

#include <algorithm>
#include <utility>

namespace cairn {

StagingArea* StagedChunks::AreaOf(DeviceId id) const {
  const auto found =
      std::find_if(areas_.begin(), areas_.end(), [id](const StagingArea& area) { return area.device()->id() == id; });
  return found == areas_.end() ? nullptr : &*found;
}

StagedChunks::Staged StagedChunks::StageNext(std::uint64_t from) {
  // A chunk may have tensors of every device.
  if (areas_.empty() || std::any_of(areas_.begin(), areas_.end(), [](const auto& area) { return area.full(); })) {
    return {};
  }
  staged_to_ = std::max(staged_to_, from);
  while (staged_to_ < snapshot_.bytes()) {
    const std::uint64_t begin = staged_to_;
    Staged staged{.begin = begin, .end = std::min(begin + chunk_bytes_, snapshot_.bytes()), .copies = {}};
    staged_to_ = staged.end;
    Chunk& chunk = chunks_[begin];
    std::byte* const base = areas_.front().base();  // Replaced piece by piece.
    for (Snapshot::Piece& piece : snapshot_.Pieces(begin, staged.end, base)) {
      StagingArea* const area = AreaOf(piece.device);
      if (area == nullptr) {
        chunk.partly = chunk.partly || piece.device.kind != DeviceKind::kCpu || snapshot_.reads_cpu();
        continue;
      }
      auto [slot, is_new] = chunk.slots.try_emplace(piece.device);
      if (is_new) {
        slot->second = {.area = area,
                        .layout = {.base = area->Acquire(), .row_bytes = chunk_bytes_, .bytes = chunk_bytes_}};
      }
      piece.copy.memory = slot->second.layout.base + (piece.copy.memory - base);
      staged.copies[area->device()].push_back(piece.copy);
    }
    if (chunk.partly) ++partly_staged_;
    if (!staged.copies.empty()) return staged;
    chunk.arrived = true;
  }
  return {};
}

void StagedChunks::Arrived(std::uint64_t begin) { chunks_.at(begin).arrived = true; }

bool StagedChunks::Arriving(std::uint64_t begin) const {
  const auto found = chunks_.find(begin);
  return found != chunks_.end() && !found->second.arrived;
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
