#include "format/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "format/fields.h"
#include "format/json_reader.h"

namespace cairn {
namespace {

constexpr std::uint64_t kManifestVersion = 1;
// The file ends with these and 8 digits between them.
constexpr std::string_view kTail = ",\n \"digest\":\"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr std::size_t kTailBytes = kTail.size() + 8 + kEnd.size();
// Known members and those of later versions. Limits the memory for finding duplicates.
constexpr std::size_t kMaxMembers = 64;

std::uint32_t Digest(std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); }

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' && name != kManifestName &&
         std::ranges::none_of(name, [](char c) { return c == '/' || IsControl(c); });
}

class ManifestReader final : public JsonEvents {
 public:
  bool OnScalar(const JsonScalar& value) override;
  bool OnKey(std::string_view key) override;
  bool OnOpen(char bracket) override;
  bool OnClose() override;

  /// CheckKept adds the kept files to its shards.
  Manifest manifest;
  std::vector<ManifestShard> kept;

 private:
  enum class At : std::uint8_t { kTop, kFeatures, kParent, kShards, kShard, kKepts, kKept, kIndex, kSkipped };
  enum class Field : std::uint8_t {
    kUnknown,
    kVersion,
    kFeatures,
    kStep,
    kLine,
    kRoot,
    kAttempt,
    kParent,
    kWorld,
    kShards,
    kKept,
    kIndex,
    kDigest,
    kParentStep,
    kParentAttempt,
    kFile,
    kLength,
    kHeaderDigest,
    kNonFinite,
    kKeptRank,
    kKeptStep,
    kKeptAttempt,
    kIndexFile,
    kIndexLength,
    kIndexHead,
    kIndexDigest,
  };
  /// So an invalid one counts as missing.
  [[nodiscard]] static constexpr bool MayBeMissing(Field field) {
    return field == Field::kRoot || field == Field::kIndex || field == Field::kNonFinite;
  }
  struct Known {
    At at;
    std::string_view name;
    Field field;
  };
  static constexpr std::array<Known, 29> kKnown{{
      {At::kTop, "format_version", Field::kVersion},
      {At::kTop, "required_features", Field::kFeatures},
      {At::kTop, "step", Field::kStep},
      {At::kTop, "generation", Field::kLine},
      {At::kTop, "root", Field::kRoot},
      {At::kTop, "attempt", Field::kAttempt},
      {At::kTop, "parent", Field::kParent},
      {At::kTop, "world", Field::kWorld},
      {At::kTop, "shards", Field::kShards},
      {At::kTop, "kept", Field::kKept},
      {At::kTop, "index", Field::kIndex},
      {At::kTop, "digest", Field::kDigest},
      {At::kParent, "step", Field::kParentStep},
      {At::kParent, "attempt", Field::kParentAttempt},
      {At::kShard, "file", Field::kFile},
      {At::kShard, "length", Field::kLength},
      {At::kShard, "header_digest", Field::kHeaderDigest},
      {At::kShard, "nonfinite", Field::kNonFinite},
      {At::kKept, "file", Field::kFile},
      {At::kKept, "rank", Field::kKeptRank},
      {At::kKept, "length", Field::kLength},
      {At::kKept, "header_digest", Field::kHeaderDigest},
      {At::kKept, "step", Field::kKeptStep},
      {At::kKept, "attempt", Field::kKeptAttempt},
      {At::kKept, "nonfinite", Field::kNonFinite},
      {At::kIndex, "file", Field::kIndexFile},
      {At::kIndex, "length", Field::kIndexLength},
      {At::kIndex, "head", Field::kIndexHead},
      {At::kIndex, "digest", Field::kIndexDigest},
  }};
  static constexpr unsigned kIndexMembers = 4;
  struct Level {
    At at;
    std::vector<std::string> keys;
  };

