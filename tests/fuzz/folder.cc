#include "fuzz/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/crc32c.h"
#include "base/unique_fd.h"
#include "format/manifest.h"
#include "fuzz/check.h"
#include "fuzz/repair.h"
#include "store/names.h"

namespace cairn {
namespace {

constexpr std::size_t kShift = 4099;  // Distance between the patterns of two shards.

void Append(const UniqueFd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    Require(written > 0, "the fuzzer can write its files");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

UniqueFd Create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  Require(fd.valid(), "the fuzzer can make its files", path);
  return fd;
}

/// The kept files that the manifest's text names, each once. Only plain names: they become files.
std::vector<std::string> KeptNames(std::string_view manifest) {
  constexpr std::string_view kStart = "{\"file\":\"";
  constexpr std::string_view kPlain = "-.0123456789abcdefghijklmnopqrstuvwxyz";
  std::vector<std::string> names;
  for (std::size_t at = manifest.find(kStart); at != std::string_view::npos; at = manifest.find(kStart, at)) {
    at += kStart.size();
    const std::string_view name = manifest.substr(at, std::min(manifest.find('"', at), manifest.size()) - at);
    const bool plain = name.starts_with("kept-") && name.size() < 100;
    if (!plain || name.find_first_not_of(kPlain) != std::string_view::npos) continue;
    if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
  }
  return names;
}

}  // namespace

Plan PlanOf(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return i < bytes.size() ? static_cast<std::uint8_t>(bytes[i]) : 0U; };
  const unsigned flags = byte(0);
  return {.flip = (flags & 1U) != 0,
          .cut = (flags & 2U) != 0,
          .manifest_as_is = (flags & 4U) != 0,
          .headers_as_are = (flags & 8U) != 0,
          .allow_missing = (flags & 16U) != 0,
          .inspect = (flags & 32U) != 0,
          .place = byte(1) | byte(2) << 8 | byte(3) << 16,
          .rank = static_cast<std::uint8_t>(byte(4) % FuzzedFolder::kMostShards),
          .targets = bytes.substr(std::min<std::size_t>(5, bytes.size()))};
}

FuzzedFolder::FuzzedFolder() : path_(directory_ / "checkpoint") {
  std::filesystem::create_directory(path_);
  pattern_.resize(kMostData + kMostShards * kShift);
  std::uint64_t state = 1;
  for (char& byte : pattern_) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<char>(state >> 56);
  }
}

void FuzzedFolder::Write(std::string_view input) {
  for (const FuzzedShard& shard : shards_) ::unlink((path_ + "/" + shard.name).c_str());
  const std::vector<std::string_view> sections = Sections(input);
  plan_ = PlanOf(sections[0]);
  MakeShards(sections);

  std::string manifest(sections.size() > 1 ? sections[1] : "");
  if (!plan_.manifest_as_is) {
    for (const FuzzedShard& shard : shards_) {
      const std::uint32_t digest = Crc32c(std::as_bytes(std::span(shard.header)));
      FillShard(manifest, shard.name, shard.file_bytes(), digest);
      FillKept(manifest, shard.name, shard.file_bytes(), digest);
    }
  }
  Append(Create(path_ + "/" + std::string(kManifestName)), SealManifest(manifest));
  Damage();
}

void FuzzedFolder::MakeShards(const std::vector<std::string_view>& sections) {
  shards_.clear();
  const std::vector<std::string> kept = KeptNames(sections.size() > 1 ? sections[1] : "");
  const std::size_t end = std::min(sections.size(), 2 + kMostShards);
  for (std::size_t i = 2; i < end; ++i) {
    // The last ones are the kept files.
    const std::size_t left = end - i;
    FuzzedShard shard{.name = left <= kept.size() ? kept[kept.size() - left] : ShardName(i - 2),
                      .data = pattern_.data() + (i - 2) * kShift};
    std::string json(sections[i]);
    std::string laid_out = json;
    shard.data_bytes = std::min(LayOutTensors(laid_out, kMostData), kMostData);
    if (!plan_.headers_as_are) {
      std::vector<std::uint32_t> sums;
      for (std::uint64_t at = 0; at < shard.data_bytes; at += kChecksumBlock) {
        sums.push_back(Crc32c(
            std::as_bytes(std::span(shard.data + at, std::min<std::uint64_t>(kChecksumBlock, shard.data_bytes - at)))));
      }
      json = std::move(laid_out);
      FillSums(json, sums);
    }
    shard.header = HeaderBytes(json);
    const UniqueFd fd = Create(path_ + "/" + shard.name);
    Append(fd, shard.header);
    Append(fd, {shard.data, shard.data_bytes});
    shards_.push_back(std::move(shard));
  }
}

void FuzzedFolder::Damage() {
  if (shards_.empty() || (!plan_.flip && !plan_.cut)) return;
  FuzzedShard& shard = shards_[plan_.place % shards_.size()];
  const std::uint64_t at = plan_.place / shards_.size() % shard.file_bytes();
  const std::string path = path_ + "/" + shard.name;
  if (plan_.cut) {
    Require(::truncate(path.c_str(), static_cast<off_t>(at)) == 0, "the fuzzer can cut its files");
    shard.cut = true;
    return;
  }
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  char byte = 0;
  Require(::pread(fd.get(), &byte, 1, static_cast<off_t>(at)) == 1, "the fuzzer can read its files");
  byte = static_cast<char>(byte ^ 1);
  Require(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)) == 1, "the fuzzer can write its files");
  shard.flipped = at;
}

}  // namespace cairn
