#include "mirror/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/in_bucket.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

using VerifyOne = std::function<Status(const StoredCheckpoint& checkpoint, const Progress& progress)>;

// All checkpoints of a root, or the selected one.
Result<std::vector<StoredCheckpoint>> Chosen(const std::string& path, const std::optional<std::uint64_t>& step) {
  CAIRN_ASSIGN_OR_RETURN(const PathKind kind, KindOf(path));
  if (kind == PathKind::kRoot && !step) {
    CAIRN_RETURN_IF_ERROR(CheckRoot(path));
    Result<std::vector<StoredCheckpoint>> list = ListCheckpoints(path);
    if (list.ok() && list->empty()) return Status(StatusCode::kNotFound, "there is no checkpoint under " + path);
    return list;
  }
  CAIRN_ASSIGN_OR_RETURN(StoredCheckpoint one, FindCheckpoint(path, step));
  return std::vector<StoredCheckpoint>{std::move(one)};
}

Result<int> VerifyAll(const std::vector<StoredCheckpoint>& chosen, const ReadOptions& options,
                      const VerifyOne& verify) {
  int exit_code = kGood;
  nlohmann::json objects = nlohmann::json::array();
  for (const StoredCheckpoint& checkpoint : chosen) {
    CheckpointInfo info = checkpoint.info;
    {
      ProgressBar bar(fmt::format("step {}", info.step));
      info.status = verify(checkpoint, [&bar](std::uint64_t done, std::uint64_t total) {
        bar.Update(done, total);
        return true;
      });
    }
    // Retention does not wait for a listing, so a checkpoint removed meanwhile is not damage.
    if (info.status.code() == StatusCode::kNotFound && chosen.size() > 1) continue;
    if (!info.status.ok()) exit_code = std::max(exit_code, ReportError(info.status));
    objects.push_back(tools::ToJson(info, checkpoint.committed_at));
    if (!options.json) {
      const std::string state(info.status.ok() ? "ok" : StatusCodeName(info.status.code()));
      fmt::print("{}: {}\n", Printable(info.path), Coloured(state, info.status.ok() ? Colour::kGreen : Colour::kRed));
    }
  }
  if (options.json) PrintJson(objects);
  return exit_code;
}

}  // namespace

Result<int> Verify(const ReadOptions& options) {
  if (IsBucket(options.path)) {
    CAIRN_ASSIGN_OR_RETURN(const InBucket found, ChooseInBucket(options.path, options.step));
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make());
    return VerifyAll(found.checkpoints, options, [&](const StoredCheckpoint& one, const Progress& progress) {
      return VerifyInBucket(*found.bucket, one, *reading->parts().pool, progress);
    });
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> chosen, Chosen(options.path, options.step));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Reading> reading, Reading::Make());
  return VerifyAll(chosen, options, [&](const StoredCheckpoint& one, const Progress& progress) {
    return VerifyCheckpoint(reading->parts(), one, progress);
  });
}

}  // namespace cairn::tools
