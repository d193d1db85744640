#include <memory>

#include "base/status_macros.h"
#include "bench/gpu/commands.h"
#include "tune/gpu_copies.h"

namespace cairn::bench {

Status MeasureLink(const LinkOptions& options) {
  for (int lanes = 1; lanes <= 4; ++lanes) {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<GpuLink> link, GpuLink::Open(0, lanes, options.bytes));
    CAIRN_ASSIGN_OR_RETURN(const bool intact, link->Intact());
    CAIRN_ASSIGN_OR_RETURN(const double staging, link->Staging(options.time));
    PrintLine({{"what", "memory"},
               {"lanes", lanes},
               {"intact", intact},
               {"pin_seconds_per_gib", link->pin_seconds_per_byte() * static_cast<double>(1ULL << 30)},
               {"staging", staging}});
    for (std::uint64_t chunk = 1U << 20; chunk <= 16U << 20 && chunk <= options.bytes; chunk *= 2) {
      for (int pair = 0; pair < options.pairs; ++pair) {
        CAIRN_ASSIGN_OR_RETURN(const LinkRate single, link->Single(options.time));
        CAIRN_ASSIGN_OR_RETURN(const LinkRate ours, link->Chunks(chunk, options.time));
        PrintLine({{"what", "copies"},
                   {"lanes", lanes},
                   {"chunk", chunk},
                   {"pair", pair},
                   {"single_to_host", single.to_host},
                   {"single_to_device", single.to_device},
                   {"to_host", ours.to_host},
                   {"to_device", ours.to_device}});
      }
    }
  }
  return Status::Ok();
}

}  // namespace cairn::bench
