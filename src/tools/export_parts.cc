#include "tools/export_parts.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "restore/select.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kReservedName = "__metadata__";
constexpr std::uint64_t kLeastWindow = 8U << 20;

Status DifferentTensors(const StoredTensor& a, const StoredTensor& b, const std::string& how) {
  return Error(StatusCode::kUnsupported,
               "tensor \"{}\" differs between {} and {} ({}); a plain file can hold only one: export it from one of "
               "these files, or leave it out",
               a.info.name, a.info.file, b.info.file, how);
}

void RemoveAbandoned(const std::filesystem::path& folder, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + MakeUuid().size()) continue;
    const UniqueFd draft(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!draft.valid() || ::flock(draft.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(at->path(), ignored);
  }
}

std::optional<std::string> NameBelow(std::string_view prefix, std::string_view name) {
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

/// The length prefix and the JSON text, padded like the safetensors library does. The tensors' bytes follow in order.
Result<std::string> PlainHeader(const std::vector<FileTensor>& tensors,
                                const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kReservedName] = metadata;
  std::uint64_t at = 0;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", DTypeName(tensor.whole.dtype)},
                           {"shape", tensor.whole.shape},
                           {"data_offsets", {at, at + tensor.bytes}}};
    at += tensor.bytes;
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

/// Many shards hold a little each of one stretch of a tensor, and are read in whole checksum blocks: so windows grow
/// with their number, as long as two are no more than a shard.
std::uint64_t WindowBytes(const TensorSource& source) {
  std::uint64_t largest = 0;
  for (std::uint32_t file = 0; file < source.files(); ++file) largest = std::max(largest, source.file_bytes(file));
  return std::clamp(kLeastWindow * source.files(), kLeastWindow,
                    std::max(kLeastWindow, AlignDown(largest / 2, kBlock)));
}

}  // namespace

std::optional<std::string> NameInFile(std::string_view prefix, std::string_view name) {
  std::optional<std::string> in_file = NameBelow(prefix, name);
  for (std::size_t at = 0; in_file && (at = in_file->find(kTextKey, at)) != std::string::npos;) {
    if (at == 0 || (*in_file)[at - 1] == '/') {
      in_file->erase(at, kTextKey.size());
    } else {
      ++at;
    }
  }
  return in_file;
}

NameFilter::NameFilter(std::string prefix, const std::vector<std::string>& patterns)
    : prefix_(std::move(prefix)), patterns_(patterns), used_(patterns.size()) {}

std::optional<std::string> NameFilter::Take(std::string_view name) {
  const std::size_t first = name.find_first_of("/.");
  firsts_.emplace(name.substr(0, first == name.npos ? first : first + 1));
  std::optional<std::string> in_file = NameInFile(prefix_, name);
  if (!in_file) return std::nullopt;
  below_ = true;
  bool taken = patterns_.empty();
  for (std::size_t i = 0; i < patterns_.size(); ++i) {
    if (MatchesPattern(patterns_[i], name)) taken = used_[i] = true;
  }
  return taken ? in_file : std::nullopt;
}

Status NameFilter::CheckUsed(const std::string& path) const {
  constexpr std::size_t kNamed = 8;
  if (!below_ && !prefix_.empty()) {
    std::vector<std::string> named(firsts_.begin(), firsts_.end());
    if (named.size() > kNamed) {
      named.resize(kNamed);
      named.emplace_back("...");
    }
    return Error(StatusCode::kNotFound, "--strip-prefix: no tensor of {} is below \"{}\"; names begin with {}", path,
                 prefix_, fmt::join(named, ", "));
  }
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i]) return Error(StatusCode::kNotFound, "\"{}\" matches no tensor of {}", patterns_[i], path);
  }
  return Status::Ok();
}

Status CheckNamesInFile(const std::vector<NamedInFile>& tensors) {
  std::map<std::string_view, std::string_view> names;
  for (const NamedInFile& tensor : tensors) {
    if (tensor.in_file == kReservedName) {
      return Error(
          StatusCode::kUnsupported,
          "tensor \"{}\" would be \"{}\" in the file, which safetensors reserves: leave it out with --names, or "
          "keep the prefix",
          tensor.name, tensor.in_file);
    }
    const auto [other, is_new] = names.emplace(tensor.in_file, tensor.name);
    if (is_new || other->second == tensor.name) continue;
    return Error(
        StatusCode::kUnsupported,
        "tensors \"{}\" and \"{}\" would both be \"{}\" in the file: choose one with --names, or keep the prefix",
        other->second, tensor.name, tensor.in_file);
  }
  return Status::Ok();
}

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

bool ComesFirst(const FileTensor& a, const FileTensor& b) {
  return a.whole.dtype != b.whole.dtype ? a.whole.dtype > b.whole.dtype : a.name < b.name;
}

