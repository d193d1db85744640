#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// The names under a root. Everything else there is left alone.
inline constexpr std::string_view kLockName = ".lock";
/// Who holds the lock: see WriterRecord.
inline constexpr std::string_view kWriterName = ".writer";
/// In a checkpoint's folder: an empty file that keeps it from retention.
inline constexpr std::string_view kPinName = "pinned";

/// "step-00000000000000001000".
[[nodiscard]] std::string StepName(std::uint64_t step);
/// The step of such a name; none for any other name, other digit counts and values beyond u64 included.
[[nodiscard]] std::optional<std::uint64_t> ParseStepName(std::string_view name);
/// ".writer-<id>", ".lock-<id>": on their way to the names without the id.
[[nodiscard]] std::string WriterDraftName(std::string_view id);
[[nodiscard]] std::string LockDraftName(std::string_view id);
[[nodiscard]] bool IsDraft(std::string_view name);
[[nodiscard]] std::string AttemptName(std::string_view uuid);  ///< ".attempt-<uuid>"
[[nodiscard]] bool IsAttemptName(std::string_view name);
[[nodiscard]] std::string RetiredName(std::string_view uuid);  ///< ".retired-<uuid>"
/// ".replaced-00000000000000001000-<uuid>": step-N while attempt <uuid> takes its name, where names are not exchanged.
[[nodiscard]] std::string ReplacedName(std::uint64_t step, std::string_view uuid);
/// The step of such a name.
[[nodiscard]] std::optional<std::uint64_t> ParseReplacedName(std::string_view name);
/// ".spare-1": holds the shard files of one former checkpoint that the next attempts may write over.
[[nodiscard]] std::string SpareName(std::uint64_t number);
[[nodiscard]] bool IsSpareName(std::string_view name);
[[nodiscard]] bool IsLeftover(std::string_view name);  ///< What a sweep looks at: an attempt, a retired folder, spares.
[[nodiscard]] std::string ShardName(std::uint64_t shard);  ///< "shard-00000.safetensors"

}  // namespace cairn