  bool OnMember(const JsonScalar& value);
  void OnIndexMember(const JsonScalar& value);
  bool TakeNumber(const JsonScalar& value, std::uint64_t& to);
  bool TakeAttempt(const JsonScalar& value, std::string& to);
  /// The file that is being read.
  [[nodiscard]] ManifestShard& Shard() { return levels_.back().at == At::kKept ? kept.back() : manifest.shards.back(); }
  [[nodiscard]] std::string Place(std::string_view key) const;
  bool FailExpected(std::string_view expected, const std::string& found) {
    return Fail("{}: expected {}, found {}", Place(key_), expected, found);
  }

  std::vector<Level> levels_;
  // How many members of the index are valid.
  unsigned index_members_ = 0;
  std::string key_;
  Field field_ = Field::kUnknown;
};

std::string ManifestReader::Place(std::string_view key) const {
  switch (levels_.empty() ? At::kTop : levels_.back().at) {
    case At::kParent:
      return fmt::format("parent.{}", key);
    case At::kShard:
      return fmt::format("shards[{}].{}", manifest.shards.size() - 1, key);
    case At::kKept:
      return fmt::format("kept[{}].{}", kept.size() - 1, key);
    case At::kIndex:
      return fmt::format("index.{}", key);
    default:
      return std::string(key);
  }
}

bool ManifestReader::TakeNumber(const JsonScalar& value, std::uint64_t& to) {
  if (value.kind != JsonScalar::Kind::kNatural) return FailExpected("an integer from 0 to 2^64 - 1", value.Describe());
  to = value.natural;
  return true;
}

bool ManifestReader::TakeAttempt(const JsonScalar& value, std::string& to) {
  if (value.kind != JsonScalar::Kind::kText || !IsAttemptId(value.text)) {
    return FailExpected("1 to 64 letters, digits, '-' or '_'", value.Describe());
  }
  to = value.text;
  return true;
}

// An invalid member does not count, and OnClose then drops the index.
void ManifestReader::OnIndexMember(const JsonScalar& value) {
  ManifestIndex& index = *manifest.index;
  const bool text = value.kind == JsonScalar::Kind::kText;
  bool sound = value.kind == JsonScalar::Kind::kNatural;
  switch (field_) {
    case Field::kIndexFile:
      sound = text && IsPlainFileName(value.text);
      if (sound) index.file = value.text;
      break;
    case Field::kIndexLength:
      index.length = value.natural;
      break;
    case Field::kIndexHead:
      index.head = value.natural;
      break;
    case Field::kIndexDigest: {
      const auto digest = text ? ParseHex32(value.text) : std::nullopt;
      sound = digest.has_value();
      index.digest = digest.value_or(0);
      break;
    }
    default:
      return;
  }
  index_members_ += sound ? 1 : 0;
}

