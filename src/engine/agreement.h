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

/// attempt/, from the coordinator: the save as its ledger accepted it, or its step and why it is refused, or that it
/// goes elsewhere.
struct AttemptProposal {
  std::string uuid;
  std::uint64_t step = 0;
  /// Sent as "generation".
  std::uint64_t line = 0;
  /// What the coordinator has restored, if anything.
  std::optional<ManifestParent> parent;
  bool replace = false;
  /// Digests of the replicated values and of which rank writes which (see replicas.h).
  std::string replica_digests;
  /// In memory: the coordinator gives this step to the disk alone, and so do the other ranks. All other fields but the
  /// step are ignored.
  bool to_disk = false;
  /// Not ok: the save is refused, and all other fields but the step are ignored.
  Status refusal;
};
[[nodiscard]] std::string EncodeAttempt(const AttemptProposal& message);
[[nodiscard]] Result<AttemptProposal> DecodeAttempt(std::string_view text);

/// prepared/, from each other rank: its shard and its kept file, its failure, or, if its digests differ from the
/// coordinator's, its values.
struct PreparedMessage {
  std::uint64_t step = 0;
  /// The attempt that this rank has restored; empty if none.
  std::string restored;
  ManifestShard shard;
  std::optional<ManifestShard> kept = std::nullopt;
  /// Not ok: the rank fails, and all other fields are ignored.
  Status failure;
  /// If not negative: the digests differ in this bucket, `texts` holds this rank's values (see EncodeBucket), and there
  /// is no shard.
  int bucket = -1;
  std::string texts;
};
[[nodiscard]] std::string EncodePrepared(const PreparedMessage& message);
[[nodiscard]] Result<PreparedMessage> DecodePrepared(int rank, std::string_view text);

/// outcome/, from the coordinator: committed, or why not. planned/ and read/, from each other rank: its part is
/// planned, or read, or why not.
[[nodiscard]] std::string EncodeOutcome(const Status& status);
/// None if the text is invalid.
[[nodiscard]] std::optional<Status> DecodeOutcome(std::string_view text);
[[nodiscard]] Status InvalidMessage(int rank, std::string_view text);

/// choice/, from the coordinator: the checkpoint that all ranks read, or why there is none.
struct ChoiceMessage {
  /// What the coordinator was asked for.
  std::string asked;
  std::uint64_t step = 0;
  std::string attempt;
  /// The coordinator's path, for messages. Empty if the restore ends with `refusal`.
  std::string path;
  /// It is the one in the root in memory.
  bool in_memory = false;
  /// Another copy of it is tried if this one is damaged.
  bool has_copy = false;
  /// Not ok: there is no attempt, because the manifest does not verify; or no checkpoint at all.
  Status refusal;
};
[[nodiscard]] std::string EncodeChoice(const ChoiceMessage& message);
[[nodiscard]] Result<ChoiceMessage> DecodeChoice(std::string_view text);

/// begin/ and verdict/, from the coordinator: Ok if all ranks have planned, or restored, the choice; otherwise one
/// rank's status.
struct VerdictMessage {
  int rank = 0;
  Status status;
  /// Ranks from which nothing came in time: ",1,5,".
  std::string missing;
  /// A rank had called alone before, and given up: the ranks do not meet in this round, and all other fields are
  /// ignored.
  bool again = false;
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
