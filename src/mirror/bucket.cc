#include "mirror/bucket.h"

#include <fmt/format.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "format/fields.h"
#include "store/names.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMostListed = 1U << 30;
constexpr std::size_t kReadsAtOnce = 8;
// More whole objects than this are read by one call: starting one takes a tenth of a CPU second.
constexpr std::size_t kFewReads = 8;
constexpr std::size_t kMostByOneCall = 1000;

/// Seconds since 1970 of "2026-11-30T13:59:23.166Z" or "...+01:00"; 0 if it is something else.
double ParseTime(const std::string& text) {
  std::tm day{};
  double seconds = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%d-%d-%dT%d:%d:%lf%n", &day.tm_year, &day.tm_mon, &day.tm_mday, &day.tm_hour,
                  &day.tm_min, &seconds, &used) != 6) {
    return 0;
  }
  day.tm_year -= 1900;
  day.tm_mon -= 1;
  char sign = 0;
  int hours = 0;
  int minutes = 0;
  const int zone = std::sscanf(text.c_str() + used, "%c%d:%d", &sign, &hours, &minutes);
  const double east = zone == 3 ? (sign == '-' ? -60.0 : 60.0) * (60 * hours + minutes) : 0;
  return static_cast<double>(::timegm(&day)) + seconds - east;
}

/// Step and attempt of "step-00000000000000001000.<attempt>".
std::optional<std::pair<std::uint64_t, std::string>> ParseFolder(std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::optional<std::uint64_t> step = ParseStepName(name.substr(0, dot));
  const std::string_view attempt = name.substr(dot + 1);
  if (!step || !IsAttemptId(attempt)) return std::nullopt;
  return std::pair(*step, std::string(attempt));
}

