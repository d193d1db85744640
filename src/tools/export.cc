#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "restore/open.h"
#include "restore/plan.h"
#include "tools/commands.h"
#include "tools/interruption.h"
#include "tools/output.h"
#include "tools/reading.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kReservedName = "__metadata__";

/// The name in the file; none if it is not below the prefix. "model" is short for "model/" and "model.".
std::optional<std::string> NameInFile(const ExportOptions& options, std::string_view name) {
  std::string_view prefix = options.strip_prefix;
  if (prefix.empty()) return std::string(name);
  const auto separates = [](char letter) { return letter == '/' || letter == '.'; };
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  if (!separates(prefix.back())) {
    if (name.empty() || !separates(name.front())) return std::nullopt;
    name.remove_prefix(1);
  }
  return name.empty() ? std::nullopt : std::optional(std::string(name));
}

/// Where the names of tensors begin: "model/, optimizer/".
std::string Beginnings(const std::set<std::string>& firsts) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> named(firsts.begin(), firsts.end());
  if (named.size() > kNamed) {
    named.resize(kNamed);
    named.emplace_back("...");
  }
  return fmt::format("{}", fmt::join(named, ", "));
}

// Finds the wanted tensors, sorted by name and then by file, a few files at a time.
Result<std::vector<TensorPlace>> FindWanted(const Reading& reading, TensorSource& source,
                                            const ExportOptions& options) {
  std::vector<TensorPlace> wanted;
  std::vector<bool> used(options.names.size());
  std::set<std::string> beginnings;
  bool below = false;
  for (std::uint32_t first = 0; first < source.files(); first += kHeaderReads) {
    CAIRN_RETURN_IF_ERROR(source.SelectRange(reading.parts(), first, first + kHeaderReads));
    for (const StoredTensor& tensor : source.tensors()) {
      beginnings.insert(tensor.info.name.substr(0, tensor.info.name.find_first_of("/.") + 1));
      if (!NameInFile(options, tensor.info.name)) continue;
      below = true;
      bool selected = options.names.empty();
      for (std::size_t i = 0; i < options.names.size(); ++i) {
        if (!MatchesPattern(options.names[i], tensor.info.name)) continue;
        selected = used[i] = true;
      }
      if (!selected) continue;
      if (tensor.info.part) {
        return Error(StatusCode::kUnsupported, "tensor \"{}\" is a part: {}; a plain file holds whole tensors",
                     tensor.info.name, DescribeType(tensor.info));
      }
      wanted.push_back({tensor.info.name, tensor.shard});
    }
  }
  if (!below && !options.strip_prefix.empty()) {
    return Error(StatusCode::kNotFound, "--strip-prefix: no tensor of {} is below \"{}\"; names begin with {}",
                 options.path, options.strip_prefix, Beginnings(beginnings));
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) return Error(StatusCode::kNotFound, "\"{}\" matches no tensor of {}", options.names[i], options.path);
  }
  std::sort(wanted.begin(), wanted.end());
  return wanted;
}

/// The names in the file, which may differ by less than those of the checkpoint: "model/w" and "model.w" below "model".
Status CheckNamesInFile(const std::vector<TensorPlace>& wanted, const ExportOptions& options) {
  std::map<std::string, std::string_view> names;
  for (const TensorPlace& place : wanted) {
    const std::string name = NameInFile(options, place.name).value_or("");
    if (name == kReservedName) {
      return Error(
          StatusCode::kUnsupported,
          "tensor \"{}\" would be \"{}\" in the file, which safetensors reserves: leave it out with --names, or "
          "keep the prefix",
          place.name, name);
    }
    const auto [other, is_new] = names.emplace(name, place.name);
    if (is_new || other->second == place.name) continue;
    return Error(
        StatusCode::kUnsupported,
        "tensors \"{}\" and \"{}\" would both be \"{}\" in the file: choose one with --names, or keep the prefix",
        other->second, place.name, name);
  }
  return Status::Ok();
}

Status DifferentTensors(const StoredTensor& a, const StoredTensor& b, const std::string& how) {
  return Error(StatusCode::kUnsupported,
               "tensor \"{}\" differs between {} and {} ({}); a plain file can hold only one: export it from one of "
               "these files, or leave it out",
               a.info.name, a.info.file, b.info.file, how);
}

