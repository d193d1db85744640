#include "store/list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "mirror/headers.h"
#include "restore/open.h"
#include "store/memory_folder.h"
#include "store/mirrors.h"
#include "store/pins.h"
#include "store/writer.h"
#include "tools/commands.h"
#include "tools/in_bucket.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

struct Listed {
  StoredCheckpoint checkpoint;
  /// An object of numbers.
  json metrics;
  /// Bytes that it shares with checkpoints before it in the list.
  std::uint64_t shared = 0;
  /// The targets that have a copy, as the mirrors have last said.
  std::vector<std::string> mirrors;
  /// The disk does not have it.
  bool in_memory = false;
};

using Inodes = std::set<std::pair<std::uint64_t, std::uint64_t>>;

/// Of the checkpoint's kept files, the bytes of those that `seen` has already, which it adds the others to.
std::uint64_t SharedBytes(const StoredCheckpoint& checkpoint, Inodes& seen) {
  std::uint64_t bytes = 0;
  for (const ManifestShard& shard : checkpoint.manifest.shards) {
    struct stat found {};
    if (!shard.kept || ::lstat((checkpoint.info.path + "/" + shard.file).c_str(), &found) != 0) continue;
    if (!seen.emplace(found.st_dev, found.st_ino).second) bytes += shard.length;
  }
  return std::min(bytes, checkpoint.info.bytes);
}

/// Whether it is a float that JSON lacks, as the Python package writes it: ["float","nan"].
bool IsTypedFloat(const json& value) {
  return value.is_array() && value.size() == 2 && value[0] == "float" &&
         (value[1] == "nan" || value[1] == "inf" || value[1] == "-inf");
}

/// The numbers of the value "metrics", which the Python package keeps under "tree".
json Metrics(const Values& values) {
  json metrics = json::object();
  const auto found = values.find("metrics");
  const Json* const text = found == values.end() ? nullptr : std::get_if<Json>(&found->second);
  if (text == nullptr) return metrics;
  json node = json::parse(text->text, nullptr, /*allow_exceptions=*/false);
  if (node.is_object() && node.contains("tree")) node = json(std::move(node["tree"]));
  if (!node.is_object()) return metrics;
  for (const auto& [name, value] : node.items()) {
    if (value.is_number()) metrics[name] = value;
    if (IsTypedFloat(value)) metrics[name] = value[1];
  }
  return metrics;
}

/// Reads the metrics of a checkpoint, which rank 0's shard has. Takes no lock, so that a listing does not keep a job
/// from removing what it retires. NotFound if the checkpoint was removed meanwhile.
Result<json> ReadMetrics(IoQueue& queue, const StoredCheckpoint& checkpoint) {
  const ManifestShard& shard = checkpoint.manifest.shards.front();
  std::vector<ShardFile> files(1);
  files[0].name = checkpoint.info.path + "/" + shard.file;
  files[0].length = shard.length;
  CAIRN_RETURN_IF_ERROR(ReadHeaders(queue, checkpoint, std::array<std::uint32_t, 1>{0}, files));
  return Metrics(files[0].header.values);
}

std::vector<std::string> MirrorsOf(const CheckpointInfo& info, const std::vector<MirrorRecord>& mirrors) {
  std::vector<std::string> targets;
  const MirroredCheckpoint wanted{.step = info.step, .line = info.line, .attempt = info.attempt};
  for (const MirrorRecord& mirror : mirrors) {
    if (std::ranges::find(mirror.checkpoints, wanted) != mirror.checkpoints.end()) targets.push_back(mirror.target);
  }
  return targets;
}

