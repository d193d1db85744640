#include "data/dataset.h"

#include <filesystem>
#include <stdexcept>

#include "json_file.h"

namespace cairn::trainer {
namespace {

const char* Name(DataKind kind) { return kind == DataKind::kPictures ? "pictures" : "text"; }

bool IsPrepared(const std::string& what) { return std::filesystem::exists(what + "/data.json"); }

/// What a folder or a word that is no model's own choice has.
DataKind KindAt(const std::string& what) {
  if (what == "digits") return DataKind::kPictures;
  if (IsPrepared(what)) {
    return JsonFile(what + "/data.json").Text("kind") == "pictures" ? DataKind::kPictures : DataKind::kText;
  }
  if (std::filesystem::is_directory(what)) return DataKind::kPictures;
  throw std::runtime_error("--data " + what +
                           ": expected \"digits\", \"synthetic\", or a folder of pictures or prepared text, and there "
                           "is no such folder");
}

}  // namespace

Dataset OpenDataset(const DataRequest& request) {
  const std::string& what = request.what;
  const bool synthetic = what == "synthetic";
  const std::string expected = Name(request.kind);
  if (const std::string found = synthetic ? expected : Name(KindAt(what)); found != expected) {
    throw std::runtime_error("--data " + what + ": expected " + expected + ", which the model learns from, found " +
                             found);
  }
  switch (request.kind) {
    case DataKind::kText:
      return TextDataset(synthetic ? SyntheticTokens() : PreparedTokens(what), request.sequence);
    case DataKind::kTextStreams:
      return TextStreams(synthetic ? SyntheticTokens() : PreparedTokens(what), request.sequence, request.batch);
    case DataKind::kPictures:
      if (synthetic) return SyntheticPictures();
      if (what == "digits") return DigitsDataset();
      return IsPrepared(what) ? PreparedPictures(what) : ImageFolderDataset(what);
  }
  throw std::logic_error("no such kind of data");
}

}  // namespace cairn::trainer