// Keeps the first tensor of each name, after checking that the others are equal: several ranks may have written a
// replicated tensor, but the ranks' own states may share a name too.
Status KeepOneOfEach(const Reading& reading, TensorSource& source, std::vector<const StoredTensor*>& tensors) {
  std::vector<const StoredTensor*> firsts;
  std::vector<const StoredTensor*> of_a;
  std::vector<const StoredTensor*> of_b;
  for (const StoredTensor* tensor : tensors) {
    if (firsts.empty() || firsts.back()->info.name != tensor->info.name) {
      firsts.push_back(tensor);
      continue;
    }
    const TensorInfo& a = firsts.back()->info;
    const TensorInfo& b = tensor->info;
    if (a.dtype != b.dtype || a.shape != b.shape) {
      return DifferentTensors(*firsts.back(), *tensor, DescribeType(a) + " against " + DescribeType(b));
    }
    of_a.push_back(firsts.back());
    of_b.push_back(tensor);
  }
  std::optional<std::size_t> differs;
  const auto compare = [&](std::size_t pair, const std::byte* a, const std::byte* b, std::uint64_t bytes) {
    if (!differs && std::memcmp(a, b, bytes) != 0) differs = pair;
  };
  CAIRN_RETURN_IF_ERROR(ReadPairs(reading.parts(), source, of_a, source, of_b, compare));
  if (differs) return DifferentTensors(*of_a[*differs], *of_b[*differs], "their bytes");
  tensors = std::move(firsts);
  return Status::Ok();
}

/// In the order of a safetensors file. Tied names too: who loads the file wants each of them.
Result<std::vector<const StoredTensor*>> Select(const Reading& reading, TensorSource& source,
                                                const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TensorPlace> places, FindWanted(reading, source, options));
  CAIRN_RETURN_IF_ERROR(CheckNamesInFile(places, options));
  CAIRN_ASSIGN_OR_RETURN(std::vector<const StoredTensor*> wanted, source.Find(reading.parts(), places));
  CAIRN_RETURN_IF_ERROR(KeepOneOfEach(reading, source, wanted));
  std::sort(wanted.begin(), wanted.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return a->info.dtype != b->info.dtype ? a->info.dtype > b->info.dtype : a->info.name < b->info.name;
  });
  return wanted;
}

// The length prefix and the JSON text, padded like the safetensors library does.
Result<std::string> PlainHeader(const std::vector<const StoredTensor*>& tensors, const ExportOptions& options) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t at = 0;
  for (const StoredTensor* tensor : tensors) {
    const TensorInfo& info = tensor->info;
    header[NameInFile(options, info.name).value_or("")] = {
        {"dtype", DTypeName(info.dtype)}, {"shape", info.shape}, {"data_offsets", {at, at + info.bytes}}};
    at += info.bytes;
  }
  std::string text = header.dump();
  text.resize(AlignUp(text.size(), 8), ' ');
  if (text.size() > kMaxHeaderBytes) {
    return Error(StatusCode::kInvalidArgument, "the header would have {} bytes; safetensors allows {}", text.size(),
                 kMaxHeaderBytes);
  }
  std::string word(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) word[i] = static_cast<char>(text.size() >> (8 * i));
  return word + text;
}

Status WriteAll(IoQueue& queue, int fd, std::uint64_t offset, Bytes bytes, const std::string& path) {
  for (std::uint64_t done = 0; done < bytes.size();) {
    CAIRN_ASSIGN_OR_RETURN(const std::int64_t n,
                           RunBlocking(queue, {.op = IoOp::kWrite,
                                               .fd = fd,
                                               // Requests have no const pointer.
                                               .buffer = const_cast<std::byte*>(bytes.data() + done),
                                               .length = bytes.size() - done,
                                               .offset = offset + done,
                                               .name = path}));
    if (n <= 0)
      return Error(StatusCode::kIoError, "writing {} bytes at {} of {}: none written", bytes.size(), offset, path);
    done += static_cast<std::uint64_t>(n);
  }
  return Status::Ok();
}

Status WriteTensors(const Reading& reading, TensorSource& source, const std::vector<const StoredTensor*>& tensors,
                    const ExportOptions& options, IoQueue& queue, int fd, const std::string& path) {
  const std::function<bool()> interrupted = CatchInterruptions();
  CAIRN_ASSIGN_OR_RETURN(const std::string header, PlainHeader(tensors, options));
  CAIRN_RETURN_IF_ERROR(WriteAll(queue, fd, 0, std::as_bytes(std::span(header)), path));
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (const StoredTensor* tensor : tensors) {
    sizes.push_back(tensor->info.bytes);
    total += tensor->info.bytes;
  }
  std::vector<std::byte> memory(kWindowBytes);
  ProgressBar bar("exporting");
  std::uint64_t done = 0;
  for (const std::vector<Slice>& window : CutWindows(sizes, kWindowBytes)) {
    if (interrupted()) return Error(StatusCode::kCancelled, "interrupted: nothing was written");
    CAIRN_RETURN_IF_ERROR(ReadWindow(reading.parts(), source, tensors, window, memory.data()));
    const std::uint64_t bytes = window.back().at + (window.back().end - window.back().begin);
    CAIRN_RETURN_IF_ERROR(WriteAll(queue, fd, header.size() + done, Bytes(memory.data(), bytes), path));
    done += bytes;
    bar.Update(done, total);
  }
  return Status::Ok();
}

