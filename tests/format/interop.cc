// The C++ half of interop_test.py: `write FOLDER` makes a checkpoint of one shard and prints its contents, `ranks
// FOLDER` makes one of six shards and a kept file, `read FILE` prints any safetensors file. One line for each tensor:
// name, dtype, shape, bytes; name and bytes are hexadecimal.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/crc32c.h"
#include "format/index.h"
#include "format/manifest.h"
#include "format/shard_bytes.h"
#include "format/shard_header.h"

namespace cairn {
namespace {

std::string Hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

void Describe(const ShardTensor& tensor, std::string_view data) {
  std::cout << fmt::format("{} {} [{}] {}\n", Hex(tensor.name), DTypeName(tensor.dtype), fmt::join(tensor.shape, ","),
                           Hex(data.substr(tensor.begin, tensor.end - tensor.begin)));
}

// Every dtype with every shape, under names that JSON must escape.
ShardHeader Sample() {
  ShardHeader header = RichHeader();
  header.tensors.clear();
  header.aliases.clear();
  const std::vector<std::vector<std::int64_t>> shapes{{}, {1}, {3, 5}, {0, 4}, {2, 3, 4}, {30'000}};
  const std::vector<std::string> names{"scalar",
                                       "a\"b\\c/d",
                                       std::string("nul\0tab\tline\n\x01\x1f\x7f", 16),
                                       "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x90\xa7\xe2\x80\xa8",
                                       " ",
                                       "model.layers.0.weight"};
  std::uint64_t end = 0;
  for (int i = static_cast<int>(DType::kU64); i >= 0; --i) {
    const auto dtype = static_cast<DType>(i);
    for (std::size_t s = 0; s < shapes.size(); ++s) {
      std::uint64_t bytes = DTypeSize(dtype);
      for (const std::int64_t extent : shapes[s]) bytes *= static_cast<std::uint64_t>(extent);
      header.tensors.push_back({.name = fmt::format("{} {}", DTypeName(dtype), names[s]),
                                .dtype = dtype,
                                .shape = shapes[s],
                                .begin = end,
                                .end = end + bytes});
      end += bytes;
    }
  }
  ShardTensor& part = header.tensors[2];
  part.part = TensorPart{.logical_name = "whole \"w\"", .global_shape = {6, 5}, .offset = {3, 0}};
  header.aliases = {{"tied \xf0\x9f\x90\xa7", header.tensors[1].name}};
  header.long_values = {};  // The corpus has them.
  header.values = {{"bool", true},
                   {"double", 1.0},
                   {"json", Json{"{\"a\": [1, 2.50]}"}},
                   {"minus zero", -0.0},
                   {"none", nullptr},
                   {"seed", std::int64_t{-9223372036854775807 - 1}},
                   {"text \"\n\x01", std::string("\xf0\x9f\x90\xa7 \\ \"")}};
  return header;
}

constexpr std::string_view kKeptSince = "5f2b7c1e";  // The attempt that has written what is kept.

// Six ranks that share tensors in every way and have thousands of separate ones; and what rank 3 has kept.
std::vector<ShardHeader> Ranks() {
  constexpr std::int64_t kRanks = 6;
  std::vector<ShardHeader> headers;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    ShardHeader header;
    header.step = 1000;
    header.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
    header.shard = static_cast<std::uint64_t>(rank);
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape,
                         std::optional<TensorPart> part = {}) {
      const std::uint64_t begin = header.data_bytes();
      std::uint64_t bytes = 1;
      for (const std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
      header.tensors.push_back({.name = name,
                                .dtype = DType::kU8,
                                .shape = std::move(shape),
                                .begin = begin,
                                .end = begin + bytes,
                                .part = std::move(part)});
    };
    add("rows", {4, 2}, TensorPart{"rows", {4 * kRanks, 2}, {4 * rank, 0}});
    add("grid." + std::to_string(rank), {2, 3}, TensorPart{"grid", {4, 9}, {rank / 3 * 2, rank % 3 * 3}});
    add("uneven", {rank, 1}, TensorPart{"uneven", {15, 1}, {rank * (rank - 1) / 2, 0}});
    add("step", {});
    add("empty", {0, 7});
    for (int i = 0; i < 2500; ++i) add(fmt::format("expert {}.{} of \xc3\xa9", i, rank), {1});
    header.aliases = {{"tied", "rows"}};
    headers.push_back(std::move(header));
  }
  ShardHeader kept;
  kept.step = 900;
  kept.attempt = kKeptSince;
  kept.shard = 3;
  kept.tensors = {{.name = "frozen", .dtype = DType::kU8, .shape = {5}, .begin = 0, .end = 5}};
  headers.push_back(std::move(kept));
  return headers;
}

// Fills in the header's checksums and writes header and data. Returns the manifest's entry for the file.
Result<ManifestShard> WriteShard(const std::string& folder, const ShardHeader& header, std::string_view data) {
  auto writer = ShardHeaderWriter::Make(header);
  if (!writer.ok()) return writer.status();
  std::vector<std::uint32_t> sums;
  for (std::size_t at = 0; at < data.size(); at += kChecksumBlock) {
    sums.push_back(Crc32c(AsBytes(data.substr(at, kChecksumBlock))));
  }
  writer->SetSums(sums);
  ManifestShard shard{.file = fmt::format("shard-{:05}.safetensors", header.shard),
                      .length = writer->data_begin() + data.size(),
                      .header_digest = writer->digest()};
  if (header.attempt == kKeptSince) {
    shard.file = fmt::format("kept-{:05}-{}.safetensors", header.shard, header.attempt);
    shard.kept = KeptOrigin{.rank = header.shard, .step = header.step, .attempt = header.attempt};
  }
  std::ofstream(folder + "/" + shard.file, std::ios::binary) << writer->bytes() << data;
  return shard;
}

Status WriteManifest(const std::string& folder, std::span<const ShardHeader> headers,
                     std::vector<ManifestShard> shards) {
  std::vector<std::string> runs;
  for (const ShardHeader& header : headers) runs.push_back(EncodeIndexRun(header));
  const auto built = BuildIndex(runs);
  if (!built) return {StatusCode::kInternal, "no index"};
  std::ofstream(folder + "/" + std::string(kIndexName), std::ios::binary) << built->bytes;

  Manifest manifest;
  manifest.step = headers[0].step;
  manifest.attempt = headers[0].attempt;
  const auto is_kept = [](const ManifestShard& shard) { return shard.kept.has_value(); };
  const auto kept = std::ranges::count_if(shards, is_kept);
  if (kept != 0) manifest.required_features = {std::string(kKeptFeature)};
  manifest.world = shards.size() - static_cast<std::size_t>(kept);
  manifest.shards = std::move(shards);
  manifest.index = ManifestIndex{.file = std::string(kIndexName),
                                 .length = built->bytes.size(),
                                 .head = built->head_bytes,
                                 .digest = built->head_digest};
  std::ofstream(folder + "/manifest.json", std::ios::binary) << EncodeManifest(manifest);
  return Status::Ok();
}

Status Write(const std::string& folder) {
  const ShardHeader header = Sample();
  std::string data(header.data_bytes(), '\0');
  std::uint32_t state = 1;
  for (char& c : data) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  for (const ShardTensor& tensor : header.tensors) {
    if (tensor.dtype != DType::kBool) continue;
    for (std::uint64_t i = tensor.begin; i < tensor.end; ++i) data[i] = static_cast<char>(data[i] & 1);
  }
  const auto shard = WriteShard(folder, header, data);
  if (!shard.ok()) return shard.status();
  for (const ShardTensor& tensor : header.tensors) Describe(tensor, data);
  return WriteManifest(folder, {&header, 1}, {*shard});
}

Status WriteRanks(const std::string& folder) {
  const std::vector<ShardHeader> headers = Ranks();
  std::vector<ManifestShard> shards;
  for (const ShardHeader& header : headers) {
    const auto shard = WriteShard(folder, header, std::string(header.data_bytes(), 'x'));
    if (!shard.ok()) return shard.status();
    shards.push_back(*shard);
  }
  return WriteManifest(folder, headers, std::move(shards));
}

Status Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto length = ShardHeaderLength(AsBytes(file).first(8), file.size(), path);
  if (!length.ok()) return length.status();
  const auto header = DecodeShardHeader(AsBytes(file).first(*length), file.size(), path);
  if (!header.ok()) return header.status();
  for (const auto& [key, value] : header->metadata) std::cout << fmt::format("metadata {} {}\n", Hex(key), Hex(value));
  for (const ShardTensor& tensor : header->tensors) Describe(tensor, std::string_view(file).substr(header->data_begin));
  return Status::Ok();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const std::string_view command = argc == 3 ? argv[1] : "";
  if (command != "write" && command != "ranks" && command != "read") {
    std::cerr << "usage: format_interop write FOLDER | ranks FOLDER | read FILE\n";
    return 2;
  }
  const cairn::Status status = command == "write"   ? cairn::Write(argv[2])
                               : command == "ranks" ? cairn::WriteRanks(argv[2])
                                                    : cairn::Read(argv[2]);
  if (!status.ok()) std::cerr << status << '\n';
  return status.ok() ? 0 : 1;
}
