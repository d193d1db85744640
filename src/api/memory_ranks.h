#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

// What the ranks of a group agree on before they keep saves in memory (Options::memory_root). All of them are on one
// node, and open one folder: rank 0 first, which says so together with root/ (see OpenSharedRoot). Keys begin with
// memory/:
//   joined    of each other rank: it has opened that folder, too, or why not.
//   begin     announced: all have. Otherwise Open fails on all ranks, with what one of them has said.
//   room/     of each other rank, from its first save: it has allocated its slots, or what is missing for them, or that
//             its call of that save was refused.
//   verdict/  announced: all have. Otherwise no rank keeps anything in this run; unless a call was refused (Cancelled):
//             then that save fails, and the next one is another round.
// The saves that are kept are agreed on by keys of the same prefix, those that are drained by their attempts' ids: see
// Coordination, MemoryRoot.

/// Of rank 0's memory root, when it has opened it.
struct MemoryOfRank0 {
  /// Empty if there is none in this run.
  std::string writer_id = {};
  /// What an earlier run has kept there, which is drained now; or empty.
  std::string found_attempt = {};
};
/// What rank 0 says of it.
[[nodiscard]] std::string SayMemory(const MemoryOfRank0& memory);
/// On another rank. From what rank 0 has `said`, which is empty if it has no memory_root. InvalidArgument if this rank
/// has one and rank 0 has none, or the other way round, or if they are on different nodes.
[[nodiscard]] Result<MemoryOfRank0> CheckMemoryOfRank0(const Options& options, int rank, const std::string& said);
/// Once this rank's Open has ended with `opened`: joined/ and begin/. Ok if Open fails anyway, and without a memory
/// root on rank 0.
[[nodiscard]] Status MeetInMemory(const Options& options, const std::string& said, const Status& opened);

/// Whether all ranks have room for what they keep. Safe from any thread.
class RoomOfRanks : public std::enable_shared_from_this<RoomOfRanks> {
 public:
  RoomOfRanks(const std::shared_ptr<Group>& group, std::uint64_t round)
      : group_(group), rank_(group->rank()), round_(round) {}
  /// Begins to listen.
  void Begin();
  /// This rank has it, or not. Only the first call has an effect.
  void Say(const Status& own) CAIRN_EXCLUDES(mutex_);
  /// What is missing on some rank, if anything. None if not all ranks have said it by then.
  [[nodiscard]] std::optional<Status> Verdict(Deadline deadline) const CAIRN_EXCLUDES(mutex_);

 private:
  void OnAll(const Status& others) CAIRN_EXCLUDES(mutex_);
  void OnVerdict(const Status& verdict) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::string Key(const char* kind) const;
  /// On rank 0, once all have said it.
  void Announce() CAIRN_EXCLUDES(mutex_);

  // The group may hold this.
  const std::weak_ptr<Group> group_;
  const int rank_;
  const std::uint64_t round_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::optional<Status> own_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Status> others_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Status> verdict_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
