#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/wiring.h"
#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/patience.h"
#include "support/tensors.h"

namespace cairn {

/// The smallest checkpointer: chunks of 1 MiB, two of them under way, a pool of four.
[[nodiscard]] Options SmallOptions(const std::string& root);
/// A wiring whose queues follow the plan.
[[nodiscard]] Wiring Through(const std::shared_ptr<FaultPlan>& plan);
/// Open; a failure is a test failure, and null.
[[nodiscard]] std::unique_ptr<Checkpointer> OpenOrFail(const Options& options, const Wiring& wiring = {});

/// Its destructor abandons saves in flight at once, and waits for the disk and the devices.
void AbandonAtOnce(Checkpointer& checkpointer);

/// A state of two chunks and a tensor that is copied in the call, whose contents tell step, rank and variant apart.
[[nodiscard]] std::unique_ptr<Tensors> SmallState(std::uint64_t step, int rank = 0, std::uint64_t variant = 0);
/// Whether the state holds what SmallState made.
[[nodiscard]] bool Holds(const Tensors& tensors, std::uint64_t step, int rank = 0, std::uint64_t variant = 0);

/// A frozen tensor of more than a chunk, "rank<R>.frozen", beside a SmallState.
class FrozenTensor {
 public:
  explicit FrozenTensor(int rank = 0);
  /// From the kth element on.
  void Fill(std::uint64_t seed, std::size_t from = 0);
  [[nodiscard]] bool Holds(std::uint64_t seed) const;
  /// Its version is what it is when it is added.
  [[nodiscard]] State With(const State& state);
  std::optional<std::uint64_t> version = 0;
  friend bool operator==(const FrozenTensor& a, const FrozenTensor& b) { return a.memory_ == b.memory_; }

 private:
  const std::string name_;
  std::vector<std::uint64_t> memory_ = std::vector<std::uint64_t>(160'001);
};
/// The rank's frozen tensor, as FrozenTensor has filled it, is in each checkpoint that is listed. What is wrong is a
/// test failure.
void ExpectFrozen(Checkpointer& reader, std::uint64_t seed, int rank = 0);
/// The same of a root.
void ExpectFrozenIn(const std::string& root, std::uint64_t seed, int ranks = 1);
/// If step `found` is in the root, those before it are marked as suspect, but for `origin`, which never is.
void ExpectSuspectsIn(const std::string& root, std::uint64_t origin, std::uint64_t found);

/// Saves SmallState(step) and waits until it is durable.
Status SaveDurably(Checkpointer& checkpointer, std::uint64_t step, const SaveOptions& options = {},
                   std::uint64_t variant = 0);
/// Restore on this rank alone, also in a group.
Result<Restored> ReadAlone(Checkpointer& checkpointer, const Selector& selector, const State& state,
                           const RestoreOptions& options = {});
/// Restores and compares every bit with SmallState of the step that was found.
Status RestoreAndCompare(Checkpointer& checkpointer, const Selector& selector, std::uint64_t variant = 0);

/// Opens `ranks` checkpointers of one group on one root; a failure is a test failure, and an empty list.
[[nodiscard]] std::vector<std::unique_ptr<Checkpointer>> OpenRanks(int ranks, Options options,
                                                                   const std::function<Wiring(int rank)>& wiring = {});

/// All checkpoints are of the root's id and of lines up to its counter; below it if they are listed by a `writer`,
/// which has begun another. What is wrong is a test failure.
void ExpectLinesRecorded(const std::string& root, const Checkpointer& checkpointer, bool writer);
/// What a root must be after anything: every checkpoint in it verifies and holds the bits of its step for each of the
/// ranks, the newest is `acknowledged` or newer, nothing of a crash is left once it is open, and the next save works.
/// Opens it for that (with keep_last 0). What is wrong is a test failure.
void ExpectNothingLost(const std::string& root, std::optional<std::uint64_t> acknowledged, int ranks = 1);
/// The steps listed, oldest first. One that does not verify is a test failure.
[[nodiscard]] std::vector<std::uint64_t> ListedSteps(const Checkpointer& checkpointer);
/// The names in a folder that begin with a dot and are not the writer's lock: what attempts and removals have left.
[[nodiscard]] std::vector<std::string> Leftovers(const std::string& root);

}  // namespace cairn
