#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <limits>

namespace cairn {

std::uint32_t Crc32c(Bytes bytes, std::uint32_t crc) {
  crc = ~crc;
  while (!bytes.empty()) {
    const auto n = std::min<std::size_t>(bytes.size(), std::numeric_limits<int>::max());
    // ISA-L only reads, but its prototype takes a mutable pointer.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(n), crc);
    bytes = bytes.subspan(n);
  }
  return ~crc;
}

}  // namespace cairn
