// A folder that transformers' from_pretrained and vLLM read: model.safetensors, or its parts and their index, and
// beside it config and tokenizer.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "advice/input_file.h"
#include "base/human.h"
#include "base/json_text.h"
#include "base/print_error.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tools/commands.h"
#include "tools/export_parts.h"
#include "tools/model_tensors.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kWayOut = "remove it, or give another name";
constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kIndex = "model.safetensors.index.json";
/// Chunks of 4 MiB in the pool: with the two smallest windows below 64 MiB.
constexpr int kChunks = 6;

/// A file of weights.
struct WeightFile {
  std::string name;
  std::vector<FileTensor> tensors;
};

/// What is written beside the weights.
struct SideFiles {
  std::filesystem::path folder;
  std::vector<std::string> names;
  /// Of config.json.
  bool ties_embeddings = false;

  [[nodiscard]] bool HasTokenizer() const {
    return std::ranges::any_of(names, [](const std::string& name) {
      return name.starts_with("tokenizer") || name.starts_with("vocab") || name.ends_with(".model");
    });
  }
};

bool IsSideFile(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 8> kEndings{".json",     ".jinja", ".txt", ".model",
                                                     ".tiktoken", ".py",    ".spm", ".codes"};
  constexpr std::array<std::string_view, 2> kOthers{"manifest.json", "trainer_state.json"};
  const std::string name = path.filename().string();
  return std::ranges::find(kEndings, path.extension().string()) != kEndings.end() &&
         std::ranges::find(kOthers, name) == kOthers.end() && !name.ends_with(".index.json");
}

/// Python's json writes NaN and Infinity, which JSON has not: null instead, outside of strings.
std::string WithoutNaNs(const std::string& text) {
  std::string valid;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quoted && letter == '\\' && at + 1 < text.size()) {
      valid += text.substr(at++, 2);
      continue;
    }
    quoted = quoted != (letter == '"');
    const auto is = [&](std::string_view word) { return !quoted && text.compare(at, word.size(), word) == 0; };
    std::size_t length = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) length = is(word) ? word.size() : length;
    valid += length == 0 ? std::string(1, letter) : "null";
    at += length == 0 ? 0 : length - 1;
  }
  return valid;
}

Result<SideFiles> FindSideFiles(const std::string& folder, const ExportOptions& options) {
  SideFiles files{.folder = folder};
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code unknown;
    // A link is followed: caches of models have them.
    if (IsSideFile(at->path()) && at->is_regular_file(unknown)) files.names.push_back(at->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), folder);
  std::ranges::sort(files.names);
  if (std::ranges::find(files.names, kConfig) == files.names.end()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: expected config.json, found none: {} a folder that has the model's config and tokenizer, as "
                 "save_pretrained writes it",
                 folder, options.config_from.empty() ? "give with --config-from" : "--config-from:");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadInputFile((files.folder / kConfig).string(), "a model's config", 16U << 20));
  const nlohmann::json config = IsNestedTooDeeply(text)
                                    ? nlohmann::json()
                                    : nlohmann::json::parse(WithoutNaNs(text), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a JSON object", (files.folder / kConfig).string());
  }
  const auto ties = config.find("tie_word_embeddings");
  files.ties_embeddings = ties != config.end() && *ties == true;
  return files;
}

/// As save_pretrained divides them: a file is full when the next tensor would make it larger.
std::vector<WeightFile> Divide(std::vector<FileTensor> tensors, std::uint64_t most) {
  std::vector<WeightFile> files;
  std::uint64_t filled = 0;
  for (FileTensor& tensor : tensors) {
    if (files.empty() || filled + tensor.bytes > most) {
      if (files.empty() || !files.back().tensors.empty()) files.emplace_back();
      filled = 0;
    }
    filled += tensor.bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    std::ranges::sort(files[i].tensors, ComesFirst);
  }
  return files;
}

