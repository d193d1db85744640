#include "store/names.h"

#include <fmt/format.h>

#include <charconv>

namespace cairn {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kAttemptPrefix = ".attempt-";
constexpr std::string_view kRetiredPrefix = ".retired-";
constexpr std::string_view kReplacedPrefix = ".replaced-";
constexpr std::string_view kSparePrefix = ".spare-";
constexpr std::string_view kWriterDraftPrefix = ".writer-";
constexpr std::string_view kLockDraftPrefix = ".lock-";
constexpr std::string_view kPinDraftPrefix = ".pinned-";
/// As many as the largest u64 has, so that names sort by step.
constexpr std::size_t kStepDigits = 20;

bool HasSuffixAfter(std::string_view name, std::string_view prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix);
}

std::optional<std::uint64_t> ParseStep(std::string_view digits) {
  if (digits.size() != kStepDigits) return std::nullopt;
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return step;
}

}  // namespace

std::string StepName(std::uint64_t step) { return fmt::format("{}{:0{}}", kStepPrefix, step, kStepDigits); }

std::optional<std::uint64_t> ParseStepName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  return ParseStep(name.substr(kStepPrefix.size()));
}

std::string WriterDraftName(std::string_view id) { return fmt::format("{}{}", kWriterDraftPrefix, id); }
std::string LockDraftName(std::string_view id) { return fmt::format("{}{}", kLockDraftPrefix, id); }
std::string PinDraftName(std::string_view id) { return fmt::format("{}{}", kPinDraftPrefix, id); }
bool IsDraft(std::string_view name) {
  return HasSuffixAfter(name, kWriterDraftPrefix) || HasSuffixAfter(name, kLockDraftPrefix) ||
         HasSuffixAfter(name, kPinDraftPrefix);
}

std::string AttemptName(std::string_view uuid) { return fmt::format("{}{}", kAttemptPrefix, uuid); }
bool IsAttemptName(std::string_view name) { return HasSuffixAfter(name, kAttemptPrefix); }
std::string RetiredName(std::string_view uuid) { return fmt::format("{}{}", kRetiredPrefix, uuid); }

std::string ReplacedName(std::uint64_t step, std::string_view uuid) {
  return fmt::format("{}{:0{}}-{}", kReplacedPrefix, step, kStepDigits, uuid);
}
std::optional<std::uint64_t> ParseReplacedName(std::string_view name) {
  if (!name.starts_with(kReplacedPrefix)) return std::nullopt;
  name.remove_prefix(kReplacedPrefix.size());
  if (name.size() <= kStepDigits || name[kStepDigits] != '-') return std::nullopt;
  return ParseStep(name.substr(0, kStepDigits));
}

std::string SpareName(std::uint64_t number) { return fmt::format("{}{}", kSparePrefix, number); }
bool IsSpareName(std::string_view name) { return HasSuffixAfter(name, kSparePrefix); }

bool IsLeftover(std::string_view name) {
  return IsAttemptName(name) || HasSuffixAfter(name, kRetiredPrefix) || IsSpareName(name);
}

std::string ShardName(std::uint64_t shard) { return fmt::format("shard-{:05}.safetensors", shard); }
std::string KeptName(std::uint64_t rank, std::string_view attempt) {
  return fmt::format("kept-{:05}-{}.safetensors", rank, attempt);
}

}  // namespace cairn
