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
class WordReader final : public JsonEvents {
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
    if (twice || numbers_.size() + texts_.size() == kMaxMembers)
      return Fail("{}: duplicate, or too many members", key_);
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
  [[nodiscard]] bool Take(Status& to) const {
    std::uint64_t code = 0;
    std::string message;
    if (!Take("code", code) || !Take("message", message) || code > static_cast<unsigned>(StatusCode::kInternal)) {
      return false;
    }
    to = Status(static_cast<StatusCode>(code), std::move(message));
    return true;
  }

 private:
  std::string key_;
  bool open_ = false;
  std::map<std::string, std::uint64_t> numbers_;
  std::map<std::string, std::string> texts_;
};

using Object = nlohmann::json;

std::string Dump(const Object& word) { return word.dump(-1, ' ', false, Object::error_handler_t::replace); }

Object FromStatus(const Status& status) {
  return {{"code", static_cast<int>(status.code())}, {"message", status.message().substr(0, kMaxMessage)}};
}

std::string OrNothing(const std::string& restored) {
  return restored.empty() ? std::string("from no checkpoint") : fmt::format("from attempt \"{}\"", restored);
}

}  // namespace

Status NotAWord(int rank, std::string_view text) {
  return Error(StatusCode::kInternal, "rank {} sent an invalid message: {}", rank, Quoted(text));
}

std::string EncodeAttempt(const AttemptWord& word) {
  if (!word.refusal.ok()) return Dump(FromStatus(word.refusal));
  Object object = {{"attempt", word.uuid},
                   {"step", word.step},
                   {"generation", word.generation},
                   {"replace", static_cast<int>(word.replace)},
                   {"alike", word.alike}};
  if (word.parent) {
    object["parent"] = word.parent->attempt;
    object["parent_step"] = word.parent->step;
  }
  return Dump(object);
}

Result<AttemptWord> DecodeAttempt(std::string_view text) {
  AttemptWord word;
  WordReader read;
  if (!ReadJson(text, read, "attempt").ok()) return NotAWord(0, text);
  if (read.Has("code")) {
    if (!read.Take(word.refusal) || word.refusal.ok()) return NotAWord(0, text);
    return word;
  }
  std::uint64_t replace = 0;
  bool good = read.Take("attempt", word.uuid) && IsAttemptId(word.uuid) && read.Take("step", word.step) &&
              read.Take("generation", word.generation) && read.Take("replace", replace) &&
              read.Take("alike", word.alike);
  if (read.Has("parent")) {
    word.parent.emplace();
    good = good && read.Take("parent", word.parent->attempt) && read.Take("parent_step", word.parent->step);
  }
  if (!good) return NotAWord(0, text);
  word.replace = replace != 0;
  return word;
}

std::string EncodePrepared(const PreparedWord& word) {
  if (!word.failure.ok()) return Dump(FromStatus(word.failure));
  if (word.bucket >= 0) return Dump({{"bucket", word.bucket}, {"texts", word.texts}});
  return Dump({{"step", word.step},
               {"restored", word.restored},
               {"file", word.shard.file},
               {"length", word.shard.length},
               {"digest", word.shard.header_digest}});
}

Result<PreparedWord> DecodePrepared(int rank, std::string_view text) {
  PreparedWord word;
  WordReader read;
  if (!ReadJson(text, read, "prepared").ok()) return NotAWord(rank, text);
  if (read.Has("code")) {
    if (!read.Take(word.failure) || word.failure.ok()) return NotAWord(rank, text);
    return word;
  }
  std::uint64_t number = 0;
  if (read.Has("bucket")) {
    if (!read.Take("bucket", number) || number > 0xffff || !read.Take("texts", word.texts)) return NotAWord(rank, text);
    word.bucket = static_cast<int>(number);
    return word;
  }
  const bool good = read.Take("step", word.step) && read.Take("restored", word.restored) &&
                    read.Take("file", word.shard.file) && read.Take("length", word.shard.length) &&
                    read.Take("digest", number) && number <= 0xffffffff &&
                    word.shard.file == ShardName(static_cast<std::uint64_t>(rank));
  if (!good) return NotAWord(rank, text);
  word.shard.header_digest = static_cast<std::uint32_t>(number);
  return word;
}

std::string EncodeOutcome(const Status& status) { return Dump(FromStatus(status)); }

std::optional<Status> DecodeOutcome(std::string_view text) {
  Status status;
  WordReader read;
  if (!ReadJson(text, read, "outcome").ok() || !read.Take(status)) return std::nullopt;
  return status;
}

std::string EncodeChoice(const ChoiceWord& word) {
  if (!word.end.ok()) return Dump(FromStatus(word.end));
  Object object = word.damage.ok() ? Object{{"attempt", word.attempt}} : FromStatus(word.damage);
  object["step"] = word.step;
  object["path"] = word.path;
  return Dump(object);
}

Result<ChoiceWord> DecodeChoice(std::string_view text) {
  ChoiceWord word;
  WordReader read;
  if (!ReadJson(text, read, "choice").ok()) return NotAWord(0, text);
  if (!read.Has("path")) {
    if (!read.Take(word.end) || word.end.ok()) return NotAWord(0, text);
    return word;
  }
  const bool good =
      read.Take("step", word.step) && read.Take("path", word.path) &&
      (read.Has("code") ? read.Take(word.damage) && !word.damage.ok() : read.Take("attempt", word.attempt));
  if (!good) return NotAWord(0, text);
  return word;
}

std::string EncodeVerdict(const VerdictWord& word) {
  Object object = FromStatus(word.status);
  object["rank"] = word.rank;
  return Dump(object);
}

Result<VerdictWord> DecodeVerdict(std::string_view text) {
  VerdictWord word;
  WordReader read;
  std::uint64_t rank = 0;
  if (!ReadJson(text, read, "verdict").ok() || !read.Take(word.status) || !read.Take("rank", rank) ||
      rank > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    return NotAWord(0, text);
  }
  word.rank = static_cast<int>(rank);
  return word;
}

Status CheckSameLine(std::uint64_t step, const std::string& restored, int rank, std::uint64_t its_step,
                     const std::string& its_restored) {
  if (step != its_step) {
    return Error(StatusCode::kFailedPrecondition, "ranks save different steps: rank 0 saves {}, rank {} saves {}", step,
                 rank, its_step);
  }
  if (restored != its_restored) {
    return Error(StatusCode::kFailedPrecondition,
                 "step {}: ranks continue different checkpoints: rank 0 {}, rank {} {}", step, OrNothing(restored),
                 rank, OrNothing(its_restored));
  }
  return Status::Ok();
}

}  // namespace cairn
