#include "engine/agreement.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status_macros.h"
#include "format/fields.h"
#include "format/json_reader.h"
#include "store/names.h"

namespace cairn {
namespace {

// Messages stay short, however long the text of an error.
constexpr std::size_t kMaxMessage = 2000;
constexpr std::size_t kMaxMembers = 16;

/// The members of a flat JSON object.
class MessageReader final : public JsonEvents {
 public:
  bool OnScalar(const JsonScalar& value) override {
    switch (value.kind) {
      case JsonScalar::Kind::kNatural:
        numbers_.emplace(key_, value.natural);
        return true;
      case JsonScalar::Kind::kText:
        texts_.emplace(key_, value.text);
        return true;
      default:
        return Fail("{}: expected a text or a natural number", key_);
    }
  }
  bool OnKey(std::string_view key) override {
    key_ = key;
    const bool twice = numbers_.contains(key_) || texts_.contains(key_);
    if (twice || numbers_.size() + texts_.size() == kMaxMembers) return Fail("{}: duplicate or too many", key_);
    return true;
  }
  bool OnOpen(char /*bracket*/) override {
    return !std::exchange(open_, true) || Fail("{}: expected a text or a number", key_);
  }
  bool OnClose() override { return true; }

  [[nodiscard]] bool Has(const std::string& key) const { return numbers_.contains(key) || texts_.contains(key); }
  /// False if the member is missing or has another type.
  [[nodiscard]] bool Take(const std::string& key, std::uint64_t& to) const {
    const auto found = numbers_.find(key);
    if (found == numbers_.end()) return false;
    to = found->second;
    return true;
  }
  [[nodiscard]] bool Take(const std::string& key, std::string& to) const {
    const auto found = texts_.find(key);
    if (found == texts_.end()) return false;
    to = found->second;
    return true;
  }
  /// What is said of a file in members whose names begin like this.
  [[nodiscard]] bool TakeFile(const std::string& prefix, ManifestShard& to) const {
    std::uint64_t digest = 0;
    std::uint64_t nonfinite = 0;
    const bool good = Take(prefix + "length", to.length) && Take(prefix + "digest", digest) && digest <= 0xffffffff &&
                      Take(prefix + "nonfinite", nonfinite) && nonfinite <= static_cast<unsigned>(NonFinite::kNaN);
    to.header_digest = static_cast<std::uint32_t>(digest);
    to.nonfinite = static_cast<NonFinite>(nonfinite);
    return good;
  }
  [[nodiscard]] bool Take(Status& to) const {
    std::uint64_t code = 0;
    std::string message;
    if (!Take("code", code) || !Take("message", message) || code > static_cast<unsigned>(StatusCode::kInternal)) {
      return false;
    }
    std::uint64_t detail = 0;
    if (Has("detail") && (!Take("detail", detail) || detail > static_cast<unsigned>(StatusDetail::kStepsDiffer))) {
      return false;
    }
    to = Status(static_cast<StatusCode>(code), std::move(message), static_cast<StatusDetail>(detail));
    return true;
  }