bool ManifestReader::OnMember(const JsonScalar& value) {
  switch (field_) {
    case Field::kUnknown:
    case Field::kIndex:
      return true;
    case Field::kVersion: {
      std::uint64_t version = 0;
      if (!TakeNumber(value, version)) return false;
      if (version == kManifestVersion) return true;
      return Fail(StatusCode::kUnsupported, "format_version: expected {}, found {}", kManifestVersion, version);
    }
    case Field::kStep:
      return TakeNumber(value, manifest.step);
    case Field::kLine:
      return TakeNumber(value, manifest.line);
    case Field::kRoot:
      if (value.kind == JsonScalar::Kind::kText && IsAttemptId(value.text)) manifest.root = value.text;
      return true;
    case Field::kWorld:
      if (!TakeNumber(value, manifest.world)) return false;
      return manifest.world != 0 || FailExpected("at least 1", "0");
    case Field::kAttempt:
      return TakeAttempt(value, manifest.attempt);
    case Field::kParent:
      return value.kind == JsonScalar::Kind::kNull || FailExpected("an object or null", value.Describe());
    case Field::kFeatures:
    case Field::kShards:
    case Field::kKept:
      return FailExpected("an array", value.Describe());
    case Field::kDigest:
      return value.kind == JsonScalar::Kind::kText || FailExpected("a string", value.Describe());
    case Field::kParentStep:
      return TakeNumber(value, manifest.parent->step);
    case Field::kParentAttempt:
      return TakeAttempt(value, manifest.parent->attempt);
    case Field::kFile:
      if (value.kind != JsonScalar::Kind::kText || !IsPlainFileName(value.text)) {
        return FailExpected("a plain file name", value.Describe());
      }
      Shard().file = value.text;
      return true;
    case Field::kLength:
      return TakeNumber(value, Shard().length);
    case Field::kKeptRank:
      return TakeNumber(value, kept.back().kept->rank);
    case Field::kKeptStep:
      return TakeNumber(value, kept.back().kept->step);
    case Field::kKeptAttempt:
      return TakeAttempt(value, kept.back().kept->attempt);
    case Field::kHeaderDigest: {
      const auto digest = value.kind == JsonScalar::Kind::kText ? ParseHex32(value.text) : std::nullopt;
      if (!digest) return FailExpected("8 lower-case hexadecimal digits", value.Describe());
      Shard().header_digest = *digest;
      return true;
    }
    case Field::kNonFinite:
      for (const NonFinite one : {NonFinite::kInfinity, NonFinite::kNaN}) {
        if (value.text == NonFiniteName(one)) Shard().nonfinite = one;
      }
      return true;
    case Field::kIndexFile:
    case Field::kIndexLength:
    case Field::kIndexHead:
    case Field::kIndexDigest:
      OnIndexMember(value);
      return true;
  }
  return false;
}

bool ManifestReader::OnScalar(const JsonScalar& value) {
  switch (levels_.back().at) {
    case At::kSkipped:
      return true;
    case At::kFeatures:
      if (value.kind != JsonScalar::Kind::kText) return FailExpected("strings", value.Describe());
      manifest.required_features.emplace_back(value.text);
      if (value.text == kKeptFeature || value.text == kLongValuesFeature) return true;
      return Fail(StatusCode::kUnsupported,
                  "required_features: expected only \"{}\" and \"{}\", as this version knows no other, found {}",
                  kKeptFeature, kLongValuesFeature, Quoted(value.text));
    case At::kShards:
    case At::kKepts:
      return FailExpected("objects", value.Describe());
    case At::kTop:
    case At::kParent:
    case At::kShard:
    case At::kKept:
    case At::kIndex:
      return OnMember(value);
  }
  return false;
}

bool ManifestReader::OnKey(std::string_view key) {
  Level& level = levels_.back();
  if (level.at != At::kSkipped) key_ = key;
  if (std::ranges::find(level.keys, key) != level.keys.end()) {
    return Fail("{}: expected once, found twice", Quoted(Place(key)));
  }
  if (level.keys.size() == kMaxMembers) return Fail("expected objects of at most {} members, found more", kMaxMembers);
  level.keys.emplace_back(key);
  const auto* known = std::ranges::find_if(kKnown, [&](const Known& k) { return k.at == level.at && k.name == key; });
  field_ = known == kKnown.end() ? Field::kUnknown : known->field;
  return true;
}

bool ManifestReader::OnOpen(char bracket) {
  At next = At::kTop;
  if (!levels_.empty()) {
    const At at = levels_.back().at;
    const bool array = bracket == '[';
    if (at == At::kTop && field_ == Field::kIndex && !array) {
      next = At::kIndex;
      manifest.index.emplace();
    } else if (at == At::kSkipped || at == At::kIndex ||
               ((field_ == Field::kUnknown || MayBeMissing(field_)) && at != At::kShards && at != At::kKepts)) {
      next = At::kSkipped;
    } else if (at == At::kTop && field_ == Field::kFeatures && array) {
      next = At::kFeatures;
    } else if (at == At::kTop && field_ == Field::kShards && array) {
      next = At::kShards;
    } else if (at == At::kTop && field_ == Field::kParent && !array) {
      next = At::kParent;
      manifest.parent.emplace();
    } else if (at == At::kShards && !array) {
      next = At::kShard;
      manifest.shards.emplace_back();
    } else if (at == At::kTop && field_ == Field::kKept && array) {
      next = At::kKepts;
    } else if (at == At::kKepts && !array) {
      next = At::kKept;
      kept.emplace_back().kept.emplace();
    } else {
      return FailExpected("another type", array ? "an array" : "an object");
    }
  }
  levels_.push_back({.at = next});
  levels_.back().keys.reserve(kKnown.size());
  return true;
}

