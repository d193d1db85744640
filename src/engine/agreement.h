#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/status.h"
#include "format/manifest.h"

namespace cairn {

// The messages of the ranks about one save or one restore: small JSON texts, pure functions. An invalid message gives
// Internal, naming the rank that sent it.

/// attempt/, from the coordinator: the save as its ledger accepted it, or its step and why it is refused.
struct AttemptProposal {
  std::string uuid;
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  /// What the coordinator has restored, if anything.
  std::optional<ManifestParent> parent;
  bool replace = false;
  /// Digests of the replicated values and of which rank writes which (see replicas.h).
  std::string replica_digests;
  /// Not ok: the save is refused, and all other fields but the step are ignored.
  Status refusal;
};
[[nodiscard]] std::string EncodeAttempt(const AttemptProposal& message);
[[nodiscard]] Result<AttemptProposal> DecodeAttempt(std::string_view text);

/// prepared/, from each other rank: its shard, its failure, or, if its digests differ from the coordinator's, its
/// values.
struct PreparedMessage {
  std::uint64_t step = 0;
  /// The attempt that this rank has restored; empty if none.
  std::string restored;
  ManifestShard shard;
  /// Not ok: the rank fails, and all other fields are ignored.
  Status failure;
  /// If not negative: the digests differ in this bucket, `texts` holds this rank's values (see EncodeBucket), and there
  /// is no shard.
  int bucket = -1;
  std::string texts;
};
[[nodiscard]] std::string EncodePrepared(const PreparedMessage& message);
[[nodiscard]] Result<PreparedMessage> DecodePrepared(int rank, std::string_view text);

/// outcome/, from the coordinator: committed, or why not. read/, from each other rank: its part is read, or why not.
[[nodiscard]] std::string EncodeOutcome(const Status& status);
/// None if the text is invalid.
[[nodiscard]] std::optional<Status> DecodeOutcome(std::string_view text);
[[nodiscard]] Status InvalidMessage(int rank, std::string_view text);

/// choice/, from the coordinator: the checkpoint that all ranks read, or why there is none.
struct ChoiceMessage {
  std::uint64_t step = 0;
  std::string attempt;
  /// The coordinator's path, for messages.
  std::string path;
  /// Not ok: the manifest does not verify, so there is no attempt, and the checkpoint is skipped unread.
  Status damage;
  /// Not ok: the restore ends, and all other fields are ignored.
  Status end;
};
[[nodiscard]] std::string EncodeChoice(const ChoiceMessage& message);
[[nodiscard]] Result<ChoiceMessage> DecodeChoice(std::string_view text);

/// verdict/, from the coordinator: Ok if all ranks have restored the choice; otherwise one rank's status.
struct VerdictMessage {
  int rank = 0;
  Status status;
};
[[nodiscard]] std::string EncodeVerdict(const VerdictMessage& message);
[[nodiscard]] Result<VerdictMessage> DecodeVerdict(std::string_view text);

/// FailedPrecondition, naming both.
[[nodiscard]] Status DifferentSteps(std::uint64_t step, int rank, std::uint64_t its_step);
/// FailedPrecondition, naming both, if a rank saves another step than the coordinator or has restored another attempt:
/// the checkpoint would mix them.
[[nodiscard]] Status CheckSameLine(std::uint64_t step, const std::string& restored, int rank, std::uint64_t its_step,
                                   const std::string& its_restored);

}  // namespace cairn
