#include "data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "json_file.h"

namespace cairn::trainer {
namespace {

/// What kind of data --data must contain.
std::string SourceOf(DataKind kind) {
  if (kind == DataKind::kPictures) return "pictures";
  return kind == DataKind::kQuestions ? "questions" : "text";
}

std::string SourceOf(std::span<const DataKind> kinds) {
  std::string all;
  for (const DataKind kind : kinds) all += (all.empty() ? "" : " or ") + SourceOf(kind);
  return all;
}

std::string SourceAt(const std::string& what) {
  if (what == "digits") return "pictures";
  if (std::filesystem::exists(what + "/data.json")) return JsonFile(what + "/data.json").Text("kind");
  throw std::runtime_error("--data " + what +
                           ": expected \"digits\", \"synthetic\", or a folder made by scripts/prepare-data, found " +
                           (std::filesystem::exists(what) ? "a folder without data.json" : "no such folder"));
}

DataKind KindAt(const DataRequest& request) {
  if (request.what == "synthetic") return request.kinds.front();
  const std::string source = SourceAt(request.what);
  const auto kind = std::ranges::find(request.kinds, source, [](DataKind of) { return SourceOf(of); });
  if (kind != request.kinds.end()) return *kind;
  throw std::runtime_error("--data " + request.what + ": expected " + SourceOf(request.kinds) +
                           " for this model, found " + source);
}

}  // namespace

Dataset OpenDataset(const DataRequest& request) {
  const std::string& what = request.what;
  const bool synthetic = what == "synthetic";
  const auto tokens = [&] { return synthetic ? SyntheticTokens() : PreparedTokens(what); };
  switch (KindAt(request)) {
    case DataKind::kText:
      return TextDataset(tokens(), request.sequence);
    case DataKind::kTextStreams:
      return TextStreams(tokens(), request.sequence, request.batch);
    case DataKind::kPairs:
      return PairsDataset(tokens(), request.sequence);
    case DataKind::kQuestions:
      return QuestionsDataset(what);
    case DataKind::kPictures:
      if (synthetic) return SyntheticPictures();
      return what == "digits" ? DigitsDataset() : PicturesDataset(what);
  }
  throw std::logic_error("no such kind of data");
}

}  // namespace cairn::trainer
