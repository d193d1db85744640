#include "mirror/choose.h"

#include <algorithm>
#include <tuple>

namespace cairn {
namespace {

std::tuple<std::uint64_t, std::uint64_t> Age(const CheckpointInfo& info) { return {info.line, info.step}; }

const StoredCheckpoint* FindStep(std::span<const StoredCheckpoint> list, std::uint64_t step) {
  const auto found = std::ranges::find_if(list, [step](const auto& one) { return one.info.step == step; });
  return found == list.end() ? nullptr : &*found;
}

/// Whether the target lacks it. What cannot be read there counts as nothing.
bool IsMissing(const StoredCheckpoint& one, std::span<const StoredCheckpoint> target,
               const std::set<std::string>& copied) {
  const StoredCheckpoint* const there = FindStep(target, one.info.step);
  if (there == nullptr || !there->info.status.ok()) return true;
  return there->info.attempt != one.info.attempt && there->info.line <= one.info.line &&
         !IsAnothers(one, target, copied);
}

}  // namespace

bool IsAnothers(const StoredCheckpoint& one, std::span<const StoredCheckpoint> target,
                const std::set<std::string>& copied) {
  const StoredCheckpoint* const there = FindStep(target, one.info.step);
  return there != nullptr && there->info.status.ok() && there->info.line == one.info.line &&
         there->info.attempt != one.info.attempt && !copied.contains(there->info.attempt);
}

std::vector<std::uint64_t> ChooseOldDamaged(std::span<const CheckpointInfo* const> list, const MirrorRules& rules) {
  std::vector<std::uint64_t> kept;
  for (auto one = list.rbegin(); one != list.rend() && kept.size() < rules.keep_last; ++one) {
    if ((*one)->status.ok()) kept.push_back((*one)->step);
  }
  if (kept.empty() || kept.size() < rules.keep_last) return {};
  std::vector<std::uint64_t> damaged;
  for (const CheckpointInfo* one : list) {
    // What a later version has written may be whole.
    const bool is_damaged = one->status.code() == StatusCode::kCorrupt;
    const bool is_kept = rules.keep_every != 0 && one->step % rules.keep_every == 0;
    if (is_damaged && !is_kept && one->step < std::ranges::min(kept)) damaged.push_back(one->step);
  }
  return damaged;
}

std::vector<const StoredCheckpoint*> ChooseDue(std::span<const StoredCheckpoint> root,
                                               std::span<const StoredCheckpoint> target, const MirrorRules& rules,
                                               const std::set<std::string>& copied,
                                               const std::map<std::string, std::string>& damaged) {
  std::vector<const StoredCheckpoint*> due;
  for (const StoredCheckpoint& one : root) {
    const bool good = one.info.status.ok() && !damaged.contains(one.info.attempt);
    const bool taken = good && one.info.step % rules.every == 0;
    if (taken && IsMissing(one, target, copied)) due.push_back(&one);
  }
  // What the target would have with all of them. The root's pins are its own.
  std::vector<CheckpointInfo> all;
  for (const StoredCheckpoint* one : due) {
    all.push_back(one->info);
    all.back().pinned = false;
  }
  for (const StoredCheckpoint& one : target) {
    const bool replaced = std::ranges::any_of(due, [&](const auto* by) { return by->info.step == one.info.step; });
    if (one.info.status.ok() && !replaced) all.push_back(one.info);
  }
  std::ranges::sort(all, {}, Age);
  std::vector<const CheckpointInfo*> list;
  for (const CheckpointInfo& one : all) list.push_back(&one);
  const std::vector<std::uint64_t> retired = ChooseRetired(list, rules.keep_last, rules.keep_every);
  std::erase_if(due,
                [&retired](const auto* one) { return std::ranges::find(retired, one->info.step) != retired.end(); });
  std::ranges::reverse(due);
  return due;
}

}  // namespace cairn
