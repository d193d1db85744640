#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/human.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "restore/open.h"
#include "tools/commands.h"
#include "tools/export_parts.h"
#include "tools/interruption.h"
#include "tools/output.h"
#include "tools/reading.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

constexpr std::string_view kWayOut = "--force replaces it";

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
Result<std::vector<const StoredTensor*>> Select(const Reading& reading, TensorSource& source,
                                                const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TensorPlace> places, FindWanted(reading, source, options));
  std::vector<NamedInFile> named;
  for (const TensorPlace& place : places) {
    named.push_back({place.name, NameInFile(options.strip_prefix, place.name).value_or("")});
  }
  CAIRN_RETURN_IF_ERROR(CheckNamesInFile(named));
  CAIRN_ASSIGN_OR_RETURN(std::vector<const StoredTensor*> wanted, source.Find(reading.parts(), places));
  CAIRN_RETURN_IF_ERROR(KeepOneOfEach(reading, source, wanted));
  std::ranges::sort(wanted, [](const StoredTensor* a, const StoredTensor* b) {
    return ComesFirst(a->info.dtype, a->info.name, b->info.dtype, b->info.name);
  });
  return wanted;
}

Status WriteTensors(const Reading& reading, TensorSource& source, const std::vector<const StoredTensor*>& tensors,
                    const ExportOptions& options, IoQueue& queue, int fd, const std::string& path) {
  const std::function<bool()> interrupted = CatchInterruptions();
  std::vector<PlainTensor> plain;
  for (const StoredTensor* tensor : tensors) {
    const TensorInfo& info = tensor->info;
    const std::string name = NameInFile(options.strip_prefix, info.name).value_or("");
    plain.push_back({.name = name, .dtype = info.dtype, .shape = info.shape, .bytes = info.bytes});
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string header, PlainHeader(plain, {}));
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

Status WriteFile(const Reading& reading, TensorSource& source, const std::vector<const StoredTensor*>& tensors,
                 const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, reading.parts().queue());
  Draft draft(options.out);
  CAIRN_ASSIGN_OR_RETURN(
      const std::int64_t fd,
      RunBlocking(*queue,
                  {.op = IoOp::kOpen, .path = draft.path(), .flags = O_WRONLY | O_CREAT | O_EXCL, .mode = 0666}));
  const auto write = [&]() -> Status {
    const UniqueFd file(static_cast<int>(fd));
    Draft::Hold(file.get());
    CAIRN_RETURN_IF_ERROR(WriteTensors(reading, source, tensors, options, *queue, file.get(), draft.path()));
    CAIRN_RETURN_IF_ERROR(RunBlocking(*queue, {.op = IoOp::kFsync, .fd = file.get(), .name = draft.path()}).status());
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
  if (!options.force) CAIRN_RETURN_IF_ERROR(CheckAbsent(options.out, kWayOut));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make());
  CAIRN_ASSIGN_OR_RETURN(TensorSource source, OpenSource(*reading, options.path, options.step));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<const StoredTensor*> tensors, Select(*reading, source, options));
  CAIRN_RETURN_IF_ERROR(WriteFile(*reading, source, tensors, options));

  std::uint64_t bytes = 0;
  for (const StoredTensor* tensor : tensors) bytes += tensor->info.bytes;
  if (options.json) {
    PrintJson({{"out", options.out}, {"tensors", tensors.size()}, {"bytes", bytes}});
  } else {
    fmt::print("{}: {}, {}\n", Printable(options.out), Count(tensors.size(), "tensor"), HumanBytes(bytes));
  }
  return kGood;
}

}  // namespace cairn::tools