/// A folder of this machine that goes with this.
class Scratch {
 public:
  [[nodiscard]] static Result<Scratch> Make() {
    std::error_code unknown;
    std::string path = (std::filesystem::temp_directory_path(unknown) / "cairn-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "making " + path);
    return Scratch(std::move(path));
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// A file of the objects' names; its path.
  [[nodiscard]] Result<std::string> List(std::span<const Bucket::Range> ranges) const {
    std::string path = *this / "list";
    std::ofstream list(path);
    for (const Bucket::Range& range : ranges) list << range.name << '\n';
    list.close();
    if (!list) return Error(StatusCode::kIoError, "writing {}", path);
    return path;
  }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace

std::uint64_t RunBytes(std::uint64_t object) {
  constexpr std::uint64_t kLeast = 64U << 20;
  constexpr std::uint64_t kMost = 1U << 30;
  constexpr std::uint64_t kCalls = 4;
  return std::clamp(AlignUp((object + kCalls - 1) / kCalls, kChecksumBlock), kLeast, kMost);
}

std::string Bucket::FolderName(const CheckpointInfo& info) { return StepName(info.step) + "." + info.attempt; }

Result<std::unique_ptr<RcloneCall>> Bucket::Start(const std::vector<std::string>& arguments,
                                                  const std::string& doing) const {
  return RcloneCall::Start(rclone_, arguments, doing);
}

Result<std::unique_ptr<RcloneCall>> Bucket::StartRead(const std::string& name, std::uint64_t offset,
                                                      std::uint64_t length) const {
  std::vector<std::string> arguments{"cat", address_.Remote(name)};
  if (offset != 0) arguments.push_back(fmt::format("--offset={}", offset));
  arguments.push_back(fmt::format("--count={}", length));
  return Start(arguments, fmt::format("reading {}/{}", text(), name));
}

Result<std::unique_ptr<RcloneCall>> Bucket::StartWrite(const std::string& name, std::uint64_t length) const {
  return Start({"rcat", fmt::format("--size={}", length), address_.Remote(name)},
               fmt::format("writing {}/{}", text(), name));
}

Result<std::unique_ptr<RcloneCall>> Bucket::StartCopy(const std::string& from, const std::string& to) const {
  return Start({"copyto", "--ignore-times", address_.Remote(from), address_.Remote(to)},
               fmt::format("copying {}/{} to {}", text(), from, to));
}

Result<std::string> Bucket::Finish(Result<std::unique_ptr<RcloneCall>> call, const Range& range) const {
  CAIRN_RETURN_IF_ERROR(call.status());
  CAIRN_ASSIGN_OR_RETURN(std::string bytes, (*call)->ReadAll(range.length));
  if (bytes.size() == range.length) return bytes;
  // Some versions succeed, and print nothing, if there is no such object.
  return Error(bytes.empty() ? StatusCode::kNotFound : StatusCode::kIoError,
               "reading {}/{}: expected {} bytes from {} on, found {}", text(), range.name, range.length, range.offset,
               bytes.size());
}

std::vector<Result<std::string>> Bucket::Get(std::span<const Range> ranges) const {
  std::vector<Result<std::string>> read;
  std::vector<Result<std::unique_ptr<RcloneCall>>> calls;
  for (const Range& range : ranges) {
    for (std::size_t at = calls.size(); at < std::min(ranges.size(), read.size() + kReadsAtOnce); ++at) {
      calls.push_back(StartRead(ranges[at].name, ranges[at].offset, ranges[at].length));
    }
    read.push_back(Finish(std::move(calls[read.size()]), range));
  }
  return read;
}

Status Bucket::GetByOneCall(std::span<const Range> ranges, std::vector<Result<std::string>>& read) const {
  CAIRN_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make());
  CAIRN_ASSIGN_OR_RETURN(const std::string list, scratch.List(ranges));
  CAIRN_ASSIGN_OR_RETURN(const auto call, Start({"copy", "--no-traverse", "--transfers=16", "--files-from-raw", list,
                                                 address_.remote, scratch / "got"},
                                                fmt::format("reading {} objects of {}", ranges.size(), text())));
  CAIRN_RETURN_IF_ERROR(call->End());
  for (const Range& range : ranges) {
    std::ifstream file(scratch / ("got/" + range.name), std::ios::binary);
    std::string bytes(range.length, '\0');
    if (!file) {
      read.push_back(Error(StatusCode::kNotFound, "reading {}/{}: it was removed meanwhile", text(), range.name));
    } else if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      read.push_back(Error(StatusCode::kIoError, "reading {}/{}: expected {} bytes, found {}", text(), range.name,
                           range.length, file.gcount()));
    } else {
      read.push_back(std::move(bytes));
    }
  }
  return Status::Ok();
}

Result<std::vector<Result<std::string>>> Bucket::GetWhole(std::span<const Range> ranges) const {
  if (ranges.size() <= kFewReads) return Get(ranges);
  std::vector<Result<std::string>> read;
  while (read.size() < ranges.size()) {
    const std::size_t at_once = std::min(ranges.size() - read.size(), kMostByOneCall);
    CAIRN_RETURN_IF_ERROR(GetByOneCall(ranges.subspan(read.size(), at_once), read));
  }
  return read;
}

Result<std::string> Bucket::GetStarts(std::span<const Range> ranges, std::uint64_t count) const {
  CAIRN_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make());
  CAIRN_ASSIGN_OR_RETURN(const std::string list, scratch.List(ranges));
  CAIRN_ASSIGN_OR_RETURN(
      const auto call,
      Start({"cat", "--checkers=16", fmt::format("--count={}", count), "--files-from-raw", list, address_.remote},
            fmt::format("reading the beginnings of {} objects of {}", ranges.size(), text())));
  return call->ReadAll(ranges.size() * count);
}

Status Bucket::Put(const std::string& name, std::string_view text) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<RcloneCall> call, StartWrite(name, text.size()));
  CAIRN_RETURN_IF_ERROR(call->Write(std::as_bytes(std::span(text))));
  return call->End();
}

Status Bucket::Read(const std::string& json) {
  folders_.clear();
  try {
    for (const nlohmann::json& one : nlohmann::json::parse(json)) {
      const std::string path = one.at("Path").get<std::string>();
      const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(one.at("Size").get<std::int64_t>(), 0));
      const std::size_t slash = path.find('/');
      const auto names = ParseFolder(path.substr(0, slash));
      if (slash == std::string::npos || !names) continue;
      Folder& folder = folders_[path.substr(0, slash)];
      const double time = ParseTime(one.at("ModTime").get<std::string>());
      folder.name = path.substr(0, slash);
      folder.step = names->first;
      folder.attempt = names->second;
      folder.objects[path.substr(slash + 1)] = bytes;
      folder.time = std::max(folder.time, time);
      if (path.substr(slash + 1) == kManifestName) folder.manifest_time = time;
    }
  } catch (const nlohmann::json::exception& error) {
    return Error(StatusCode::kIoError, "listing {}: expected rclone's JSON, found: {}", text(), error.what());
  }
  return Status::Ok();
}

