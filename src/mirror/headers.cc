#include "mirror/headers.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "format/shard_header.h"

namespace cairn {
namespace {

// Mostly all of a header.
constexpr std::uint64_t kFirst = 256U << 10;

// More than this are read by one call, but no more than so many by each.
constexpr std::size_t kFew = 8;
constexpr std::size_t kAtOnce = 128;

std::string ObjectName(const WantedHeader& one) {
  return Bucket::FolderName(one.checkpoint->info) + "/" + one.shard->file;
}

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Whole files, which are shorter than kFirst.
void ReadShort(const Bucket& bucket, std::span<WantedHeader* const> files) {
  std::vector<Bucket::Range> ranges;
  for (const WantedHeader* one : files) ranges.push_back({.name = ObjectName(*one), .length = one->shard->length});
  Result<std::vector<Result<std::string>>> read = bucket.GetWhole(ranges);
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i]->status = read.ok() ? (*read)[i].status() : read.status();
    if (files[i]->status.ok()) files[i]->bytes = *std::move((*read)[i]);
  }
}

/// The first kFirst bytes of longer files. They come in any order, so each is known by the digest of its header. What
/// is not found among them is left as it is.
void ReadStarts(const Bucket& bucket, std::span<WantedHeader* const> files) {
  std::vector<Bucket::Range> ranges;
  std::multimap<std::uint32_t, WantedHeader*> by_digest;
  for (WantedHeader* one : files) {
    ranges.push_back({.name = ObjectName(*one), .length = kFirst});
    by_digest.emplace(one->shard->header_digest, one);
  }
  const Result<std::string> read = bucket.GetStarts(ranges, kFirst);
  for (WantedHeader* one : files) one->status = read.status();
  if (!read.ok()) return;
  for (std::size_t at = 0; at + kFirst <= read->size(); at += kFirst) {
    const std::string_view start = std::string_view(*read).substr(at, kFirst);
    const Result<std::uint64_t> length = ShardHeaderLength(AsBytes(start.substr(0, kLengthWord)), kFirst, {});
    if (!length.ok()) continue;  // Also of one that is longer.
    const auto [begin, end] = by_digest.equal_range(Crc32c(AsBytes(start.substr(0, *length))));
    for (auto one = begin; one != end; ++one) one->second->bytes = start;
  }
}

/// Of many files, what few calls can read.
void ReadMany(const Bucket& bucket, std::span<WantedHeader> wanted) {
  std::vector<WantedHeader*> files;
  for (WantedHeader& one : wanted) files.push_back(&one);
  const auto longer =
      std::partition(files.begin(), files.end(), [](const auto* one) { return one->shard->length < kFirst; });
  const std::span<WantedHeader* const> shorter(files.begin(), longer);
  std::span<WantedHeader* const> rest(longer, files.end());
  if (shorter.size() > kFew) ReadShort(bucket, shorter);
  while (rest.size() > kFew) {
    const std::size_t count = std::min(rest.size(), kAtOnce);
    ReadStarts(bucket, rest.first(count));
    rest = rest.subspan(count);
  }
}

/// Reads on until each that has not failed has so many bytes.
void ReadUpTo(const Bucket& bucket, std::span<WantedHeader> wanted,
              const std::function<Result<std::uint64_t>(const WantedHeader&)>& length) {
  std::vector<WantedHeader*> reading;
  std::vector<Bucket::Range> ranges;
  for (WantedHeader& one : wanted) {
    if (!one.status.ok()) continue;
    const Result<std::uint64_t> end = length(one);
    one.status = end.status();
    if (!end.ok() || *end <= one.bytes.size()) continue;
    reading.push_back(&one);
    ranges.push_back({.name = ObjectName(one), .offset = one.bytes.size(), .length = *end - one.bytes.size()});
  }
  const std::vector<Result<std::string>> read = bucket.Get(ranges);
  for (std::size_t i = 0; i < read.size(); ++i) {
    reading[i]->status = read[i].status();
    if (read[i].ok()) reading[i]->bytes += *read[i];
  }
}

Result<std::uint64_t> HeaderLength(const WantedHeader& one) {
  return ShardHeaderLength(AsBytes(one.bytes).first(std::min(kLengthWord, one.bytes.size())), one.shard->length,
                           one.file->name);
}

Status Decode(WantedHeader& one) {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t length, HeaderLength(one));
  one.bytes.resize(length);
  CAIRN_RETURN_IF_ERROR(DecodeHeaderOf(*one.checkpoint, *one.shard, AsBytes(one.bytes), *one.file));
  one.file->digest = one.shard->header_digest;
  one.file->has_header = true;
  return Status::Ok();
}

Status ReadLongValues(const Bucket& bucket, WantedHeader& one) {
  const ShardHeader& header = one.file->header;
  std::vector<Bucket::Range> ranges;
  for (const LongValue& value : header.long_values) {
    ranges.push_back(
        {.name = ObjectName(one), .offset = header.data_begin + value.begin, .length = value.end - value.begin});
  }
  const std::vector<Result<std::string>> read = bucket.Get(ranges);
  for (std::size_t i = 0; i < read.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(read[i].status());
    CAIRN_RETURN_IF_ERROR(AddLongValue(*one.file, header.long_values[i], AsBytes(*read[i])));
  }
  return Status::Ok();
}

}  // namespace

void FetchHeaders(const Bucket& bucket, std::span<WantedHeader> wanted) {
  for (WantedHeader& one : wanted) {
    one.file->name = one.checkpoint->info.path + "/" + one.shard->file;
    one.file->length = one.shard->length;
  }
  ReadMany(bucket, wanted);
  ReadUpTo(bucket, wanted, [](const WantedHeader& one) { return std::min(one.shard->length, kFirst); });
  ReadUpTo(bucket, wanted, HeaderLength);
  for (WantedHeader& one : wanted) {
    if (one.status.ok()) one.status = Decode(one);
    if (one.status.ok() && one.file->with_values) one.status = ReadLongValues(bucket, one);
  }
}

}  // namespace cairn