/// Of an object store.
Result<std::vector<Listed>> CheckpointsInBucket(const std::string& place) {
  CAIRN_ASSIGN_OR_RETURN(InBucket found, ListInBucket(place));
  std::vector<ShardFile> files(found.checkpoints.size());
  std::vector<WantedHeader> wanted;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const StoredCheckpoint& one = found.checkpoints[i];
    if (!one.info.status.ok()) continue;
    files[i].with_values = false;  // Metrics are short.
    wanted.push_back({.checkpoint = &one, .shard = &one.manifest.shards.front(), .file = &files[i]});
  }
  FetchHeaders(*found.bucket, wanted);
  std::vector<Listed> list;
  auto header = wanted.begin();
  for (std::size_t i = 0; i < files.size(); ++i) {
    StoredCheckpoint& one = found.checkpoints[i];
    const bool good = one.info.status.ok();
    if (good) one.info.status = (header++)->status;
    if (good && one.info.status.code() == StatusCode::kNotFound) continue;
    list.push_back({.metrics = Metrics(files[i].header.values)});
    list.back().checkpoint = std::move(one);
  }
  return list;
}

/// Where a job of that root may have kept what the disk does not have.
MemoryPlace FindMemoryOf(const std::string& root) {
  const Result<std::optional<WriterRecord>> writer = ReadWriter(root);
  if (!writer.ok() || !*writer) return {};
  return FindMemoryPlace(**writer);
}

Result<std::vector<Listed>> Checkpoints(IoQueue& queue, const std::string& root,
                                        const std::vector<MirrorRecord>& mirrors) {
  if (IsBucket(root)) return CheckpointsInBucket(root);
  CAIRN_RETURN_IF_ERROR(CheckRoot(root));
  const MemoryPlace memory = FindMemoryOf(root);
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, ListCheckpoints(root, memory));
  std::vector<Listed> list;
  Inodes seen;
  for (StoredCheckpoint& one : stored) {
    json metrics = json::object();
    if (one.info.status.ok()) {
      Result<json> read = ReadMetrics(queue, one);
      if (read.status().code() == StatusCode::kNotFound) continue;
      if (read.ok()) {
        metrics = *std::move(read);
      } else {
        one.info.status = read.status();
      }
    }
    const std::uint64_t shared = SharedBytes(one, seen);
    std::vector<std::string> targets = MirrorsOf(one.info, mirrors);
    const bool in_memory = !memory.path.empty() && one.info.path.starts_with(memory.path + "/");
    list.push_back({std::move(one), std::move(metrics), shared, std::move(targets), in_memory});
  }
  return list;
}

std::string MetricsText(const json& metrics) {
  constexpr std::size_t kLongMetrics = 60;
  std::string text;
  for (const auto& [name, value] : metrics.items()) {
    std::string one = fmt::format("{}{}=", text.empty() ? "" : " ", Printable(name));
    one += value.is_number() ? fmt::format("{:.4g}", value.get<double>()) : value.get<std::string>();
    if (text.size() + one.size() > kLongMetrics) return text + " ...";
    text += one;
  }
  return text;
}

std::string Note(const Listed& listed) {
  const auto& [checkpoint, metrics, shared, mirrors, in_memory] = listed;
  const CheckpointInfo& info = checkpoint.info;
  if (!info.status.ok()) return Coloured(Printable(info.status.ToString()), Colour::kRed);
  std::vector<std::string> notes;
  if (in_memory) notes.push_back(fmt::format("in memory alone, {}", Printable(info.path)));
  if (info.nonfinite != NonFinite::kNone) notes.push_back(MarkText(info.nonfinite));
  if (info.suspect) notes.emplace_back("suspect");
  if (info.pinned) notes.emplace_back(FindPin(info.path) == PinOwner::kBest ? "pinned by keep_best" : "pinned");
  if (info.copy) notes.push_back(LineText(info));
  if (shared != 0) notes.push_back(fmt::format("and {} shared with steps above", HumanBytes(shared)));
  return fmt::format("{}", fmt::join(notes, ", "));
}

