#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/checkpointer.h"

namespace cairn {

// What several ranks give alike: who writes it, and whether it is alike. Pure functions.

/// A name, and what must be the same everywhere: "F32 [3, 4]" of a tensor, the caller's text of anything else.
using Alike = std::pair<std::string, std::string>;

/// All that a rank must give alike, and its digest.
struct ReplicatedValues {
  std::vector<Alike> all;
  std::string digest;
};

struct Share {
  std::shared_ptr<const TensorTable> table;       ///< What this rank writes: its own, and its part of the replicated.
  std::shared_ptr<const ReplicatedValues> alike;  ///< Null where there is one rank.
};
/// Shares the replicated tensors out: the same way on every rank that gives the same. InvalidArgument for a name that
/// is not in the table, and for a replicated tensor that is tied to one that is not.
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

/// Digests of everything alike, in a few hundred bytes; empty for nothing. The same wherever it is alike, in any order.
[[nodiscard]] std::string DigestAlike(const std::vector<Alike>& alike);
/// Where two digests differ: the bucket; -1 where they do not.
[[nodiscard]] int FirstDifference(const std::string& a, const std::string& b);
/// What lies in that bucket.
[[nodiscard]] std::string EncodeBucket(const std::vector<Alike>& alike, int bucket);
/// FailedPrecondition, naming what differs between rank 0's bucket and the same one of `rank`.
[[nodiscard]] Status CompareBuckets(std::uint64_t step, const std::string& of_rank_0, int rank, const std::string& its);

}  // namespace cairn
