#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <string>

#include "cairn/group.h"

namespace cairn {

/// How many ranks run on this node: they share its memory, its cores and often its disk.
///
/// The variables of the launcher say it: torchrun's, Open MPI's, MPICH's and Intel MPI's, SLURM's. They are read in
/// this order, because mpirun may have started its own helpers through SLURM. The first one that is set counts, unless
/// it contradicts the group or is no number. Otherwise the ranks of the group that have the same NodeName are counted.
///
/// Where nothing tells the number, it is the whole group. That may be too large, which makes pools too small and saves
/// slower; too small a number would take more memory than the node has.
struct NodeRanks {
  std::uint64_t count = 1;
  /// For an event: from where the number is known, and what was not believed.
  std::string source = {};
  /// Nothing tells it.
  bool guessed = false;
};

/// Equal for all processes of a machine, in its containers too, whatever their host names are: the kernel's boot id.
/// The host name, where a sandbox does not show the boot id.
[[nodiscard]] std::string NodeName();

/// Every rank calls it once when it opens. Rank 0 collects the names of all ranks, and tells the others how often each
/// was there. A rank that need not ask, because its launcher's variable says the number, or because it is not `needed`,
/// calls `then` at once; if that is rank 0, the others do not hear the names either. By the deadline `then` is called
/// at the latest, once, from any thread.
void MeetNodeRanks(Group& group, const std::string& name, bool needed, Deadline deadline,
                   std::function<void(NodeRanks)> then);
/// The same for a caller that blocks; not for one in a callback of the group.
[[nodiscard]] std::future<NodeRanks> FindNodeRanks(Group& group, bool needed, Deadline deadline);

}  // namespace cairn
