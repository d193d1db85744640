// Feeds hostile text to the manifest's reader: unchanged, and with a valid digest.

#include "format/manifest.h"

#include <algorithm>

#include "fuzz/check.h"
#include "fuzz/repair.h"

namespace cairn {
namespace {

void Read(std::string_view text) {
  const std::string file = "step/manifest.json";
  const Result<Manifest> read = DecodeManifest(text, file);
  if (!read.ok()) return RequireRefusal(read.status(), file);

  Require(read->shards.size() >= read->world, "one shard for each rank");
  const bool has_kept = std::ranges::find(read->required_features, kKeptFeature) != read->required_features.end();
  Require(has_kept == (read->shards.size() != read->world), "kept files are a feature");
  for (const std::string& feature : read->required_features) {
    Require(feature == kKeptFeature || feature == kLongValuesFeature, "this version knows the feature", feature);
  }
  for (std::size_t i = 0; i < read->shards.size(); ++i) {
    const ManifestShard& shard = read->shards[i];
    Require(shard.kept.has_value() == (i >= read->world), "the shards come before the kept files", shard.file);
    Require(!shard.kept || shard.kept->rank < read->world, "a kept file is of a rank", shard.file);
    Require(!shard.file.empty() && shard.file[0] != '.' && shard.file.find('/') == std::string::npos,
            "a shard's file has a plain name", shard.file);
  }
  const Result<Manifest> again = DecodeManifest(EncodeManifest(*read), file);
  Require(again.ok() && *again == *read, "accepted input round-trips", again.status().message());
}

}  // namespace
}  // namespace cairn

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  cairn::Read(text);
  cairn::Read(cairn::SealManifest(text));
  return 0;
}
