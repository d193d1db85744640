#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/human.h"
#include "base/status_macros.h"
#include "restore/open.h"
#include "store/list.h"
#include "tools/commands.h"
#include "tools/in_bucket.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

constexpr std::size_t kLongValue = 80;

/// Its beginning, in whole characters.
std::string Cut(const std::string& text) {
  std::size_t end = std::min(text.size(), kLongValue);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end < text.size() ? text.substr(0, end) + "..." : text;
}

/// "list of 3", "{...}", or the value itself if it is short. The Python package writes a list as ["list", item, ...],
/// many numbers as ["packed", "list", dtype, base64], and other types likewise.
std::string SummariseMember(const std::string& name, const nlohmann::json& member) {
  constexpr std::size_t kLongMember = 40;
  const bool typed = member.is_array() && !member.empty() && member[0].is_string();
  const std::string type = typed ? member[0].get<std::string>() : "";
  std::string text;
  if (type == "list" || type == "tuple" || type == "set" || type == "frozenset") {
    text = fmt::format("{} of {}", type, member.size() - 1);
  } else if (type == "packed" && member.size() == 4 && member[1].is_string()) {
    text = fmt::format("{} of numbers", member[1].get<std::string>());
  } else if (member.is_object() || type == "state" || type == "dict" || type == "odict") {
    text = "{...}";
  } else if (member.is_array()) {
    text = "[...]";
  } else {
    text = JsonLine(member);
  }
  return fmt::format("{}: {}", Printable(name), text.size() > kLongMember ? "..." : text);
}

/// A value on one line. Of a long JSON object it shows the outer members, plain ones first; the Python package keeps
/// those of its tree under "tree".
std::string Summarise(const Value& value) {
  std::string text = ValueText(value);
  if (text.size() <= kLongValue) return text;
  const std::string size = HumanBytes(text.size());
  const auto is_outer = [](int depth, nlohmann::json::parse_event_t /*event*/, nlohmann::json& /*node*/) {
    return depth <= 3;
  };
  nlohmann::json node = nlohmann::json::parse(text, is_outer, /*allow_exceptions=*/false);
  if (node.is_object() && node.contains("tree")) node = nlohmann::json(node["tree"]);
  if (node.is_object()) {
    std::vector<std::string> members;
    std::size_t length = 0;
    for (const bool plain : {true, false}) {
      for (const auto& [name, member] : node.items()) {
        if (member.is_primitive() != plain || length > kLongValue) continue;
        members.push_back(SummariseMember(name, member));
        length += members.back().size();
      }
    }
    if (members.size() < node.size()) members.emplace_back("...");
    text = fmt::format("{}", fmt::join(members, ", "));
  } else {
    text = Cut(text);
  }
  return fmt::format("{} ({} of JSON; --json prints it)", text, size);
}

// Both classes print as they are given files [first, end) of a source, and nothing before.

/// One object: the members of `head`, a list of the tensors, one line each, and for a checkpoint the values of each
/// rank.
class JsonText {
 public:
  JsonText(nlohmann::json head, bool has_values) : head_(std::move(head)), has_values_(has_values) {}
  void Add(const TensorSource& source, std::uint32_t first, std::uint32_t end) {
    if (!head_.empty()) Begin();
    for (const StoredTensor& tensor : source.tensors()) {
      fmt::print("{}\n    {}", any_ ? "," : "", JsonLine(ToJson(tensor.info)));
      any_ = true;
    }
    // Kept files, which come behind the ranks' shards, have none.
    const std::uint64_t ranks = source.checkpoint() != nullptr ? source.checkpoint()->manifest.world : end;
    for (std::uint32_t file = first; file < std::min<std::uint64_t>(end, ranks); ++file) {
      values_.push_back(ValuesText(source.header(file).values));
    }
  }
  void End() {
    if (!head_.empty()) Begin();
    fmt::print("\n  ]");
    if (has_values_) fmt::print(",\n  \"values\": [\n    {}\n  ]", fmt::join(values_, ",\n    "));
    fmt::print("\n}}\n");
  }

 private:
  void Begin() {
    fmt::print("{{\n");
    for (const auto& [key, value] : head_.items()) fmt::print("  \"{}\": {},\n", key, JsonLine(value));
    fmt::print("  \"tensors\": [");
    head_.clear();
  }

  nlohmann::json head_;
  const bool has_values_;
  bool any_ = false;
  std::vector<std::string> values_;
};

/// The head, then values and tensors in the order of the files.
class PlainText {
 public:
  explicit PlainText(std::string head) : head_(std::move(head)) {}
  void Add(const TensorSource& source, std::uint32_t first, std::uint32_t end) {
    fmt::print("{}", std::exchange(head_, ""));
    PrintValues(source, first, end);
    std::vector<std::vector<std::string>> rows;
    if (widths_.empty()) rows.push_back({"NAME", "TYPE", "BYTES", "FILE"});
    for (const StoredTensor& tensor : source.tensors()) {
      const TensorInfo& info = tensor.info;
      rows.push_back({Printable(info.name), DescribeType(info), std::to_string(info.bytes),
                      info.alias_of.empty() ? Printable(info.file) : "tied to " + Printable(info.alias_of)});
    }
    PrintTable(rows, widths_);
  }

