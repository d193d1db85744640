#pragma once

// What the sources of the GPU's kernels share. It includes nothing.

#ifdef __CUDACC_RTC__
#define CAIRN_KERNEL __device__ __forceinline__
// An unrolled loop of divisions would make the PTX several times as long, and no faster.
#define CAIRN_KEEP_LOOP _Pragma("unroll 1")
#else
#define CAIRN_KERNEL inline
#define CAIRN_KEEP_LOOP
#endif

namespace cairn::kernels {

using U8 = unsigned char;
using U16 = unsigned short;
using U32 = unsigned int;
using U64 = unsigned long long;

// Enumerators, because NVRTC would put constants into the PTX.
enum : U32 {
  kWord = 16,
  kThreadsPerBlock = 256,
};

struct alignas(16) Word {
  U64 low;
  U64 high;
};

/// The piece of the table that holds the byte.
template <typename Table>
CAIRN_KERNEL U32 FindPiece(const Table& table, U64 offset) {
  U32 low = 0;
  U32 high = table.pieces - 1;
  CAIRN_KEEP_LOOP
  while (low < high) {
    const U32 middle = (low + high) / 2;
    if (offset < table.ends[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

#ifdef __CUDACC_RTC__
struct GlobalMemory {
  template <typename Unit>
  __device__ __forceinline__ Unit Load(U64 address) const {
    return *reinterpret_cast<const Unit*>(address);
  }
  template <typename Unit>
  __device__ __forceinline__ void Store(U64 address, Unit unit) const {
    *reinterpret_cast<Unit*>(address) = unit;
  }
};
#endif

}  // namespace cairn::kernels
