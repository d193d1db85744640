#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"
#include "format/manifest.h"

namespace cairn {

// What ranks tell each other about one save: small texts, pure functions. InvalidArgument for text that is none of
// these.

/// attempt/: the coordinator's uuid (empty from the others), the step, and the line of training that it continues.
struct AttemptWord {
  std::string uuid;
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::string parent;     ///< The attempt that this rank restored; empty where it has restored none.
  bool admitted = false;  ///< False: this rank gives the save up, and its line says nothing.
  std::string alike;      ///< Digests of what every rank must give alike (see replicas.h).
};
[[nodiscard]] std::string EncodeAttemptWord(const AttemptWord& word);
/// The uuid that the coordinator named. FailedPrecondition where the ranks are not saving the same step, or have
/// restored different checkpoints: what they would commit is a mixture.
[[nodiscard]] Result<std::string> AgreeOnAttempt(const std::vector<std::string>& words);
/// The digests by rank, of words that were agreed on. Empty where a rank gives the save up: then none count.
[[nodiscard]] std::vector<std::string> AlikeDigests(const std::vector<std::string>& words);

/// prepared/: this rank's shard, or its failure.
[[nodiscard]] std::string EncodePrepared(const ManifestShard& shard);
[[nodiscard]] std::string EncodeFailure(const Status& status);
/// The shards by rank, or the failure of the lowest rank that failed, named.
[[nodiscard]] Result<std::vector<ManifestShard>> AgreeOnShards(const std::vector<std::string>& words);

/// outcome/: what the coordinator did.
[[nodiscard]] std::string EncodeOutcome(const Status& status);
[[nodiscard]] Status DecodeOutcome(const std::string& word);

}  // namespace cairn
