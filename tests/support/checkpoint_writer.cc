#include "support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/store_order.h"
#include "format/shard_header.h"
#include "store/names.h"

namespace cairn {
namespace {

// A shard, or with `origin` a kept file.
ManifestShard WriteShard(const std::string& folder, const CheckpointContent& content, const SavedShardContent& shard,
                         std::uint64_t number, const std::optional<KeptOrigin>& origin = std::nullopt) {
  std::vector<SavedTensor> tensors = shard.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return StoredTensorKey{a.dtype, a.bytes.size(), a.name} < StoredTensorKey{b.dtype, b.bytes.size(), b.name};
  });
  ShardHeader header;
  header.step = origin ? origin->step : content.step;
  header.attempt = origin ? origin->attempt : content.attempt;
  header.shard = number;
  header.aliases = shard.aliases;
  header.values = shard.values;
  header.checksums = content.checksums;
  std::string data;
  for (const SavedTensor& tensor : tensors) {
    header.tensors.push_back(
        {tensor.name, tensor.dtype, tensor.shape, data.size(), data.size() + tensor.bytes.size(), tensor.part});
    data += tensor.bytes;
  }
  Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header);
  EXPECT_TRUE(writer.ok()) << writer.status();
  std::vector<std::uint32_t> sums;
  for (std::size_t at = 0; content.checksums && at < data.size(); at += kChecksumBlock) {
    const std::size_t n = std::min<std::size_t>(kChecksumBlock, data.size() - at);
    sums.push_back(Crc32c(std::as_bytes(std::span(data.data() + at, n))));
  }
  writer->SetSums(sums);
  const std::string file = origin ? KeptName(number, origin->attempt) : ShardName(number);
  WriteWholeFile(folder + "/" + file, std::string(writer->bytes()) + data);
  return {
      .file = file, .length = writer->bytes().size() + data.size(), .header_digest = writer->digest(), .kept = origin};
}

}  // namespace

SavedTensor MakeTensor(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                       std::uint32_t seed) {
  SavedTensor tensor{.name = name, .dtype = dtype, .shape = shape};
  std::size_t bytes = DTypeSize(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  tensor.bytes.resize(bytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (char& byte : tensor.bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return tensor;
}

std::string WriteCheckpoint(const std::string& root, const CheckpointContent& content) {
  std::string folder = root + "/" + StepName(content.step);
  std::filesystem::create_directories(folder);
  Manifest manifest;
  manifest.step = content.step;
  manifest.line = content.line;
  manifest.root = content.root;
  manifest.attempt = content.attempt;
  manifest.world = content.shards.size();
  for (std::uint64_t i = 0; i < content.shards.size(); ++i) {
    manifest.shards.push_back(WriteShard(folder, content, content.shards[i], i));
  }
  for (const SavedKeptContent& kept : content.kept) {
    manifest.required_features = {std::string(kKeptFeature)};
    manifest.shards.push_back(WriteShard(folder, content, kept.content, kept.origin.rank, kept.origin));
  }
  WriteManifest(folder, manifest);
  return folder;
}

void WriteManifest(const std::string& folder, const Manifest& manifest) {
  WriteWholeFile(folder + "/" + std::string(kManifestName), EncodeManifest(manifest));
}

Manifest ReadManifest(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifestName);
  const Result<Manifest> manifest = DecodeManifest(ReadWholeFile(path), path);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return manifest.ok() ? *manifest : Manifest{};
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteWholeFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  EXPECT_TRUE(file.good()) << path;
}

}  // namespace cairn
