#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/human.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "restore/open.h"
#include "tools/commands.h"
#include "tools/export_parts.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kWayOut = "--force replaces it";

Status CheckTarget(const ExportOptions& options) {
  std::error_code unknown;  // Then writing says what is wrong.
  const std::filesystem::file_status found = std::filesystem::symlink_status(options.out, unknown);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found) &&
      !std::filesystem::is_symlink(found)) {
    return Error(StatusCode::kAlreadyExists, "{} exists and is no file: --out expects the name of one", options.out);
  }
  return options.force ? Status::Ok() : CheckAbsent(options.out, kWayOut);
}

// Finds the wanted tensors, sorted by name and then by file, a few files at a time.
Result<std::vector<TensorPlace>> FindWanted(const Reading& reading, TensorSource& source,
                                            const ExportOptions& options) {
  std::vector<TensorPlace> wanted;
  NameFilter filter(options.strip_prefix, options.names);
  for (std::uint32_t first = 0; first < source.files(); first += kHeaderReads) {
    CAIRN_RETURN_IF_ERROR(source.SelectRange(reading.parts(), first, first + kHeaderReads));
    for (const StoredTensor& tensor : source.tensors()) {
      if (!filter.Take(tensor.info.name)) continue;
      if (tensor.info.part) {
        return Error(StatusCode::kUnsupported,
                     "tensor \"{}\" is a part: {}; a plain file holds whole tensors: --model-folder puts them together",
                     tensor.info.name, DescribeType(tensor.info));
      }
      wanted.push_back({tensor.info.name, tensor.shard});
    }
  }
  CAIRN_RETURN_IF_ERROR(filter.CheckUsed(options.path));
  std::ranges::sort(wanted);
  return wanted;
}

/// In the order of a safetensors file. Tied names too: who loads the file wants each of them.
Result<std::vector<FileTensor>> Select(const Reading& reading, TensorSource& source, const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TensorPlace> places, FindWanted(reading, source, options));
  std::vector<NamedInFile> named;
  for (const TensorPlace& place : places) {
    named.push_back({place.name, NameInFile(options.strip_prefix, place.name).value_or("")});
  }
  CAIRN_RETURN_IF_ERROR(CheckNamesInFile(named));
  CAIRN_ASSIGN_OR_RETURN(std::vector<const StoredTensor*> wanted, source.Find(reading.parts(), places));
  CAIRN_RETURN_IF_ERROR(KeepOneOfEach(reading, source, wanted));
  std::vector<FileTensor> tensors;
  for (const StoredTensor* tensor : wanted) {
    const TensorInfo& info = tensor->info;
    tensors.push_back({.name = NameInFile(options.strip_prefix, info.name).value_or(""),
                       .whole = {info.name, info.dtype, info.shape},
                       .bytes = info.bytes});
  }
  std::ranges::sort(tensors, ComesFirst);
  return tensors;
}

Status WriteFile(const Reading& reading, TensorSource& source, const std::vector<FileTensor>& tensors,
                 std::uint64_t total, const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, reading.parts().queue());
  Draft draft(options.out);
  const auto write = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd file, CreateFile(*queue, draft.path()));
    Draft::Hold(file.get());
    CAIRN_RETURN_IF_ERROR(PlainFiles(reading, source, *queue, total).Write(file.get(), draft.path(), tensors, {}));
    return draft.Publish(*queue, options.force, kWayOut);
  };
  Status status = write();
  if (!status.ok()) draft.Remove();
  return status;
}

}  // namespace

Result<int> Export(const ExportOptions& options) {
  if (options.out.empty() == options.model_folder.empty()) {
    return Status(StatusCode::kInvalidArgument, "export: expected one of --out FILE and --model-folder DIR");
  }
  if (!options.model_folder.empty()) return ExportModelFolder(options);
  CAIRN_RETURN_IF_ERROR(CheckTarget(options));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make());
  CAIRN_ASSIGN_OR_RETURN(TensorSource source, OpenSource(*reading, options.path, options.step));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<FileTensor> tensors, Select(*reading, source, options));
  std::uint64_t bytes = 0;
  for (const FileTensor& tensor : tensors) bytes += tensor.bytes;
  CAIRN_RETURN_IF_ERROR(WriteFile(*reading, source, tensors, bytes, options));
  if (options.json) {
    PrintJson({{"out", options.out}, {"tensors", tensors.size()}, {"bytes", bytes}});
  } else {
    fmt::print("{}: {}, {}\n", Printable(options.out), Count(tensors.size(), "tensor"), HumanBytes(bytes));
  }
  return kGood;
}

}  // namespace cairn::tools
