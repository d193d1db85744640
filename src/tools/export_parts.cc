#include "tools/export_parts.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "restore/select.h"
#include "tools/output.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kReservedName = "__metadata__";

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
  firsts_.emplace(name.substr(0, name.find_first_of("/.") + 1));
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

bool ComesFirst(DType dtype, std::string_view name, DType other_dtype, std::string_view other_name) {
  return dtype != other_dtype ? dtype > other_dtype : name < other_name;
}

Result<std::string> PlainHeader(const std::vector<PlainTensor>& tensors,
                                const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kReservedName] = metadata;
  std::uint64_t at = 0;
  for (const PlainTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes}}};
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
