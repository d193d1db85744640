#include "store/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "format/fields.h"
#include "store/names.h"

namespace cairn {

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

namespace {

// A record that is overwritten in place must not be torn.
constexpr std::size_t kSector = 512;
constexpr std::size_t kIdDigits = 8;

/// The one that began the line.
const Opening* BegunBy(const Openings& openings, std::uint64_t line) {
  const auto later = std::ranges::upper_bound(openings, line, {}, &Opening::line);
  return later == openings.begin() ? nullptr : &*std::prev(later);
}

nlohmann::json ToJson(const WriterRecord& record, std::size_t openings) {
  nlohmann::json object = {{"epoch", record.epoch},     {"id", record.id},     {"host", record.host},
                           {"process", record.process}, {"root", record.root}, {"line", record.line}};
  if (record.alone) object["alone"] = true;
  if (openings == 0) return object;
  nlohmann::json& list = object["openings"];
  for (auto one = record.openings.end() - static_cast<std::ptrdiff_t>(openings); one != record.openings.end(); ++one) {
    list.push_back({one->line, one->id});
  }
  return object;
}

/// Empty if it is invalid.
Openings DecodeOpenings(const nlohmann::json& list) {
  Openings openings;
  for (const nlohmann::json& one : list) {
    const bool valid = one.is_array() && one.size() == 2 && one[0].is_number_unsigned() && one[1].is_string();
    if (!valid || (!openings.empty() && one[0] < openings.back().line)) return {};
    openings.push_back({one[0].get<std::uint64_t>(), one[1].get<std::string>()});
  }
  return openings;
}

}  // namespace

bool IsLineOf(const Openings& root, const Openings& kept, std::uint64_t line) {
  if (kept.empty()) return false;
  // Both are the last part of a history. If they have an opening in common, so they have all that was before.
  const std::uint64_t since = std::max(line, kept.front().line);
  const Opening* const of_root = BegunBy(root, since);
  return of_root != nullptr && *of_root == *BegunBy(kept, since);
}

WriterRecord WriterRecord::Next(const std::optional<WriterRecord>& last) {
  WriterRecord next{.epoch = last ? last->epoch + 1 : 1,
                    .id = MakeUuid(),
                    .host = HostName(),
                    .process = static_cast<std::uint64_t>(::getpid()),
                    .root = last ? last->root : std::string(),
                    .line = last ? last->line + (last->line == std::numeric_limits<std::uint64_t>::max() ? 0 : 1) : 0,
                    .openings = last ? last->openings : Openings()};
  Opening own = next.OwnOpening();
  if (last && last->alone && !next.openings.empty()) {
    own.line = next.openings.back().line;  // What was begun since then is not that of another history either.
    next.openings.pop_back();
  }
  next.openings.push_back(std::move(own));
  next.alone = true;
  return next;
}

Opening WriterRecord::OwnOpening() const { return {line, id.substr(0, kIdDigits)}; }

bool WriterRecord::OfThisProcess() const {
  return process == static_cast<std::uint64_t>(::getpid()) && host == HostName();
}

std::string WriterRecord::Describe() const {
  if (OfThisProcess()) return fmt::format("this process ({})", process);
  return host == HostName() ? fmt::format("process {}", process)
                            : fmt::format("process {} on {}", process, Quoted(host));
}

IoTask<Status> CheckWriter(const PathAt& root, const WriterCheck& check) {
  if (!check) co_return Status::Ok();
  co_return co_await io::OnThread(root.text(), check);
}

std::string EncodeWriter(const WriterRecord& record) {
  for (std::size_t openings = record.openings.size();; --openings) {
    std::string text = ToJson(record, openings).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (openings == 0 || text.size() <= kSector) return text;
  }
}

Result<WriterRecord> DecodeWriter(std::string_view text, const std::string& file) {
  using Object = nlohmann::json;
  const Object object = Object::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto has = [&object](const char* name, auto is) { return object.contains(name) && (object[name].*is)(); };
  if (!object.is_object() || !has("epoch", &Object::is_number_unsigned) || !has("id", &Object::is_string) ||
      !has("host", &Object::is_string) || !has("process", &Object::is_number_unsigned)) {
    return Error(StatusCode::kCorrupt, "{}: expected a writer's epoch, id, host and process, found {}", file,
                 Quoted(text));
  }
  WriterRecord record{.epoch = object["epoch"].get<std::uint64_t>(),
                      .id = object["id"].get<std::string>(),
                      .host = object["host"].get<std::string>(),
                      .process = object["process"].get<std::uint64_t>()};
  if (has("root", &Object::is_string) && IsAttemptId(object["root"].get<std::string>())) {
    record.root = object["root"].get<std::string>();
  }
  if (has("line", &Object::is_number_unsigned)) record.line = object["line"].get<std::uint64_t>();
  if (has("openings", &Object::is_array)) record.openings = DecodeOpenings(object["openings"]);
  if (has("alone", &Object::is_boolean)) record.alone = object["alone"].get<bool>();
  return record;
}

Result<std::optional<WriterRecord>> ReadWriter(const PathAt& root) {
  const PathAt path = JoinPath(root, kWriterName);
  const UniqueFd fd(::openat(path.directory(), path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::optional<WriterRecord>();
    return ErrnoStatus(errno, "opening " + path.text());
  }
  std::array<char, kMaxRecordBytes> buffer{};
  const ssize_t got = ::pread(fd.get(), buffer.data(), buffer.size(), 0);
  if (got < 0) return ErrnoStatus(errno, "reading " + path.text());
  Result<WriterRecord> record = DecodeWriter({buffer.data(), static_cast<std::size_t>(got)}, path.text());
  if (!record.ok()) return record.status();
  return std::optional(*std::move(record));
}

}  // namespace cairn
