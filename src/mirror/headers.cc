#include "mirror/headers.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace cairn {
namespace {

// Mostly all of a header.
constexpr std::uint64_t kFirst = 256U << 10;

std::string ObjectName(const WantedHeader& one) {
  return Bucket::FolderName(one.checkpoint->info) + "/" + one.shard->file;
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

Bytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

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
  ReadUpTo(bucket, wanted, [](const WantedHeader& one) { return std::min(one.shard->length, kFirst); });
  ReadUpTo(bucket, wanted, HeaderLength);
  for (WantedHeader& one : wanted) {
    if (one.status.ok()) one.status = Decode(one);
    if (one.status.ok() && one.file->with_values) one.status = ReadLongValues(bucket, one);
  }
}

}  // namespace cairn
