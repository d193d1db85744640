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

/// A tensor as some header has it, under its own name or a tied one.
struct SavedName {
  std::string name;
  std::size_t shard = 0;
  const ShardTensor* tensor = nullptr;
};

/// What a restore of a fuzzed folder wants, and what it may be given: each element must be one that some shard holds
/// for it, everything around the views must stay as it was.
class Wanted {
 public:
  /// Headers as they were decoded, in the order of the folder's shards; all outlive this. Targets by `plan`, every
  /// saved tensor as it is where that names none.
  Wanted(const FuzzedFolder& folder, std::span<const ShardHeader> headers);
  ~Wanted();

  [[nodiscard]] const State& state() const { return state_; }
  /// Aborts where a target has other bytes than the shards, or something that is no target was written.
  void RequireRestored(const Restored& restored) const;
  void RequireUntouched() const;

 private:
  struct Target;

  void AddAsSaved();
  void AddByPlan(std::string_view bytes);
  void Add(std::string name, TensorView view, Target* tied = nullptr);
  void RequireElements(const Target& target) const;
  // How many elements from `at` on are the bytes `found`: as many as one shard holds there, at most `most`; 0: none.
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
