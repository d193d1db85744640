#include "mirror/blocks.h"

#include <algorithm>
#include <string_view>

#include "base/status_macros.h"

namespace cairn {
namespace {

std::string_view TensorAt(const ShardHeader& header, std::uint64_t begin) {
  for (const ShardTensor& tensor : header.tensors) {
    if (tensor.end > begin) return tensor.name;
  }
  return {};
}

}  // namespace

Status VerifyBlocks(const ShardFile& file, std::uint64_t offset, Bytes piece) {
  if (!file.header.checksums) return Status::Ok();
  for (std::uint64_t at = 0; at < piece.size(); at += kChecksumBlock) {
    const Bytes block = piece.subspan(at, std::min<std::uint64_t>(kChecksumBlock, piece.size() - at));
    const std::uint64_t begin = offset - file.header.data_begin + at;
    CAIRN_RETURN_IF_ERROR(VerifyBlock(file, begin, block, TensorAt(file.header, begin)));
  }
  return Status::Ok();
}

}  // namespace cairn
