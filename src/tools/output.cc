#include "tools/output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/json_text.h"
#include "base/print_error.h"
#include "format/manifest.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

struct PrintValue {
  std::string operator()(std::nullptr_t) const { return "null"; }
  std::string operator()(const Json& value) const {
    if (!IsJson(value.text)) return JsonLine(value.text);
    return IsShown(value.text) ? value.text : JsonLine(json::parse(value.text));
  }
  std::string operator()(const auto& value) const { return JsonLine(value); }
};

/// In the calendar of `convert`: localtime_r or gmtime_r. None also for a time whose year no calendar has.
std::optional<std::tm> CommitTimeBy(std::tm* (&convert)(const std::time_t*, std::tm*), const CheckpointInfo& info,
                                    std::optional<double> at) {
  struct stat facts {};
  if (!at && ::lstat((info.path + "/" + std::string(kManifestName)).c_str(), &facts) != 0) return std::nullopt;
  const std::time_t seconds = at ? static_cast<std::time_t>(*at) : facts.st_mtime;
  std::tm time{};
  return convert(&seconds, &time) == nullptr ? std::nullopt : std::optional(time);
}

}  // namespace

int ReportError(const Status& status) {
  PrintError("cairn: {}\n", Printable(status.ToString()));
  return status.code() == StatusCode::kCorrupt ? kDamagedOrDifferent : kFailed;
}

std::string Count(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string DescribeType(const TensorInfo& tensor) {
  std::string text = fmt::format("{} [{}]", DTypeName(tensor.dtype), fmt::join(tensor.shape, ", "));
  if (tensor.part) {
    text += fmt::format(" at [{}] of {} [{}]", fmt::join(tensor.part->offset, ", "),
                        Printable(tensor.part->logical_name), fmt::join(tensor.part->global_shape, ", "));
  }
  return text;
}

std::string CommitTime(const CheckpointInfo& info, std::optional<double> at) {
  const std::optional<std::tm> time = CommitTimeBy(::localtime_r, info, at);
  return time ? fmt::format("{:%F %T}", *time) : "-";
}

std::string MarkText(NonFinite nonfinite) {
  switch (nonfinite) {
    case NonFinite::kNone:
      return "";
    case NonFinite::kInfinity:
      return "has infinities";
    case NonFinite::kNaN:
      return "has NaNs";
  }
  return "";
}

bool HaveSeveralLines(const std::vector<CheckpointInfo>& infos) {
  std::set<std::uint64_t> lines;
  for (const CheckpointInfo& one : infos) {
    if (one.status.ok()) lines.insert(one.line);
  }
  return lines.size() > 1;
}

std::string ShortId(const std::string& id) { return id.substr(0, 8) + "..."; }

std::string LineText(const CheckpointInfo& info) {
  const std::string line = fmt::format("line {}", info.line);
  return info.copy ? fmt::format("{} of root {}, a copy", line, ShortId(info.root)) : line;
}

std::string Coloured(std::string text, Colour colour) {
  static const bool colours = [] {
    const char* const terminal = std::getenv("TERM");
    const char* const refused = std::getenv("NO_COLOR");
    return ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb" &&
           (refused == nullptr || *refused == '\0');
  }();
  constexpr std::array<int, 3> kCodes{31, 32, 33};
  return colours ? fmt::format("\x1b[{}m{}\x1b[0m", kCodes.at(static_cast<std::size_t>(colour)), text) : text;
}

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  PrintTable(rows, widths);
}

void PrintTable(const std::vector<std::vector<std::string>>& rows, std::vector<std::size_t>& widths) {
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

void PrintJson(const json& value) {
  // Paths may not be UTF-8.
  fmt::print("{}\n", value.dump(2, ' ', false, json::error_handler_t::replace));
}

std::string JsonLine(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return IsShown(text) ? text : value.dump(-1, ' ', true, json::error_handler_t::replace);
}

json ToJson(const CheckpointInfo& info, std::optional<double> at) {
  json out{{"step", info.step}, {"path", info.path}, {"ok", info.status.ok()}, {"time", nullptr}};
  if (const auto time = CommitTimeBy(::gmtime_r, info, at)) out["time"] = fmt::format("{:%FT%TZ}", *time);
  if (!info.status.ok()) {
    out["error"] = info.status.ToString();
    return out;
  }
  out["line"] = info.line;
  out["root"] = info.root.empty() ? json(nullptr) : json(info.root);
  out["copy"] = info.copy;
  out["attempt"] = info.attempt;
  out["parent"] = info.parent ? json(*info.parent) : json(nullptr);
  out["world"] = info.world;
  out["bytes"] = info.bytes;
  out["pinned"] = info.pinned;
  const bool finite = info.nonfinite == NonFinite::kNone;
  out["nonfinite"] = finite ? json(nullptr) : json(NonFiniteName(info.nonfinite));
  out["suspect"] = info.suspect;
  return out;
}

json ToJson(const TensorInfo& tensor) {
  json out{{"name", tensor.name},
           {"dtype", DTypeName(tensor.dtype)},
           {"shape", tensor.shape},
           {"bytes", tensor.bytes},
           {"file", tensor.file}};
  if (!tensor.alias_of.empty()) out["alias_of"] = tensor.alias_of;
  if (tensor.part) {
    out["part"] = {
        {"of", tensor.part->logical_name}, {"shape", tensor.part->global_shape}, {"offset", tensor.part->offset}};
  }
  return out;
}

std::string ValueText(const Value& value) { return std::visit(PrintValue(), value); }

std::string ValuesText(const Values& values) {
  std::string text = "{";
  for (const auto& [name, value] : values) {
    text += fmt::format("{}{}: {}", text.size() == 1 ? "" : ", ", JsonLine(name), ValueText(value));
  }
  return text + "}";
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) PrintError("\r\x1b[K");
}

void ProgressBar::Update(std::uint64_t done, std::uint64_t total) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ || (done != total && now - shown_ < std::chrono::milliseconds(100))) return;
  shown_ = now;
  drawn_ = true;
  constexpr std::size_t kWidth = 30;
  const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(kWidth));
  const double seconds = std::max(std::chrono::duration<double>(now - start_).count(), 1e-3);
  PrintError("\r\x1b[K{} [{:<{}}] {:3.0f} %  {}/s", label_, std::string(filled, '#'), kWidth, 100 * share,
             HumanBytes(static_cast<std::uint64_t>(static_cast<double>(done) / seconds)));
}

}  // namespace cairn::tools