 private:
  // Ranks in a row whose values look alike have one line.
  static void PrintValues(const TensorSource& source, std::uint32_t first, std::uint32_t end) {
    std::vector<std::vector<std::string>> lines;
    for (std::uint32_t file = first; file < end; ++file) {
      lines.emplace_back();
      for (const auto& [name, value] : source.header(file).values) {
        lines.back().push_back(fmt::format("{} = {}", Printable(name), Printable(Summarise(value))));
      }
    }
    for (auto one = lines.begin(); one != lines.end();) {
      const auto next = std::find_if(one, lines.end(), [one](const auto& other) { return other != *one; });
      const auto rank = [&](auto at) {
        return source.header(first + static_cast<std::uint32_t>(at - lines.begin())).shard;
      };
      const std::string ranks = next - one == 1 ? fmt::format("rank {}", rank(one))
                                                : fmt::format("ranks {} to {}", rank(one), rank(next - 1));
      for (const std::string& line : *one) fmt::print("{}: {}\n", ranks, line);
      one = next;
    }
  }

  std::string head_;
  std::vector<std::size_t> widths_;
};

void ShowFile(const std::string& path, const TensorSource& source, bool json) {
  if (json) {
    JsonText text({{"path", path}, {"metadata", source.metadata()}}, /*has_values=*/false);
    text.Add(source, 0, 0);
    text.End();
    return;
  }
  std::string head;
  for (const auto& [key, value] : source.metadata()) {
    head += fmt::format("{}: {}\n", Printable(key), Printable(Cut(value)));
  }
  PlainText(head).Add(source, 0, 0);
}

/// Whether the root that it lies in, if any, has several lines.
bool IsOfSeveralLines(const CheckpointInfo& info) {
  const Result<std::vector<CheckpointInfo>> beside = ListInfos(info.path + "/..");
  return beside.ok() && HaveSeveralLines(*beside);
}

std::string Describe(const StoredCheckpoint& checkpoint, bool several_lines) {
  const CheckpointInfo& info = checkpoint.info;
  const std::vector<ManifestShard>& shards = checkpoint.manifest.shards;
  const bool line = info.copy || several_lines;
  const std::string time = CommitTime(info, checkpoint.committed_at);
  std::string text = fmt::format("step {}  {}  {}{}world {}  {}{}\nattempt {}\n", info.step, time,
                                 line ? LineText(info) : "", line ? "  " : "", info.world, HumanBytes(info.bytes),
                                 info.pinned ? "  pinned" : "", Printable(info.attempt));
  if (const NonFinite worst = info.nonfinite; worst != NonFinite::kNone) {
    const auto has = [worst](const ManifestShard& shard) { return shard.nonfinite == worst; };
    const auto first = std::ranges::find_if(shards, has);
    const auto more = static_cast<std::uint64_t>(std::count_if(std::next(first), shards.end(), has));
    text += fmt::format("{}: {}{}\n", MarkText(worst), Printable(first->file),
                        more == 0 ? "" : fmt::format(" and {}", Count(more, "other shard")));
  }
  if (info.suspect) {
    const auto linked = std::ranges::find_if(
        shards, [&](const ManifestShard& one) { return one.kept && one.kept->attempt != info.attempt; });
    text += fmt::format("suspect: what is frozen may be that of step {}: it was found later to have changed\n",
                        linked->kept->step);
  }
  if (info.parent) text += fmt::format("restored from step {}\n", *info.parent);
  return text;
}

// A few shards at a time, so that any number fits in memory.
template <typename Text>
Status Print(const Reading& reading, TensorSource& source, Text& text) {
  for (std::uint32_t first = 0; first < source.files(); first += kHeaderReads) {
    const std::uint32_t end = std::min(first + static_cast<std::uint32_t>(kHeaderReads), source.files());
    CAIRN_RETURN_IF_ERROR(source.SelectRange(reading.parts(), first, end));
    text.Add(source, first, end);
  }
  return Status::Ok();
}

Result<int> ShowCheckpoint(const Reading& reading, TensorSource& source, bool several_lines, bool json) {
  const StoredCheckpoint& checkpoint = *source.checkpoint();
  if (json) {
    JsonText text(ToJson(checkpoint.info, checkpoint.committed_at), /*has_values=*/true);
    CAIRN_RETURN_IF_ERROR(Print(reading, source, text));
    text.End();
  } else {
    PlainText text(Describe(checkpoint, several_lines));
    CAIRN_RETURN_IF_ERROR(Print(reading, source, text));
  }
  return kGood;
}

Result<int> ShowInBucket(const Reading& reading, const ReadOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const InBucket found, ChooseInBucket(options.path, options.step));
  const StoredCheckpoint& newest = found.checkpoints.back();
  CAIRN_RETURN_IF_ERROR(newest.info.status);
  TensorSource source = HeadersInBucket(*found.bucket, newest);
  return ShowCheckpoint(reading, source, found.several_lines, options.json);
}

}  // namespace

Result<int> Show(const ReadOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make());
  if (IsBucket(options.path)) return ShowInBucket(*reading, options);
  CAIRN_ASSIGN_OR_RETURN(TensorSource source, OpenSource(*reading, options.path, options.step));
  if (source.checkpoint() == nullptr) {
    ShowFile(options.path, source, options.json);
    return kGood;
  }
  return ShowCheckpoint(*reading, source, IsOfSeveralLines(source.checkpoint()->info), options.json);
}

}  // namespace cairn::tools
