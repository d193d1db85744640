// The manifest of a checkpoint that 1,024 ranks wrote, and of one that a single rank wrote.
//
//   build/release/bin/bench_micro --benchmark_filter=manifest
//
// Peers: nlohmann::json, which makes the same document and dumps it (and computes no digest), and parses the same bytes
// (and validates nothing).
#include "format/manifest.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/micro/pair.h"

namespace cairn::bench {
namespace {

Manifest ManifestOf(std::size_t shards) {
  Manifest manifest;
  manifest.step = 1000;
  manifest.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
  manifest.parent = ManifestParent{.step = 990, .attempt = "e0b6a7f4-9c3e-4d21-8f58-0d8f3c8f0a52"};
  manifest.world = shards;
  for (std::size_t i = 0; i < shards; ++i) {
    manifest.shards.push_back({.file = "shard-" + std::to_string(100'000 + i) + ".safetensors",
                               .length = (4ULL << 30) + i,
                               .header_digest = static_cast<std::uint32_t>(i * 2654435761U)});
  }
  return manifest;
}

nlohmann::ordered_json DocumentOf(const Manifest& manifest) {
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const ManifestShard& shard : manifest.shards) {
    shards.push_back({{"file", shard.file},
                      {"length", shard.length},
                      {"header_digest", fmt::format("{:08x}", shard.header_digest)}});
  }
  return {{"format_version", 1},
          {"required_features", nlohmann::ordered_json::array()},
          {"step", manifest.step},
          {"generation", manifest.line},
          {"attempt", manifest.attempt},
          {"parent", {{"step", manifest.parent->step}, {"attempt", manifest.parent->attempt}}},
          {"world", manifest.world},
          {"shards", std::move(shards)}};
}

Pair EncodeBesideDump(std::size_t shards, int times) {
  const auto manifest = std::make_shared<const Manifest>(ManifestOf(shards));
  auto expected = nlohmann::json::parse(EncodeManifest(*manifest));
  expected.erase("digest");
  Expect(nlohmann::json::parse(DocumentOf(*manifest).dump()) == expected, "manifest: the peer's document differs");
  return {.cairn = Timed([manifest] { benchmark::DoNotOptimize(EncodeManifest(*manifest)); }, times),
          .peer = Timed([manifest] { benchmark::DoNotOptimize(DocumentOf(*manifest).dump()); }, times)};
}

Pair DecodeBesideParse(std::size_t shards, int times) {
  const Manifest manifest = ManifestOf(shards);
  const auto text = std::make_shared<const std::string>(EncodeManifest(manifest));
  const Result<Manifest> decoded = DecodeManifest(*text, "manifest.json");
  Check(decoded.status());
  Expect(*decoded == manifest, "manifest: the decoded value differs from the encoded one");
  return {.cairn = Timed([text] { benchmark::DoNotOptimize(DecodeManifest(*text, "manifest.json")); }, times),
          .peer = Timed([text] { benchmark::DoNotOptimize(nlohmann::json::parse(*text)); }, times)};
}

}  // namespace

void AddManifest(const Settings& settings) {
  const std::size_t many = settings.Sized(1024, 4);
  AddPair(settings, "manifest/encode_1024_of_dump", "nlohmann::json made and dumped", 1, 40,
          [many] { return EncodeBesideDump(many, 1); });
  AddPair(settings, "manifest/decode_1024_of_parse", "nlohmann::json::parse", 1, 40,
          [many] { return DecodeBesideParse(many, 1); });
  AddPair(settings, "manifest/encode_1_of_dump", "nlohmann::json made and dumped", 1, 100,
          [] { return EncodeBesideDump(1, 50); });
  AddPair(settings, "manifest/decode_1_of_parse", "nlohmann::json::parse", 1, 100,
          [] { return DecodeBesideParse(1, 50); });
}

}  // namespace cairn::bench
