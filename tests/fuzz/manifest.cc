// Feeds hostile text to the manifest's reader: unchanged, and with a valid digest.

#include "format/manifest.h"

#include "fuzz/check.h"
#include "fuzz/repair.h"

namespace cairn {
namespace {

void Read(std::string_view text) {
  const std::string file = "step/manifest.json";
  const Result<Manifest> read = DecodeManifest(text, file);
  if (!read.ok()) return RequireRefusal(read.status(), file);

  Require(read->required_features.empty(), "this version knows no feature");
  Require(read->shards.size() == read->world, "one shard for each rank");
  for (const ManifestShard& shard : read->shards) {
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
