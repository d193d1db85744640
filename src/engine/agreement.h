#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/status.h"
#include "format/manifest.h"

namespace cairn {

// What ranks tell each other about one save or one restore: small JSON texts, pure functions. Text that is no such word
// is Internal, and its message names the rank that gave it.

/// attempt/, the coordinator's: the save as its ledger accepted it, or why there will be none.
struct AttemptWord {
  std::string uuid;
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  /// What the coordinator has restored; empty where it has restored none.
  std::optional<ManifestParent> parent;
  bool replace = false;
  /// Digests of what every rank must give alike, and of who writes what of it (see replicas.h).
  std::string alike;
  /// Not ok: the save is refused, and nothing else above counts.
  Status refusal;
};
[[nodiscard]] std::string EncodeAttempt(const AttemptWord& word);
[[nodiscard]] Result<AttemptWord> DecodeAttempt(std::string_view text);

/// prepared/, of every other rank: its shard, or its failure, or what it holds where its digests are not the
/// coordinator's.
struct PreparedWord {
  std::uint64_t step = 0;
  /// The attempt that this rank has restored; empty for none.
  std::string restored;
  ManifestShard shard;
  /// Not ok: the rank fails, and nothing else counts.
  Status failure;
  /// 0 or above: the digests differ there, and `texts` is what this rank has (see EncodeBucket). There is no shard.
  int bucket = -1;
  std::string texts;
};
[[nodiscard]] std::string EncodePrepared(const PreparedWord& word);
[[nodiscard]] Result<PreparedWord> DecodePrepared(int rank, std::string_view text);

/// outcome/, the coordinator's: committed, or why not. read/, of every other rank: its part is read, or why not.
[[nodiscard]] std::string EncodeOutcome(const Status& status);
/// None where the text is no outcome.
[[nodiscard]] std::optional<Status> DecodeOutcome(std::string_view text);
[[nodiscard]] Status NotAWord(int rank, std::string_view text);

/// choice/, the coordinator's: the checkpoint that all are to read, or why there is none.
struct ChoiceWord {
  std::uint64_t step = 0;
  std::string attempt;
  /// As the coordinator sees it, for messages.
  std::string path;
  /// Not ok: its manifest does not verify (there is no attempt), and it is passed over unread.
  Status damage;
  /// Not ok: the restore ends, and nothing else counts.
  Status end;
};
[[nodiscard]] std::string EncodeChoice(const ChoiceWord& word);
[[nodiscard]] Result<ChoiceWord> DecodeChoice(std::string_view text);

/// verdict/, the coordinator's: Ok where the choice is restored on all ranks; else the status of one of them, for all.
struct VerdictWord {
  int rank = 0;
  Status status;
};
[[nodiscard]] std::string EncodeVerdict(const VerdictWord& word);
[[nodiscard]] Result<VerdictWord> DecodeVerdict(std::string_view text);

/// FailedPrecondition, naming both, where a rank saves another step than the coordinator, or has restored another
/// attempt: what they would commit is a mixture.
[[nodiscard]] Status CheckSameLine(std::uint64_t step, const std::string& restored, int rank, std::uint64_t its_step,
                                   const std::string& its_restored);

}  // namespace cairn
