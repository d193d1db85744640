#pragma once

// Header-only. Without the header or a profiler, a range costs nothing.
#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define CAIRN_HAS_NVTX 1
#include <nvtx3/nvToolsExt.h>
#endif
#endif

namespace cairn {

/// A named range on the calling thread's row in Nsight Systems, from construction to destruction.
class NvtxRange {
 public:
#if defined(CAIRN_HAS_NVTX)
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
#else
  explicit NvtxRange(const char* /*name*/) {}
#endif
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace cairn
