#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/checkpointer.h"
#include "format/shard_header.h"
#include "fuzz/folder.h"

namespace cairn {

/// A tensor of some header, under its own name or a tied one.
struct SavedName {
  std::string name;
  std::size_t shard = 0;
  const ShardTensor* tensor = nullptr;
};

/// The targets of a restore of a fuzzed folder, and the check of its result: each element must be in some shard, and
/// everything around the views must be unchanged.
class RestoreTargets {
 public:
  /// `headers` are the decoded ones, in the order of the folder's shards. Both must outlive this. Adds the plan's
  /// targets, or every saved tensor if it has none.
  RestoreTargets(const FuzzedFolder& folder, std::span<const ShardHeader> headers);
  ~RestoreTargets();

  [[nodiscard]] const State& state() const { return state_; }
  /// Aborts if a target differs from the shards, or if anything else was written.
  void RequireRestored(const Restored& restored) const;
  void RequireUntouched() const;

 private:
  struct Target;

  void AddAsSaved();
  void AddByPlan(std::string_view bytes);
  void Add(std::string name, TensorView view, Target* tied = nullptr);
  void RequireElements(const Target& target) const;
  // How many elements from `at` match `found`: up to `most` of one shard; 0 if none match.
  [[nodiscard]] std::int64_t FindRun(const Target& target, const std::vector<std::int64_t>& at, const std::byte* found,
                                     std::int64_t most) const;
  [[nodiscard]] bool Same(const SavedName& saved, std::uint64_t element, const std::byte* found,
                          std::uint64_t count) const;

  const FuzzedFolder& folder_;
  const std::span<const ShardHeader> headers_;
  std::vector<SavedName> saved_;
  std::list<Target> targets_;
  std::uint64_t bytes_ = 0;
  State state_;
};

}  // namespace cairn
