#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// The names under a root. All other names are left alone.
inline constexpr std::string_view kLockName = ".lock";
/// Holds a WriterRecord.
inline constexpr std::string_view kWriterName = ".writer";
/// The root's mirrors: see store/mirrors.h.
inline constexpr std::string_view kMirrorsName = ".mirrors";
/// In a checkpoint's folder: a file that keeps it from retention.
inline constexpr std::string_view kPinName = "pinned";
/// In a checkpoint's folder: see store/suspect.h.
inline constexpr std::string_view kSuspectName = "suspect";

/// "step-00000000000000001000".
[[nodiscard]] std::string StepName(std::uint64_t step);
/// The step of such a name. None for any other name, including other digit counts and values beyond u64.
[[nodiscard]] std::optional<std::uint64_t> ParseStepName(std::string_view name);
/// ".writer-<id>", ".lock-<id>", ".pinned-<id>": temporary names, renamed to the names without the id; that of a pin
/// into the checkpoint's folder.
[[nodiscard]] std::string WriterDraftName(std::string_view id);
[[nodiscard]] std::string LockDraftName(std::string_view id);
[[nodiscard]] std::string PinDraftName(std::string_view id);
[[nodiscard]] bool IsDraft(std::string_view name);
/// ".attempt-<uuid>"
[[nodiscard]] std::string AttemptName(std::string_view uuid);
[[nodiscard]] bool IsAttemptName(std::string_view name);
/// ".retired-<uuid>"
[[nodiscard]] std::string RetiredName(std::string_view uuid);
/// ".replaced-00000000000000001000-<uuid>": the old step-N while attempt <uuid> takes its name, on filesystems that
/// cannot exchange names.
[[nodiscard]] std::string ReplacedName(std::uint64_t step, std::string_view uuid);
[[nodiscard]] std::optional<std::uint64_t> ParseReplacedName(std::string_view name);
/// ".spare-1": holds the shard files of one former checkpoint that the next attempts may write over.
[[nodiscard]] std::string SpareName(std::uint64_t number);
[[nodiscard]] bool IsSpareName(std::string_view name);
/// What a sweep handles: an attempt, a retired folder or spares.
[[nodiscard]] bool IsLeftover(std::string_view name);
/// "shard-00000.safetensors"
[[nodiscard]] std::string ShardName(std::uint64_t shard);
/// "kept-00000-<attempt>.safetensors": what has not changed since that attempt wrote it.
[[nodiscard]] std::string KeptName(std::uint64_t rank, std::string_view attempt);

}  // namespace cairn
