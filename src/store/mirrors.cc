#include "store/mirrors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/writer.h"

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".json";
constexpr std::uint64_t kMaxBytes = 64U << 20;

nlohmann::json ToJson(const MirroredCheckpoint& one) {
  return {{"step", one.step}, {"line", one.line}, {"attempt", one.attempt}};
}

/// Throws nlohmann's exceptions.
MirroredCheckpoint ToCheckpoint(const nlohmann::json& object) {
  return {.step = object.at("step").get<std::uint64_t>(),
          .line = object.at("line").get<std::uint64_t>(),
          .attempt = object.at("attempt").get<std::string>()};
}

std::string Encode(const MirrorRecord& record) {
  nlohmann::json object = {{"version", 1},        {"target", record.target},
                           {"host", record.host}, {"process", record.process},
                           {"time", record.time}, {"checkpoints", nlohmann::json::array()}};
  for (const MirroredCheckpoint& one : record.checkpoints) object["checkpoints"].push_back(ToJson(one));
  if (record.copying) object["copying"] = ToJson(*record.copying);
  if (!record.error.empty()) object["error"] = record.error;
  return object.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<MirrorRecord> Decode(const std::string& text) {
  try {
    const nlohmann::json object = nlohmann::json::parse(text);
    if (object.at("version") != 1) return std::nullopt;
    MirrorRecord record{.target = object.at("target").get<std::string>(),
                        .host = object.at("host").get<std::string>(),
                        .process = object.at("process").get<std::uint64_t>(),
                        .error = object.value("error", std::string()),
                        .time = object.at("time").get<std::int64_t>()};
    for (const nlohmann::json& one : object.at("checkpoints")) record.checkpoints.push_back(ToCheckpoint(one));
    if (object.contains("copying")) record.copying = ToCheckpoint(object["copying"]);
    return record;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::int64_t Now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

IoTask<Status> Replace(const PathAt& draft, const std::string& text, const PathAt& path) {
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(draft, 0, kMirrorFileMode, fd));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(fd, draft.text(), 0, std::as_bytes(std::span(text)), /*alignment=*/1));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Close(fd, draft.text()));
  co_return co_await io::Rename(draft, path, RenameMode::kPlain);
}

}  // namespace

std::string MirrorId(std::string_view target) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : target) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string MirrorRecord::Describe() const { return WriterRecord{.host = host, .process = process}.Describe(); }

IoTask<Status> WriteMirrorRecord(PathAt root, std::string id, MirrorRecord record) {
  record.host = HostName();
  record.process = static_cast<std::uint64_t>(::getpid());
  record.time = Now();
  const std::string text = Encode(record);
  const PathAt path = JoinPath(JoinPath(root, kMirrorsName), id + std::string(kSuffix));
  const PathAt draft = JoinPath(JoinPath(root, kMirrorsName), id + ".new");
  static_cast<void>(co_await io::Unlink(draft));  // Of one that was killed.
  Status replaced = co_await Replace(draft, text, path);
  if (!replaced.ok()) static_cast<void>(co_await io::Unlink(draft));
  co_return replaced;
}

std::optional<MirrorRecord> ReadMirrorRecord(const PathAt& root, const std::string& id) {
  const PathAt path = JoinPath(JoinPath(root, kMirrorsName), id + std::string(kSuffix));
  const UniqueFd fd(::openat(path.directory(), path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat found {};
  if (!fd.valid() || ::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) return std::nullopt;
  std::string text(std::min<std::uint64_t>(static_cast<std::uint64_t>(found.st_size), kMaxBytes), '\0');
  if (::pread(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return std::nullopt;
  return Decode(text);
}

std::vector<MirrorRecord> ListMirrors(const PathAt& root) {
  std::vector<MirrorRecord> records;
  const Result<std::vector<FolderEntry>> entries = ListFolder(JoinPath(root, kMirrorsName));
  if (!entries.ok()) return records;
  for (const FolderEntry& entry : *entries) {
    if (entry.directory || !entry.name.ends_with(kSuffix)) continue;
    auto record = ReadMirrorRecord(root, entry.name.substr(0, entry.name.size() - kSuffix.size()));
    if (record) records.push_back(*std::move(record));
  }
  std::ranges::sort(records, {}, &MirrorRecord::target);
  return records;
}

}  // namespace cairn