 private:
  std::string key_;
  bool open_ = false;
  std::map<std::string, std::uint64_t> numbers_;
  std::map<std::string, std::string> texts_;
};

using Object = nlohmann::json;

std::string Dump(const Object& message) { return message.dump(-1, ' ', false, Object::error_handler_t::replace); }

Object FromStatus(const Status& status) {
  Object object = {{"code", static_cast<int>(status.code())}, {"message", status.message().substr(0, kMaxMessage)}};
  if (status.detail() != StatusDetail::kNone) object["detail"] = static_cast<int>(status.detail());
  return object;
}

std::string OrNothing(const std::string& restored) {
  return restored.empty() ? std::string("from no checkpoint") : fmt::format("from attempt \"{}\"", restored);
}

}  // namespace

Status InvalidMessage(int rank, std::string_view text) {
  return Error(StatusCode::kInternal, "rank {} sent an invalid message: {}", rank, Quoted(text));
}

std::string EncodeAttempt(const AttemptProposal& message) {
  if (!message.refusal.ok()) {
    Object refused = FromStatus(message.refusal);
    refused["step"] = message.step;
    return Dump(refused);
  }
  if (message.to_disk) return Dump({{"to_disk", message.step}});
  Object object = {{"attempt", message.uuid},
                   {"step", message.step},
                   {"generation", message.line},
                   {"replace", static_cast<int>(message.replace)},
                   {"identical", message.replica_digests}};
  if (message.parent) {
    object["parent"] = message.parent->attempt;
    object["parent_step"] = message.parent->step;
  }
  return Dump(object);
}

Result<AttemptProposal> DecodeAttempt(std::string_view text) {
  AttemptProposal message;
  MessageReader read;
  if (!ReadJson(text, read, "attempt").ok()) return InvalidMessage(0, text);
  if (read.Has("code")) {
    const bool good = read.Take(message.refusal) && !message.refusal.ok() && read.Take("step", message.step);
    if (!good) return InvalidMessage(0, text);
    return message;
  }
  if (read.Has("to_disk")) {
    message.to_disk = true;
    if (!read.Take("to_disk", message.step)) return InvalidMessage(0, text);
    return message;
  }
  std::uint64_t replace = 0;
  bool good = read.Take("attempt", message.uuid) && IsAttemptId(message.uuid) && read.Take("step", message.step) &&
              read.Take("generation", message.line) && read.Take("replace", replace) &&
              read.Take("identical", message.replica_digests);
  if (read.Has("parent")) {
    message.parent.emplace();
    good = good && read.Take("parent", message.parent->attempt) && read.Take("parent_step", message.parent->step);
  }
  if (!good) return InvalidMessage(0, text);
  message.replace = replace != 0;
  return message;
}

std::string EncodePrepared(const PreparedMessage& message) {
  if (!message.failure.ok()) return Dump(FromStatus(message.failure));
  if (message.bucket >= 0) return Dump({{"bucket", message.bucket}, {"texts", message.texts}});
  Object object = {{"step", message.step},
                   {"restored", message.restored},
                   {"file", message.shard.file},
                   {"length", message.shard.length},
                   {"digest", message.shard.header_digest},
                   {"nonfinite", static_cast<int>(message.shard.nonfinite)},
                   {"long_values", static_cast<int>(message.shard.long_values)}};
  if (message.kept) {
    object["kept_length"] = message.kept->length;
    object["kept_digest"] = message.kept->header_digest;
    object["kept_nonfinite"] = static_cast<int>(message.kept->nonfinite);
    object["kept_step"] = message.kept->kept->step;
    object["kept_attempt"] = message.kept->kept->attempt;
  }
  return Dump(object);
}

Result<PreparedMessage> DecodePrepared(int rank, std::string_view text) {
  PreparedMessage message;
  MessageReader read;
  if (!ReadJson(text, read, "prepared").ok()) return InvalidMessage(rank, text);
  if (read.Has("code")) {
    if (!read.Take(message.failure) || message.failure.ok()) return InvalidMessage(rank, text);
    return message;
  }
  std::uint64_t number = 0;
  if (read.Has("bucket")) {
    if (!read.Take("bucket", number) || number > 0xffff || !read.Take("texts", message.texts))
      return InvalidMessage(rank, text);
    message.bucket = static_cast<int>(number);
    return message;
  }
  const auto of_rank = static_cast<std::uint64_t>(rank);
  bool good = read.Take("step", message.step) && read.Take("restored", message.restored) &&
              read.Take("file", message.shard.file) && read.TakeFile("", message.shard) &&
              message.shard.file == ShardName(of_rank) && read.Take("long_values", number) && number <= 1;
  message.shard.long_values = number != 0;
  if (good && read.Has("kept_length")) {
    ManifestShard& kept = message.kept.emplace();
    KeptOrigin& origin = kept.kept.emplace(KeptOrigin{.rank = of_rank});
    good = read.TakeFile("kept_", kept) && read.Take("kept_step", origin.step) &&
           read.Take("kept_attempt", origin.attempt) && IsAttemptId(origin.attempt);
    kept.file = KeptName(of_rank, origin.attempt);
  }
  if (!good) return InvalidMessage(rank, text);
  return message;
}

std::string EncodeOutcome(const Status& status) { return Dump(FromStatus(status)); }

std::optional<Status> DecodeOutcome(std::string_view text) {
  Status status;
  MessageReader read;
  if (!ReadJson(text, read, "outcome").ok() || !read.Take(status)) return std::nullopt;
  return status;
}

std::string EncodeChoice(const ChoiceMessage& message) {
  Object object = message.refusal.ok() ? Object{{"attempt", message.attempt}} : FromStatus(message.refusal);
  object["asked"] = message.asked;
  object["step"] = message.step;
  object["path"] = message.path;
  if (message.in_memory) object["in_memory"] = 1;
  if (message.has_copy) object["has_copy"] = 1;
  return Dump(object);
}

Result<ChoiceMessage> DecodeChoice(std::string_view text) {
  ChoiceMessage message;
  MessageReader read;
  const bool good =
      ReadJson(text, read, "choice").ok() && read.Take("asked", message.asked) && read.Take("step", message.step) &&
      read.Take("path", message.path) &&
      (read.Has("code") ? read.Take(message.refusal) && !message.refusal.ok() : read.Take("attempt", message.attempt));
  if (!good) return InvalidMessage(0, text);
  message.in_memory = read.Has("in_memory");
  message.has_copy = read.Has("has_copy");
  return message;
}

std::string EncodeVerdict(const VerdictMessage& message) {
  if (message.again) return Dump({{"again", 1}});
  Object object = FromStatus(message.status);
  object["rank"] = message.rank;
  if (!message.missing.empty()) object["missing"] = message.missing;
  return Dump(object);
}

Result<VerdictMessage> DecodeVerdict(std::string_view text) {
  VerdictMessage message;
  MessageReader read;
  std::uint64_t rank = 0;
  if (!ReadJson(text, read, "verdict").ok()) return InvalidMessage(0, text);
  message.again = read.Has("again");
  if (message.again) return message;
  if (!read.Take(message.status) || !read.Take("rank", rank) ||
      rank > static_cast<std::uint64_t>(std::numeric_limits<int>::max()) ||
      (read.Has("missing") && !read.Take("missing", message.missing))) {
    return InvalidMessage(0, text);
  }
  message.rank = static_cast<int>(rank);
  return message;
}

Status DifferentSteps(std::uint64_t step, int rank, std::uint64_t its_step) {
  return Error(StatusCode::kFailedPrecondition, StatusDetail::kStepsDiffer,
               "ranks save different steps: rank 0 saves {}, rank {} saves {}", step, rank, its_step);
}

Status CheckSameLine(std::uint64_t step, const std::string& restored, int rank, std::uint64_t its_step,
                     const std::string& its_restored) {
  if (step != its_step) return DifferentSteps(step, rank, its_step);
  if (restored != its_restored) {
    return Error(StatusCode::kFailedPrecondition,
                 "step {}: ranks continue different checkpoints: rank 0 {}, rank {} {}", step, OrNothing(restored),
                 rank, OrNothing(its_restored));
  }
  return Status::Ok();
}

}  // namespace cairn
