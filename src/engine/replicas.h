#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/checkpointer.h"

namespace cairn {

// Replicated values, which several ranks give: which rank writes them, and whether they are equal. Pure functions.

/// A name, and what must be equal on all ranks: "F32 [3, 4]" for a tensor, the caller's text for anything else.
using ReplicatedValue = std::pair<std::string, std::string>;

/// All replicated values of a rank.
struct ReplicatedValues {
  /// Tensors last.
  std::vector<ReplicatedValue> all;
  /// The rank that writes each of these tensors. Ranks that disagree would leave one out or write it twice.
  std::vector<int> writers;
  /// Of both.
  std::string digest;
};

struct ReplicaAssignment {
  /// What this rank writes: tensors that only it has, and its part of the replicated ones.
  std::shared_ptr<const TensorTable> table;
  /// Null with a single rank.
  std::shared_ptr<const ReplicatedValues> replicated;
};
/// A rank writes at least this much of the replicated tensors before another rank is used.
inline constexpr std::uint64_t kMinShare = 64U << 20;

/// Chooses the writing rank of each tensor in a sequence of sizes. Neighbours, which are restored together, go to one
/// rank as far as balance allows: ranks 1, 2 and so on take tensors in order, and rank 0, which has the most other
/// work, takes the rest. `of_rank_0` is what rank 0 writes of other replicated tensors.
///
/// Uses as few ranks as can hold everything if each takes the maximum of the average per rank, kMinShare and the
/// largest tensor. The cuts minimise the largest part: never more than the maximum of kMinShare and the average plus
/// the largest tensor. `world` is at least 2.
[[nodiscard]] std::vector<int> ChooseWriters(std::span<const std::uint64_t> sizes, std::uint64_t of_rank_0, int world);

/// Divides the replicated tensors among the ranks by name, identically on all ranks with equal input. InvalidArgument
/// for a name that is not in the table, or a replicated tensor that shares memory with one that is not.
[[nodiscard]] Result<ReplicaAssignment> AssignReplicas(const std::shared_ptr<const TensorTable>& table,
                                                       const Replicated& replicated, int rank, int world);

/// Caches AssignReplicas between saves: recomputes it only if the table or the replicated values have changed.
class ReplicaAssigner {
 public:
  ReplicaAssigner(int rank, int world) : rank_(rank), world_(world) {}
  Result<ReplicaAssignment> Of(const std::shared_ptr<const TensorTable>& table, const Replicated& replicated);

 private:
  const int rank_;
  const int world_;
  std::weak_ptr<const TensorTable> table_;
  Replicated replicated_;
  // Its table is null if it is the caller's, which this must not keep alive.
  ReplicaAssignment share_;
};

/// Digests of all replicated values and of the writers, about a kilobyte; empty if there are none. Independent of
/// order.
[[nodiscard]] std::string DigestReplicated(const ReplicatedValues& values);
/// The first bucket in which two digests differ; -1 if none. Buckets of writers come last, because ranks with different
/// values often choose different writers too.
[[nodiscard]] int FirstDifference(const std::string& a, const std::string& b);
/// The contents of that bucket.
[[nodiscard]] std::string EncodeBucket(const ReplicatedValues& values, int bucket);
/// FailedPrecondition, naming the differences between rank 0's bucket and that of `rank`.
[[nodiscard]] Status CompareBuckets(std::uint64_t step, const std::string& of_rank_0, int rank, const std::string& its);

}  // namespace cairn