Status CheckAbsent(const std::string& out) {
  std::error_code unknown;  // Then writing says what is wrong.
  // A link is there even if what it names is not.
  if (!std::filesystem::exists(std::filesystem::symlink_status(out, unknown))) return Status::Ok();
  return Error(StatusCode::kAlreadyExists, "{} exists; --force replaces it", out);
}

Status Rename(IoQueue& queue, const std::string& temporary, const ExportOptions& options) {
  IoRequest request{.op = IoOp::kRename, .path = temporary, .path2 = options.out};
  if (!options.force) {
    request.rename = RenameMode::kNoReplace;
    if (RunBlocking(queue, request).ok()) return Status::Ok();
    // Or the filesystem refuses the flag, as NFS does.
    CAIRN_RETURN_IF_ERROR(CheckAbsent(options.out));
    request.rename = RenameMode::kPlain;
  }
  return RunBlocking(queue, request).status();
}

// Removes what exports to this file have left that were killed: nobody holds the lock of their drafts.
void RemoveAbandoned(const std::filesystem::path& folder, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + MakeUuid().size()) continue;
    const UniqueFd draft(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (draft.valid() && ::flock(draft.get(), LOCK_EX | LOCK_NB) == 0) (void)::unlink(at->path().c_str());
  }
}

// Writes to a temporary name first, so that `out` is complete or absent, even after a crash.
Status WriteFile(const Reading& reading, TensorSource& source, const std::vector<const StoredTensor*>& tensors,
                 const ExportOptions& options) {
  const std::string& out = options.out;
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, reading.parts().queue());
  const std::filesystem::path target(out);
  const std::string folder = target.has_parent_path() ? target.parent_path().string() : ".";
  const std::string prefix = fmt::format(".{}.", target.filename().string());
  RemoveAbandoned(folder, prefix);
  const std::string temporary = fmt::format("{}/{}{}", folder, prefix, MakeUuid());
  CAIRN_ASSIGN_OR_RETURN(
      const std::int64_t fd,
      RunBlocking(*queue, {.op = IoOp::kOpen, .path = temporary, .flags = O_WRONLY | O_CREAT | O_EXCL, .mode = 0666}));
  const auto write = [&]() -> Status {
    const UniqueFd file(static_cast<int>(fd));
    (void)::flock(file.get(), LOCK_EX | LOCK_NB);  // Until this process ends, whatever ends it.
    CAIRN_RETURN_IF_ERROR(WriteTensors(reading, source, tensors, options, *queue, file.get(), temporary));
    CAIRN_RETURN_IF_ERROR(RunBlocking(*queue, {.op = IoOp::kFsync, .fd = file.get(), .name = temporary}).status());
    return Rename(*queue, temporary, options);
  };
  if (Status status = write(); !status.ok()) {
    // Report the first error.
    (void)RunBlocking(*queue, {.op = IoOp::kUnlink, .path = temporary});
    return status;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t directory,
                         RunBlocking(*queue, {.op = IoOp::kOpen, .path = folder, .flags = O_RDONLY | O_DIRECTORY}));
  const UniqueFd opened(static_cast<int>(directory));
  return RunBlocking(*queue, {.op = IoOp::kFsync, .fd = opened.get(), .name = folder}).status();
}

}  // namespace

int Export(const ExportOptions& options) {
  if (!options.force) {
    if (const Status absent = CheckAbsent(options.out); !absent.ok()) return ReportError(absent);
  }
  const Result<std::unique_ptr<Reading>> reading = Reading::Make();
  if (!reading.ok()) return ReportError(reading.status());
  Result<TensorSource> source = OpenSource(**reading, options.path, options.step);
  if (!source.ok()) return ReportError(source.status());
  const Result<std::vector<const StoredTensor*>> tensors = Select(**reading, *source, options);
  if (!tensors.ok()) return ReportError(tensors.status());
  const Status written = WriteFile(**reading, *source, *tensors, options);
  if (!written.ok()) return ReportError(written);

  std::uint64_t bytes = 0;
  for (const StoredTensor* tensor : *tensors) bytes += tensor->info.bytes;
  if (options.json) {
    PrintJson({{"out", options.out}, {"tensors", tensors->size()}, {"bytes", bytes}});
  } else {
    fmt::print("{}: {}, {}\n", Printable(options.out), Count(tensors->size(), "tensor"), HumanBytes(bytes));
  }
  return kGood;
}

}  // namespace cairn::tools
