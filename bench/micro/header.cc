// The header of a shard with 100,000 tensors: about 11 MB of JSON.
//
//   build/release/bin/bench_micro --benchmark_filter=header
//
// Peers: nlohmann::json, which makes and dumps the same document; parses the same bytes, without the checks for hostile
// files; and accepts them without keeping anything. For the part on the commit's path, filling in checksums and the
// digest: a copy of the same bytes.
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "bench/micro/pair.h"
#include "bench/micro/tensors.h"
#include "format/shard_keys.h"

namespace cairn::bench {
namespace {

constexpr std::size_t kLengthWord = 8;

ShardHeaderWriter Encode(const ShardHeader& header) {
  Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header);
  Check(writer.status());
  return *std::move(writer);
}

struct Encoded {
  explicit Encoded(std::size_t tensors)
      : header(HeaderOf(tensors)),
        bytes(Encode(header).bytes()),
        json(std::string_view(bytes).substr(kLengthWord)),
        file_bytes(bytes.size() + header.data_bytes()) {}

  [[nodiscard]] Result<ShardHeader> Decode() const {
    return DecodeShardHeader(std::as_bytes(std::span(bytes)), file_bytes, "shard-00000.safetensors");
  }

  const ShardHeader header;
  const std::string bytes;
  const std::string_view json;
  const std::uint64_t file_bytes;
};

// `metadata`, a few strings, is copied as it is.
std::string Dump(const ShardHeader& header, const nlohmann::ordered_json& metadata) {
  nlohmann::ordered_json::object_t document;
  document.reserve(header.tensors.size() + 1);
  // Appends directly, because this ordered map would search linearly for the name.
  document.push_back({std::string(kMetadata), metadata});
  for (const ShardTensor& tensor : header.tensors) {
    document.push_back(
        {tensor.name,
         {{"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}}});
  }
  return nlohmann::ordered_json(std::move(document)).dump();
}

Pair EncodeBesideDump(std::size_t tensors) {
  const auto encoded = std::make_shared<const Encoded>(tensors);
  const auto document = nlohmann::json::parse(encoded->json);
  const nlohmann::ordered_json metadata(document[kMetadata]);
  Expect(nlohmann::json::parse(Dump(encoded->header, metadata)) == document, "header: the peer's document differs");
  return {.cairn = Timed([encoded] { benchmark::DoNotOptimize(Encode(encoded->header)); }),
          .peer = Timed([encoded, metadata] { benchmark::DoNotOptimize(Dump(encoded->header, metadata)); })};
}

template <typename Peer>
Pair DecodeBeside(std::size_t tensors, Peer peer) {
  const auto encoded = std::make_shared<const Encoded>(tensors);
  const Result<ShardHeader> decoded = encoded->Decode();
  Check(decoded.status());
  Expect(decoded->tensors == encoded->header.tensors, "header: the decoded value differs from the encoded one");
  return {.cairn = Timed([encoded] { benchmark::DoNotOptimize(encoded->Decode()); }),
          .peer = Timed([encoded, peer] { benchmark::DoNotOptimize(peer(encoded->json)); })};
}

Pair SealBesideCopy(std::size_t tensors) {
  const auto encoded = std::make_shared<const Encoded>(tensors);
  const auto writer = std::make_shared<ShardHeaderWriter>(Encode(encoded->header));
  const auto copy = std::make_shared<std::string>(encoded->bytes);
  return {.cairn = Timed([encoded, writer] {
            writer->SetSums(encoded->header.sums);
            benchmark::DoNotOptimize(writer->digest());
          }),
          .peer = Timed([encoded, copy] {
            copy->assign(encoded->bytes);
            benchmark::ClobberMemory();
          })};
}

}  // namespace

void AddHeader(const Settings& settings) {
  const std::size_t tensors = settings.Sized(100'000, 100);
  AddPair(settings, "header/encode_of_dump", "nlohmann::json made and dumped", 1, 5,
          [tensors] { return EncodeBesideDump(tensors); });
  AddPair(settings, "header/decode_of_parse", "nlohmann::json::parse", 1, 5, [tensors] {
    return DecodeBeside(tensors, [](std::string_view json) { return nlohmann::json::parse(json); });
  });
  AddPair(settings, "header/decode_of_accept", "nlohmann::json::accept, which keeps nothing", 2, 5, [tensors] {
    return DecodeBeside(tensors, [](std::string_view json) { return nlohmann::json::accept(json); });
  });
  AddPair(settings, "header/seal_of_copy", "a copy of the header's bytes", 1, 20,
          [tensors] { return SealBesideCopy(tensors); });
}

}  // namespace cairn::bench