StoredCheckpoint Bucket::Decode(const Folder& folder, const Result<std::string>& manifest) const {
  const std::string path = text() + "/" + folder.name;
  const std::string name = path + "/" + std::string(kManifestName);
  Result<Manifest> decoded = manifest.ok() ? DecodeManifest(*manifest, name) : manifest.status();
  if (decoded.ok() && (decoded->step != folder.step || decoded->attempt != folder.attempt)) {
    decoded = Error(StatusCode::kCorrupt, "{}: expected step {}, attempt {}; found step {}, attempt {}", name,
                    folder.step, folder.attempt, decoded->step, decoded->attempt);
  }
  StoredCheckpoint described;
  if (decoded.ok()) {
    described = DescribeManifest(*std::move(decoded), manifest->size());
  } else {
    described.info.step = folder.step;
    described.info.attempt = folder.attempt;
    described.info.status = decoded.status();
  }
  described.info.path = path;
  return described;
}

Status Bucket::ReadManifests() {
  std::vector<const Folder*> unknown;
  std::vector<Range> ranges;
  for (const auto& [name, folder] : folders_) {
    const std::optional<std::uint64_t> length = folder.Length(std::string(kManifestName));
    if (!length) continue;
    const auto known = known_.find(name);
    if (known != known_.end() && known->second.bytes == *length &&
        known->second.time.value_or(folder.manifest_time) == folder.manifest_time) {
      known->second.time = folder.manifest_time;
      continue;
    }
    known_.erase(name);
    const std::string manifest = name + "/" + std::string(kManifestName);
    if (*length > kMaxManifestBytes) {
      known_[name] = {
          .bytes = *length,
          .time = folder.manifest_time,
          .checkpoint = Decode(folder, Error(StatusCode::kCorrupt, "{}/{}: expected at most {} bytes, found {}", text(),
                                             manifest, kMaxManifestBytes, *length))};
      continue;
    }
    unknown.push_back(&folder);
    ranges.push_back({.name = manifest, .length = *length});
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Result<std::string>> read, GetWhole(ranges));
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (read[i].status().code() == StatusCode::kNotFound) continue;
    CAIRN_RETURN_IF_ERROR(read[i].status());
    const Folder& folder = *unknown[i];
    known_[folder.name] = {.bytes = *folder.Length(std::string(kManifestName)),
                           .time = folder.manifest_time,
                           .checkpoint = Decode(folder, *read[i])};
  }
  return Status::Ok();
}

/// None if its manifest was removed meanwhile.
std::optional<StoredCheckpoint> Bucket::Describe(const Folder& folder) const {
  const auto known = known_.find(folder.name);
  if (known == known_.end()) return std::nullopt;
  StoredCheckpoint found = known->second.checkpoint;
  found.committed_at = folder.manifest_time;
  found.info.suspect = found.info.frozen == Frozen::kLinked && folder.Length(std::string(kSuspectName));
  return found;
}

Result<std::vector<StoredCheckpoint>> Bucket::List(Rank by) {
  CAIRN_ASSIGN_OR_RETURN(
      const std::unique_ptr<RcloneCall> call,
      Start({"lsjson", "-R", "--files-only", "--no-mimetype", address_.remote}, "listing " + text()));
  Result<std::string> listed = call->ReadAll(kMostListed);
  // A bucket must be there; a folder of another remote is made.
  if (listed.status().code() == StatusCode::kNotFound && text().starts_with("rclone:")) listed = std::string("[]");
  CAIRN_RETURN_IF_ERROR(listed.status());
  CAIRN_RETURN_IF_ERROR(Read(*listed));
  superseded_.clear();
  unfinished_.clear();
  std::erase_if(known_, [this](const auto& one) { return !folders_.contains(one.first); });
  CAIRN_RETURN_IF_ERROR(ReadManifests());
  // By step.
  std::map<std::uint64_t, StoredCheckpoint> newest;
  const auto rank = [&](const StoredCheckpoint& one) {
    const bool good = by == Rank::kWhole ? CheckObjects(one).ok() : one.info.status.ok();
    return std::tuple(good, one.info.line, one.committed_at, one.info.attempt);
  };
  for (const auto& [name, folder] : folders_) {
    if (!folder.objects.contains(std::string(kManifestName))) {
      unfinished_.push_back(folder);
      continue;
    }
    std::optional<StoredCheckpoint> one = Describe(folder);
    if (!one) continue;
    const auto [at, fresh] = newest.try_emplace(folder.step, *one);
    if (fresh) continue;
    if (rank(at->second) < rank(*one)) std::swap(at->second, *one);
    superseded_.push_back(*Find(FolderName(one->info)));
  }
  std::vector<StoredCheckpoint> list;
  for (auto& [step, one] : newest) list.push_back(std::move(one));
  std::ranges::sort(list, {}, [](const StoredCheckpoint& one) {
    return std::tuple(!one.info.status.ok(), one.info.line, one.info.step);
  });
  return list;
}

