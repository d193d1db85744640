#pragma once

#include <chrono>
#include <cstdint>

#include "cairn/checkpointer.h"
#include "restore/selection.h"

namespace cairn {

/// What the Python package calls beyond the public API: halves of its calls, between which Python acts.
struct BindingCalls {
  /// Save, but the save is not committed before Release: for a caller that learns elsewhere whether this is to be a
  /// checkpoint. If it is not released within `hold` after its last write and checksum, it fails with DeadlineExceeded.
  [[nodiscard]] static Result<SaveHandle> SaveHeld(Checkpointer& checkpointer, std::uint64_t step, const State& state,
                                                   const SaveOptions& options, std::chrono::nanoseconds hold);
  /// What a save of this state's tensors will say of them: which it copies in its call, and which it reads later. The
  /// tensors as they are, where the save will refuse them.
  [[nodiscard]] static std::shared_ptr<const TensorTable> Examine(Checkpointer& checkpointer, const State& state);
  /// Lets a held save commit. Does not wait. It has no effect on other saves.
  static void Release(const SaveHandle& save);
  /// Waits until this save does not read its tensors any more: it is captured, or has failed. False at the deadline.
  /// Does not report a failure.
  [[nodiscard]] static bool WaitTensorsFree(const SaveHandle& save, Deadline deadline = Deadline::Infinite());
  /// Waits until this save has ended, durable or failed. False at the deadline. Does not report a failure either.
  [[nodiscard]] static bool WaitEnded(const SaveHandle& save, Deadline deadline);
  /// Pin or Unpin for keep_best: a pin of its own, which it alone takes away. A user's pin stays as it is.
  [[nodiscard]] static Status PinBest(Checkpointer& checkpointer, std::uint64_t step, bool pinned);
  /// SaveHandle::Cancel with the caller's reason, which becomes the status of the save.
  static bool Cancel(const SaveHandle& save, Status why);

  /// The two halves of Drain.
  [[nodiscard]] static Status WaitIdle(const Checkpointer& checkpointer, Deadline deadline = Deadline::Infinite());
  [[nodiscard]] static Status UnheardFailure(Checkpointer& checkpointer);
  /// Whether any save is in flight.
  [[nodiscard]] static bool HasSaves(const Checkpointer& checkpointer);
  /// How much of the time for closing is for what is abandoned: a quarter, at most this.
  static constexpr std::chrono::seconds kAbandoning{5};
  /// The destructor abandons saves in flight at the first of these moments and ends by the second, where close_timeout
  /// does not say earlier ones.
  static void CloseBy(Checkpointer& checkpointer, Deadline abandons, Deadline ends);
  /// Ends all pauses: for a program that only waits for its saves now.
  static void EndPauses(Checkpointer& checkpointer);

  /// Chooses a checkpoint as Restore does, from its manifest alone, and protects it from removal while Chosen::hold
  /// lives. `inspect`: with the contents of all shards' headers.
  [[nodiscard]] static Result<Chosen> Choose(const Checkpointer& checkpointer, const Selector& selector, bool inspect);
  /// Inspect for one part. Only the shards that hold the part are opened, by the checkpoint's index if it has one.
  /// CheckpointDetails::values has that rank's values, at its number, and no others.
  [[nodiscard]] static Result<CheckpointDetails> Inspect(const Checkpointer& checkpointer, const Selector& selector,
                                                         const InspectPart& part);
  /// Restore of what the caller plans once the checkpoint is chosen.
  [[nodiscard]] static Result<Restored> Restore(Checkpointer& checkpointer, const Selector& selector,
                                                const RestoreCall& call);
};

}  // namespace cairn