bool ManifestReader::OnClose() {
  const Level& level = levels_.back();
  if (level.at == At::kIndex && index_members_ != kIndexMembers) manifest.index.reset();
  for (const Known& known : kKnown) {
    // Whether there is `kept`, the features say.
    if (known.at == At::kIndex || known.field == Field::kKept || MayBeMissing(known.field)) continue;
    if (known.at == level.at && std::ranges::find(level.keys, known.name) == level.keys.end()) {
      return Fail("{}: missing", Place(known.name));
    }
  }
  levels_.pop_back();
  return true;
}

// Adds the kept files to the shards.
Status CheckKept(ManifestReader& reader, const std::string& file) {
  Manifest& manifest = reader.manifest;
  const bool required = std::ranges::find(manifest.required_features, kKeptFeature) != manifest.required_features.end();
  if (required == reader.kept.empty()) {
    return Error(StatusCode::kCorrupt, "{}: kept: expected {}, found {}", file,
                 required ? "files, as the feature \"kept\" is required" : "the feature \"kept\" to be required",
                 required ? "none" : "files");
  }
  for (std::size_t i = 0; i < reader.kept.size(); ++i) {
    if (reader.kept[i].kept->rank < manifest.world) continue;
    return Error(StatusCode::kCorrupt, "{}: kept[{}].rank: expected a rank below the world size {}, found {}", file, i,
                 manifest.world, reader.kept[i].kept->rank);
  }
  std::ranges::move(reader.kept, std::back_inserter(manifest.shards));
  return Status::Ok();
}

Status CheckNames(const std::vector<ManifestShard>& shards, const std::string& file) {
  std::vector<std::string_view> names;
  names.reserve(shards.size());
  for (const ManifestShard& shard : shards) names.push_back(shard.file);
  std::ranges::sort(names);
  const auto duplicate = std::adjacent_find(names.begin(), names.end());
  if (duplicate == names.end()) return Status::Ok();
  return Error(StatusCode::kCorrupt, "{}: shards: expected each file once, found {} twice", file, Quoted(*duplicate));
}

// An invalid index does not make the checkpoint invalid.
bool IsSound(const ManifestIndex& index, const std::vector<ManifestShard>& shards) {
  return index.length <= kMaxIndexBytes && index.head <= std::min(index.length, kMaxIndexHeadBytes) &&
         std::ranges::none_of(shards, [&](const ManifestShard& shard) { return shard.file == index.file; });
}

}  // namespace

NonFinite WorstOf(const std::vector<ManifestShard>& shards) {
  NonFinite worst = NonFinite::kNone;
  for (const ManifestShard& shard : shards) worst = std::max(worst, shard.nonfinite);
  return worst;
}

Frozen FrozenIn(const std::vector<ManifestShard>& shards, std::string_view attempt) {
  Frozen found = Frozen::kNone;
  for (const ManifestShard& shard : shards) {
    if (shard.kept && shard.kept->attempt != attempt) return Frozen::kLinked;
    if (shard.kept) found = Frozen::kWritten;
  }
  return found;
}

namespace {

// The array's elements and its end.
void AppendShards(std::string& out, std::span<const ManifestShard> shards) {
  const char* before = "\n  {\"file\":";
  for (const ManifestShard& shard : shards) {
    out += std::exchange(before, ",\n  {\"file\":");
    AppendJsonString(out, shard.file);
    if (shard.kept) out += fmt::format(",\"rank\":{}", shard.kept->rank);
    out += ",\"length\":";
    AppendDecimal(out, shard.length);
    out += ",\"header_digest\":\"";
    AppendHex32(out, shard.header_digest);
    out += '"';
    if (shard.kept) {
      out += fmt::format(",\"step\":{},\"attempt\":", shard.kept->step);
      AppendJsonString(out, shard.kept->attempt);
    }
    if (shard.nonfinite != NonFinite::kNone) {
      out += fmt::format(",\"nonfinite\":\"{}\"", NonFiniteName(shard.nonfinite));
    }
    out += '}';
  }
  out += ']';
}

}  // namespace

