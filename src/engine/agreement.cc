#include "engine/agreement.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

using Word = nlohmann::json;

Status NotAWord(std::size_t rank, const std::string& text) {
  return Error(StatusCode::kInternal, "rank {} said what no rank of this version says: \"{}\"", rank, text);
}

// An object, or null for anything else.
Word Parse(const std::string& text) {
  Word word = Word::parse(text, nullptr, false);
  return word.is_object() ? word : Word();
}

Word FromStatus(const Status& status) {
  return {{"code", static_cast<int>(status.code())}, {"message", status.message()}};
}

std::string Dump(const Word& word) { return word.dump(-1, ' ', false, Word::error_handler_t::replace); }

Status ToStatus(const Word& word) {
  return {static_cast<StatusCode>(word.value("code", static_cast<int>(StatusCode::kInternal))),
          word.value("message", "")};
}

}  // namespace

std::string EncodeAttemptWord(const AttemptWord& word) {
  return Dump({{"uuid", word.uuid},
               {"step", word.step},
               {"generation", word.generation},
               {"parent", word.parent},
               {"admitted", word.admitted},
               {"alike", word.alike}});
}

Result<std::string> AgreeOnAttempt(const std::vector<std::string>& texts) {
  std::vector<AttemptWord> words;
  std::optional<std::size_t> first;  // That continues a line of training.
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Word word = Parse(texts[rank]);
    if (!word.contains("uuid") || !word.contains("step") || !word.contains("generation") || !word.contains("parent") ||
        !word.contains("admitted")) {
      return NotAWord(rank, texts[rank]);
    }
    words.push_back({.uuid = word["uuid"].get<std::string>(),
                     .step = word["step"].get<std::uint64_t>(),
                     .generation = word["generation"].get<std::uint64_t>(),
                     .parent = word["parent"].get<std::string>(),
                     .admitted = word["admitted"].get<bool>()});
    const AttemptWord& mine = words.back();
    if (mine.step != words.front().step) {
      return Error(StatusCode::kFailedPrecondition, "ranks save different steps: rank 0 saves {}, rank {} saves {}",
                   words.front().step, rank, mine.step);
    }
    if (!mine.admitted) continue;
    if (!first) first = rank;
    const AttemptWord& other = words[*first];
    if (mine.generation != other.generation || mine.parent != other.parent) {
      return Error(StatusCode::kFailedPrecondition,
                   "step {}: ranks continue different checkpoints: rank {} generation {} from attempt \"{}\", rank {} "
                   "generation {} from attempt \"{}\"",
                   mine.step, *first, other.generation, other.parent, rank, mine.generation, mine.parent);
    }
  }
  return words.empty() ? std::string() : words.front().uuid;
}

std::vector<std::string> AlikeDigests(const std::vector<std::string>& texts) {
  std::vector<std::string> digests;
  for (const std::string& text : texts) {
    const Word word = Parse(text);
    if (!word.value("admitted", false)) return {};
    digests.push_back(word.value("alike", ""));
  }
  return digests;
}

std::string EncodePrepared(const ManifestShard& shard) {
  return Dump({{"file", shard.file}, {"length", shard.length}, {"digest", shard.header_digest}});
}

std::string EncodeFailure(const Status& status) { return Dump({{"failed", FromStatus(status)}}); }

Result<std::vector<ManifestShard>> AgreeOnShards(const std::vector<std::string>& words) {
  std::vector<ManifestShard> shards;
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    const Word word = Parse(words[rank]);
    if (word.contains("failed")) {
      const Status status = ToStatus(word["failed"]);
      return words.size() == 1 ? status : Error(status.code(), "rank {}: {}", rank, status.message());
    }
    if (!word.contains("file") || !word.contains("length") || !word.contains("digest"))
      return NotAWord(rank, words[rank]);
    shards.push_back({.file = word["file"].get<std::string>(),
                      .length = word["length"].get<std::uint64_t>(),
                      .header_digest = word["digest"].get<std::uint32_t>()});
  }
  return shards;
}

std::string EncodeOutcome(const Status& status) { return Dump({{"outcome", FromStatus(status)}}); }

Status DecodeOutcome(const std::string& text) {
  const Word word = Parse(text);
  return word.contains("outcome") ? ToStatus(word["outcome"]) : NotAWord(0, text);
}

}  // namespace cairn