std::string IndexText(const std::vector<WeightFile>& files) {
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;
  for (const WeightFile& file : files) {
    for (const FileTensor& tensor : file.tensors) {
      weight_map[tensor.name] = file.name;
      bytes += tensor.bytes;
      elements += tensor.bytes / DTypeSize(tensor.whole.dtype);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                                {"weight_map", std::move(weight_map)}};
  return index.dump(2) + "\n";
}

Status WriteText(IoQueue& queue, const std::string& path, const std::string& text) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, CreateFile(queue, path));
  CAIRN_RETURN_IF_ERROR(WriteAll(queue, fd.get(), 0, std::as_bytes(std::span(text)), path));
  return RunBlocking(queue, {.op = IoOp::kFsync, .fd = fd.get(), .name = path}).status();
}

Status Copy(IoQueue& queue, const std::filesystem::path& from, const std::string& path) {
  std::error_code error;
  if (!std::filesystem::copy_file(from, path, error)) {
    return ErrnoStatus(error.value(), fmt::format("copying {} to {}", from.string(), path));
  }
  return SyncPath(queue, path, O_RDONLY);
}

Status WriteFolder(const Reading& reading, TensorSource& source, const std::vector<WeightFile>& files,
                   const SideFiles& beside, std::uint64_t total, const std::string& target) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, reading.parts().queue());
  Draft draft(target);
  std::error_code error;
  if (!std::filesystem::create_directory(draft.path(), error)) {
    return ErrnoStatus(error.value(), "making " + draft.path());
  }
  const UniqueFd held(::open(draft.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Draft::Hold(held.get());
  const auto write = [&]() -> Status {
    PlainFiles weights(reading, source, *queue, total);
    const auto below = [&draft](std::string_view name) { return fmt::format("{}/{}", draft.path(), name); };
    for (const std::string& name : beside.names) {
      CAIRN_RETURN_IF_ERROR(Copy(*queue, beside.folder / name, below(name)));
    }
    for (const WeightFile& file : files) {
      const std::string path = below(file.name);
      CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, CreateFile(*queue, path));
      CAIRN_RETURN_IF_ERROR(weights.Write(fd.get(), path, file.tensors, {{"format", "pt"}}));
    }
    if (files.size() > 1) CAIRN_RETURN_IF_ERROR(WriteText(*queue, below(kIndex), IndexText(files)));
    CAIRN_RETURN_IF_ERROR(SyncPath(*queue, draft.path(), O_RDONLY | O_DIRECTORY));
    return draft.Publish(*queue, /*replace=*/false, kWayOut);
  };
  Status status = write();
  if (!status.ok()) draft.Remove();
  return status;
}

}  // namespace

Result<int> ExportModelFolder(const ExportOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckAbsent(options.model_folder, kWayOut));
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t most, ParseSize("--max-shard-size", options.max_shard_size));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make(kChunks));
  CAIRN_ASSIGN_OR_RETURN(TensorSource source, OpenSource(*reading, options.path, options.step));
  if (source.checkpoint() == nullptr) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a root or a checkpoint's folder, found a file",
                 options.path);
  }
  const std::string& checkpoint = source.checkpoint()->info.path;
  CAIRN_ASSIGN_OR_RETURN(const SideFiles beside,
                         FindSideFiles(options.config_from.empty() ? checkpoint : options.config_from, options));
  CAIRN_ASSIGN_OR_RETURN(ModelTensors model, FindModelTensors(*reading, source, options, beside.ties_embeddings));
  if (!beside.HasTokenizer()) {
    model.warnings.push_back(
        fmt::format("{} has no tokenizer, so {} gets none", beside.folder.string(), options.model_folder));
  }
  for (const std::string& warning : model.warnings) PrintError("cairn: {}\n", Printable(warning));

  std::uint64_t total = 0;
  for (const FileTensor& tensor : model.tensors) total += tensor.bytes;
  const std::size_t tensors = model.tensors.size();
  const std::vector<WeightFile> files = Divide(std::move(model.tensors), most);
  CAIRN_RETURN_IF_ERROR(WriteFolder(*reading, source, files, beside, total, options.model_folder));
  if (options.json) {
    PrintJson({{"out", options.model_folder}, {"tensors", tensors}, {"bytes", total}, {"files", files.size()}});
  } else {
    fmt::print("{}: {}, {} in {}; beside them {} from {}\n", Printable(options.model_folder), Count(tensors, "tensor"),
               HumanBytes(total), Count(files.size(), "file"), Count(beside.names.size(), "file"),
               Printable(beside.folder.string()));
  }
  return kGood;
}

}  // namespace cairn::tools