std::string EncodeManifest(const Manifest& manifest) {
  std::string out = fmt::format("{{\n \"format_version\":{},\n \"required_features\":[", kManifestVersion);
  for (std::size_t i = 0; i < manifest.required_features.size(); ++i) {
    if (i != 0) out += ',';
    AppendJsonString(out, manifest.required_features[i]);
  }
  out += fmt::format("],\n \"step\":{},\n \"generation\":{}", manifest.step, manifest.line);
  if (!manifest.root.empty()) {
    out += ",\n \"root\":";
    AppendJsonString(out, manifest.root);
  }
  out += ",\n \"attempt\":";
  AppendJsonString(out, manifest.attempt);
  out += ",\n \"parent\":";
  if (manifest.parent) {
    out += fmt::format("{{\"step\":{},\"attempt\":", manifest.parent->step);
    AppendJsonString(out, manifest.parent->attempt);
    out += '}';
  } else {
    out += "null";
  }
  out += fmt::format(",\n \"world\":{},\n \"shards\":[", manifest.world);
  const auto kept = std::ranges::find_if(manifest.shards, [](const ManifestShard& shard) { return !!shard.kept; });
  AppendShards(out, {manifest.shards.begin(), kept});
  if (kept != manifest.shards.end()) {
    out += ",\n \"kept\":[";
    AppendShards(out, {kept, manifest.shards.end()});
  }
  if (manifest.index) {
    out += ",\n \"index\":{\"file\":";
    AppendJsonString(out, manifest.index->file);
    out += fmt::format(",\"length\":{},\"head\":{},\"digest\":\"{:08x}\"}}", manifest.index->length,
                       manifest.index->head, manifest.index->digest);
  }
  const std::uint32_t digest = Digest(out);
  out += kTail;
  AppendHex32(out, digest);
  out += kEnd;
  return out;
}

Result<Manifest> DecodeManifest(std::string_view text, const std::string& file) {
  if (text.size() > kMaxManifestBytes) {
    return Error(StatusCode::kCorrupt, "{}: expected at most {} bytes, found {}", file, kMaxManifestBytes, text.size());
  }
  const std::size_t covered = text.size() < kTailBytes ? 0 : text.size() - kTailBytes;
  const std::string_view tail = text.substr(covered);
  const auto stored = tail.size() == kTailBytes ? ParseHex32(tail.substr(kTail.size(), 8)) : std::nullopt;
  if (!stored || !tail.starts_with(kTail) || !tail.ends_with(kEnd)) {
    return Error(StatusCode::kCorrupt, "{}: digest: expected 8 digits in the last member, found none", file);
  }
  if (const std::uint32_t digest = Digest(text.substr(0, covered)); digest != *stored) {
    return Error(StatusCode::kCorrupt, "{}: digest: expected {:08x}, computed {:08x}", file, *stored, digest);
  }
  ManifestReader reader;
  CAIRN_RETURN_IF_ERROR(ReadJson(text, reader, file));
  const Manifest& read = reader.manifest;
  if (read.shards.size() != read.world) {
    return Error(StatusCode::kCorrupt, "{}: shards: expected one for each of {} ranks, found {}", file, read.world,
                 read.shards.size());
  }
  CAIRN_RETURN_IF_ERROR(CheckKept(reader, file));
  CAIRN_RETURN_IF_ERROR(CheckNames(read.shards, file));
  std::optional<ManifestIndex>& index = reader.manifest.index;
  if (index && !IsSound(*index, reader.manifest.shards)) index.reset();
  return std::move(reader.manifest);
}

}  // namespace cairn
