#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/checkpointer.h"

namespace cairn {

// What several ranks give alike: who writes it, and whether it is alike. Pure functions.

/// A name, and what must be the same everywhere: "F32 [3, 4]" of a tensor, the caller's text of anything else.
using Alike = std::pair<std::string, std::string>;

/// All that a rank must give alike.
struct ReplicatedValues {
  std::vector<Alike> all;  ///< The replicated tensors last.
  /// The ranks that write these tensors: other ranks that reckon otherwise would leave one out, or write it twice.
  std::vector<int> writers;
  std::string digest;  ///< Of both.
};

struct Share {
  std::shared_ptr<const TensorTable> table;       ///< What this rank writes: its own, and its part of the replicated.
  std::shared_ptr<const ReplicatedValues> alike;  ///< Null where there is one rank.
};
/// So much of what is replicated one rank writes before another one does.
inline constexpr std::uint64_t kLeastShare = 64U << 20;

/// Which rank writes each tensor of a sequence of sizes. Neighbours, which are restored together, go to one rank as far
/// as balance allows: ranks 1, 2 and so on take what comes next in turn, and rank 0, which has the most to do besides,
/// takes the rest. `of_rank_0` is what that writes of other replicated tensors.
///
/// As few ranks as can hold all at a share each: the greatest of the average over the world, kLeastShare and the
/// largest tensor. The cuts between them are where the most that one of them writes is least: never more than the
/// greater of kLeastShare and the average plus the largest tensor. `world` is at least 2.
[[nodiscard]] std::vector<int> ChooseWriters(std::span<const std::uint64_t> sizes, std::uint64_t of_rank_0, int world);

/// Shares the replicated tensors out, by name: the same way on every rank that gives the same. InvalidArgument for a
/// name that is not in the table, and for a replicated tensor that is tied to one that is not.
[[nodiscard]] Result<Share> ShareOut(const std::shared_ptr<const TensorTable>& table, const Replicated& replicated,
                                     int rank, int world);

/// ShareOut for save after save: does its work again only where the table or what is replicated has changed.
class Sharing {
 public:
  Sharing(int rank, int world) : rank_(rank), world_(world) {}
  Result<Share> Of(const std::shared_ptr<const TensorTable>& table, const Replicated& replicated);

 private:
  const int rank_;
  const int world_;
  std::weak_ptr<const TensorTable> table_;
  Replicated replicated_;
  Share share_;  // Its table is null where it is the caller's own, which is not kept alive here.
};

/// Digests of everything alike and of the writers, in a kilobyte; empty for nothing. The same wherever they are alike,
/// in any order.
[[nodiscard]] std::string DigestReplicated(const ReplicatedValues& values);
/// Where two digests differ: the bucket; -1 where they do not. The writers' buckets come last: who gives something else
/// often chooses other writers too.
[[nodiscard]] int FirstDifference(const std::string& a, const std::string& b);
/// What lies in that bucket.
[[nodiscard]] std::string EncodeBucket(const ReplicatedValues& values, int bucket);
/// FailedPrecondition, naming what differs between rank 0's bucket and the same one of `rank`.
[[nodiscard]] Status CompareBuckets(std::uint64_t step, const std::string& of_rank_0, int rank, const std::string& its);

}  // namespace cairn