/// Without the columns that are empty below the header.
void PrintFilled(std::vector<std::vector<std::string>> rows) {
  for (std::size_t column = rows.front().size(); column-- > 0;) {
    const bool filled =
        std::any_of(rows.begin() + 1, rows.end(), [=](const auto& row) { return !row[column].empty(); });
    if (filled) continue;
    for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
  }
  PrintTable(rows);
}

/// " (root 4f2a6b1d..., as run)" if a root before it, in `by_id`, has its id: one is a copy of the other.
std::string SameAs(const std::string& root, std::map<std::string, std::string>& by_id) {
  const Result<std::optional<WriterRecord>> writer = IsBucket(root) ? WriterInBucket(root) : ReadWriter(root);
  if (!writer.ok() || !*writer || (*writer)->root.empty()) return "";
  const auto& [before, fresh] = by_id.emplace((*writer)->root, root);
  return fresh ? "" : fmt::format(" (root {}, as {})", ShortId(before->first), Printable(before->second));
}

/// What went wrong with the last copy of each mirror.
void PrintErrors(const std::vector<MirrorRecord>& mirrors) {
  for (const MirrorRecord& mirror : mirrors) {
    if (mirror.error.empty()) continue;
    fmt::print("mirror {}: {}\n", Printable(mirror.target), Coloured(Printable(mirror.error), Colour::kRed));
  }
}

void PrintList(const std::string& root, const std::vector<Listed>& list) {
  if (list.empty()) {
    fmt::print("there is no checkpoint under {}\n", Printable(root));
    return;
  }
  std::vector<CheckpointInfo> infos;
  for (const Listed& one : list) infos.push_back(one.checkpoint.info);
  const bool several = HaveSeveralLines(infos);
  std::vector<std::vector<std::string>> rows{{"STEP", "LINE", "TIME", "SIZE", "RANKS", "METRICS", "MIRRORS", "NOTE"}};
  for (const Listed& one : list) {
    const CheckpointInfo& info = one.checkpoint.info;
    const bool known = info.world > 0;  // Its manifest is good.
    const std::string line = !several ? "" : known ? std::to_string(info.line) : "-";
    rows.push_back({std::to_string(info.step), line, CommitTime(info, one.checkpoint.committed_at),
                    known ? HumanBytes(info.bytes - one.shared) : "-", known ? std::to_string(info.world) : "-",
                    MetricsText(one.metrics), Printable(fmt::format("{}", fmt::join(one.mirrors, ", "))), Note(one)});
  }
  PrintFilled(std::move(rows));
}

}  // namespace

Result<int> List(const ListOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, MakeQueue());
  int exit_code = kGood;
  json objects = json::array();
  std::map<std::string, std::string> by_id;
  for (const std::string& root : options.roots) {
    const std::vector<MirrorRecord> mirrors = ListMirrors(root);
    const Result<std::vector<Listed>> list = Checkpoints(*queue, root, mirrors);
    if (!list.ok()) {
      exit_code = std::max(exit_code, ReportError(list.status()));
      continue;
    }
    for (const auto& [checkpoint, metrics, shared, targets, in_memory] : *list) {
      objects.push_back(ToJson(checkpoint.info, checkpoint.committed_at));
      objects.back()["metrics"] = metrics;
      if (shared != 0) objects.back()["shared_bytes"] = shared;
      if (!targets.empty()) objects.back()["mirrors"] = targets;
      if (in_memory) objects.back()["in_memory"] = true;
      if (!checkpoint.info.status.ok()) exit_code = std::max(exit_code, kDamagedOrDifferent);
    }
    if (options.json) continue;
    if (options.roots.size() > 1) {
      fmt::print("{}{}{}:\n", &root == &options.roots.front() ? "" : "\n", Printable(root), SameAs(root, by_id));
    }
    PrintList(root, *list);
    PrintErrors(mirrors);
  }
  // One list, however many roots: each checkpoint has its path.
  if (options.json && (exit_code != kFailed || options.roots.size() > 1)) PrintJson(objects);
  return exit_code;
}

}  // namespace cairn::tools