PlainFiles::PlainFiles(const Reading& reading, TensorSource& source, IoQueue& queue, std::uint64_t total)
    : reading_(reading),
      source_(source),
      queue_(queue),
      window_(WindowBytes(source)),
      total_(total),
      memory_{std::make_unique_for_overwrite<std::byte[]>(window_),
              std::make_unique_for_overwrite<std::byte[]>(window_)} {}

// One window is written while the next one is read.
Status PlainFiles::Write(int fd, const std::string& path, const std::vector<FileTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  CAIRN_ASSIGN_OR_RETURN(const std::string header, PlainHeader(tensors, metadata));
  CAIRN_RETURN_IF_ERROR(WriteAll(queue_, fd, 0, std::as_bytes(std::span(header)), path));
  std::vector<WholeTensor> wholes;
  for (const FileTensor& tensor : tensors) wholes.push_back(tensor.whole);
  CAIRN_ASSIGN_OR_RETURN(WholeTensors whole, WholeTensors::Plan(source_, wholes, window_));
  const auto write = [this, fd, &path](std::uint64_t at, Bytes bytes) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, reading_.parts().queue());
    CAIRN_RETURN_IF_ERROR(WriteAll(*queue, fd, at, bytes, path));
    // Only begins to write it to the disk, or does nothing: the fsync at the end has less to do, and tells of errors.
    (void)::sync_file_range(fd, static_cast<off_t>(at), static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
    return Status::Ok();
  };
  std::uint64_t offset = header.size();
  std::future<Status> writing;  // Its end is waited for, also after a failure.
  for (std::size_t window = 0; window < whole.windows(); ++window) {
    if (interrupted_()) return Error(StatusCode::kCancelled, "interrupted: nothing was written");
    std::byte* const memory = memory_[window % 2].get();
    const std::uint64_t bytes = whole.bytes(window);
    CAIRN_RETURN_IF_ERROR(whole.Read(reading_.parts(), window, memory));
    if (writing.valid()) CAIRN_RETURN_IF_ERROR(writing.get());
    writing = std::async(std::launch::async, write, offset, Bytes(memory, bytes));
    offset += bytes;
    bar_.Update(done_ += bytes, total_);
  }
  if (writing.valid()) CAIRN_RETURN_IF_ERROR(writing.get());
  return RunBlocking(queue_, {.op = IoOp::kFsync, .fd = fd, .name = path}).status();
}

Result<UniqueFd> CreateFile(IoQueue& queue, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(
      const std::int64_t fd,
      RunBlocking(queue, {.op = IoOp::kOpen, .path = path, .flags = O_WRONLY | O_CREAT | O_EXCL, .mode = 0666}));
  return UniqueFd(static_cast<int>(fd));
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

Status CheckAbsent(const std::string& target, std::string_view way_out) {
  std::error_code unknown;  // Then writing says what is wrong.
  // A link is there even if what it names is not.
  if (!std::filesystem::exists(std::filesystem::symlink_status(target, unknown))) return Status::Ok();
  return Error(StatusCode::kAlreadyExists, "{} exists; {}", target, way_out);
}

Draft::Draft(const std::string& target) : target_(std::filesystem::path(target + "/").parent_path().string()) {
  const std::filesystem::path path(target_);
  folder_ = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string prefix = fmt::format(".{}.", path.filename().string());
  RemoveAbandoned(folder_, prefix);
  path_ = fmt::format("{}/{}{}", folder_, prefix, MakeUuid());
}

void Draft::Hold(int fd) { (void)::flock(fd, LOCK_EX | LOCK_NB); }

Status Draft::Publish(IoQueue& queue, bool replace, std::string_view way_out) {
  IoRequest request{.op = IoOp::kRename, .path = path_, .path2 = target_};
  if (!replace) {
    request.rename = RenameMode::kNoReplace;
    if (RunBlocking(queue, request).ok()) return SyncPath(queue, folder_, O_RDONLY | O_DIRECTORY);
    // Or the filesystem refuses the flag, as NFS does.
    CAIRN_RETURN_IF_ERROR(CheckAbsent(target_, way_out));
    request.rename = RenameMode::kPlain;
  }
  CAIRN_RETURN_IF_ERROR(RunBlocking(queue, request).status());
  return SyncPath(queue, folder_, O_RDONLY | O_DIRECTORY);
}

void Draft::Remove() {
  std::error_code ignored;  // Report the first error.
  std::filesystem::remove_all(path_, ignored);
}

Status SyncPath(IoQueue& queue, const std::string& path, int flags) {
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t fd, RunBlocking(queue, {.op = IoOp::kOpen, .path = path, .flags = flags}));
  const UniqueFd opened(static_cast<int>(fd));
  return RunBlocking(queue, {.op = IoOp::kFsync, .fd = opened.get(), .name = path}).status();
}

}  // namespace cairn::tools