Result<std::vector<std::string>> Bucket::ListBeside() const {
  std::vector<std::string> beside;
  const std::string& remote = address_.remote;
  const std::size_t slash = remote.rfind('/');
  if (slash == std::string::npos) return beside;
  const std::string parent = remote.substr(0, remote[slash - 1] == ':' ? slash + 1 : slash);
  CAIRN_ASSIGN_OR_RETURN(const auto call, Start({"lsf", "--dirs-only", parent}, "listing what is beside " + text()));
  CAIRN_ASSIGN_OR_RETURN(const std::string names, call->ReadAll(kMostListed));
  for (std::size_t at = 0, end = 0; (end = names.find("/\n", at)) != std::string::npos; at = end + 2) {
    beside.push_back(names.substr(at, end - at));
  }
  std::erase(beside, remote.substr(slash + 1));
  return beside;
}

Status Bucket::CheckObjects(const StoredCheckpoint& one) const {
  CAIRN_RETURN_IF_ERROR(one.info.status);
  const Folder* const folder = Find(FolderName(one.info));
  for (const ManifestShard& shard : one.manifest.shards) {
    const std::optional<std::uint64_t> found = folder == nullptr ? std::nullopt : folder->Length(shard.file);
    if (found == shard.length) continue;
    return Error(StatusCode::kCorrupt, "{}/{}: expected {} bytes, found {}", one.info.path, shard.file, shard.length,
                 found ? std::to_string(*found) : "none");
  }
  return Status::Ok();
}

std::optional<std::uint64_t> Bucket::Folder::Length(const std::string& file) const {
  const auto found = objects.find(file);
  return found == objects.end() ? std::nullopt : std::optional(found->second);
}

const Bucket::Folder* Bucket::Find(std::string_view folder) const {
  const auto found = folders_.find(folder);
  return found == folders_.end() ? nullptr : &found->second;
}

Result<std::optional<WriterRecord>> Bucket::ReadWriter() {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<RcloneCall> call,
                         StartRead(std::string(kWriterName), 0, kMaxRecordBytes));
  const Result<std::string> json = call->ReadAll(kMaxRecordBytes);
  // Some versions succeed, and print nothing, if there is no such object.
  if (json.status().code() == StatusCode::kNotFound || (json.ok() && json->empty())) {
    return std::optional<WriterRecord>();
  }
  CAIRN_RETURN_IF_ERROR(json.status());
  CAIRN_ASSIGN_OR_RETURN(WriterRecord record, DecodeWriter(*json, text() + "/" + std::string(kWriterName)));
  return std::optional(std::move(record));
}

Status Bucket::WriteWriter(const WriterRecord& record) { return Put(std::string(kWriterName), EncodeWriter(record)); }

Result<std::string> Bucket::ReadManifest(const CheckpointInfo& info) {
  const std::string folder = FolderName(info);
  const Folder* const found = Find(folder);
  const auto length = found == nullptr ? std::nullopt : found->Length(std::string(kManifestName));
  if (!length) return Error(StatusCode::kNotFound, "{} has no {} any more", text(), folder);
  return Get(std::array{Range{.name = folder + "/" + std::string(kManifestName), .length = *length}}).front();
}

// Some stores have no empty objects.
Status Bucket::MarkSuspect(const CheckpointInfo& info) {
  return Put(FolderName(info) + "/" + std::string(kSuspectName), "\n");
}

Status Bucket::PutManifest(const StoredCheckpoint& one, std::string_view manifest) {
  const std::string folder = FolderName(one.info);
  known_.erase(folder);
  CAIRN_RETURN_IF_ERROR(Put(folder + "/" + std::string(kManifestName), manifest));
  Known known{.bytes = manifest.size(), .time = std::nullopt, .checkpoint = one};
  known.checkpoint.info.path = text() + "/" + folder;
  known.checkpoint.info.pinned = false;
  known_[folder] = std::move(known);
  return Status::Ok();
}

Status Bucket::Remove(const Folder& folder) {
  if (folder.objects.contains(std::string(kManifestName))) {
    const std::string name = folder.name + "/" + std::string(kManifestName);
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<RcloneCall> call,
                           Start({"deletefile", address_.Remote(name)}, fmt::format("removing {}/{}", text(), name)));
    CAIRN_RETURN_IF_ERROR(call->End());
  }
  CAIRN_ASSIGN_OR_RETURN(
      const std::unique_ptr<RcloneCall> call,
      Start({"purge", address_.Remote(folder.name)}, fmt::format("removing {}/{}", text(), folder.name)));
  return call->End();
}

}  // namespace cairn
