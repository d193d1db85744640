#pragma once

// The kernel that computes CRC32C where the tensors lie, in the GPU's memory. Compiled twice, as copy_kernels.h is,
// into a module of its own: whoever does not ask for it does not depend on it.
//
// A CRC is linear: that of a block is the exclusive or of its slices', each multiplied by x^8 for every byte that
// follows it in the block. So each thread sums a slice and moves it to its place, and the host, which gets a number for
// each slice, needs neither an order nor arithmetic. The state before the first byte of a block, all ones, is the first
// slice's.

#include "device/kernel_memory.h"

namespace cairn::kernels {

enum : U32 {
  kSumBlock = 1U << 20,
  /// Short enough for some thousand threads in a chunk, long enough that moving a sum costs little beside summing up.
  /// An estimate, not measured.
  kSumSlice = 2048,
  kSumPolynomial = 0x82f63b78,  // Reflected: the highest bit is x^0.
  /// As many as the 4096 bytes of a kernel's parameters hold.
  kMaxSummed = 338,
};

/// Contiguous pieces of tensors, which follow each other in a batch of `total` bytes. None is empty.
struct SumTable {
  /// Where the first slice's number goes; the others follow.
  U64 slices;
  /// Offsets in the batch, which begins at a block's begin: of the first piece, and of the batch's end.
  U32 begin;
  U32 total;
  U32 pieces;
  U32 unused;
  U64 tensors[kMaxSummed];
  /// Where each piece ends in the batch.
  U32 ends[kMaxSummed];
};

static_assert(sizeof(SumTable) <= 4096, "a kernel's parameters are too large");

/// Slices that the table's bytes touch. They lie at multiples of kSumSlice in the batch.
CAIRN_KERNEL U32 SlicesOf(const SumTable& table) {
  return (table.ends[table.pieces - 1] - 1) / kSumSlice - table.begin / kSumSlice + 1;
}

struct SumConstants {
  /// What a byte does to the state when `zeros` others follow it: by [zeros][byte].
  U32 bytes[4][256];
  /// x^8 to the power of 2^n.
  U32 powers[20];
};

CAIRN_KERNEL constexpr U32 MultiplySums(U32 a, U32 b) {
  U32 product = 0;
  CAIRN_KEEP_LOOP
  for (; a != 0; a <<= 1) {
    product ^= (a >> 31) != 0 ? b : 0;
    b = (b >> 1) ^ ((b & 1) != 0 ? U32{kSumPolynomial} : 0);
  }
  return product;
}

CAIRN_KERNEL constexpr SumConstants MakeSumConstants() {
  SumConstants made{};
  for (U32 byte = 0; byte < 256; ++byte) {
    U32 state = byte;
    for (U32 bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? U32{kSumPolynomial} : 0);
    made.bytes[0][byte] = state;
  }
  for (U32 zeros = 1; zeros < 4; ++zeros) {
    for (U32 byte = 0; byte < 256; ++byte) {
      const U32 before = made.bytes[zeros - 1][byte];
      made.bytes[zeros][byte] = (before >> 8) ^ made.bytes[0][before & 255];
    }
  }
  made.powers[0] = 1U << 23;
  for (U32 n = 1; n < 20; ++n) made.powers[n] = MultiplySums(made.powers[n - 1], made.powers[n - 1]);
  return made;
}

#ifdef __CUDACC_RTC__
// With a name of its own, because the compiler's would change with the source.
extern "C" {
extern __device__ const SumConstants kSumConstants;
__device__ const SumConstants kSumConstants = MakeSumConstants();
}
#else
inline constexpr SumConstants kSumConstants = MakeSumConstants();
#endif

/// The state after `bytes` zeros, less than 2^20.
CAIRN_KERNEL U32 SkipSum(U32 state, U32 bytes) {
  CAIRN_KEEP_LOOP
  for (U32 n = 0; bytes != 0; ++n, bytes >>= 1) {
    if ((bytes & 1) != 0) state = MultiplySums(kSumConstants.powers[n], state);
  }
  return state;
}

CAIRN_KERNEL U32 SumByte(U32 state, U8 byte) { return (state >> 8) ^ kSumConstants.bytes[0][(state ^ byte) & 255]; }

CAIRN_KERNEL U32 SumFour(U32 state, U32 four) {
  state ^= four;
  return kSumConstants.bytes[3][state & 255] ^ kSumConstants.bytes[2][(state >> 8) & 255] ^
         kSumConstants.bytes[1][(state >> 16) & 255] ^ kSumConstants.bytes[0][state >> 24];
}

/// The state after `left` more bytes, which lie there.
template <typename Memory>
CAIRN_KERNEL U32 SumRun(U32 state, U64 address, U32 left, Memory& access) {
  CAIRN_KEEP_LOOP
  while (left != 0) {
    U32 summed = 1;
    if (address % kWord == 0 && left >= kWord) {
      const Word word = access.template Load<Word>(address);
      state = SumFour(state, static_cast<U32>(word.low));
      state = SumFour(state, static_cast<U32>(word.low >> 32));
      state = SumFour(state, static_cast<U32>(word.high));
      state = SumFour(state, static_cast<U32>(word.high >> 32));
      summed = kWord;
    } else if (address % 4 == 0 && left >= 4) {
      state = SumFour(state, access.template Load<U32>(address));
      summed = 4;
    } else {
      state = SumByte(state, access.template Load<U8>(address));
    }
    address += summed;
    left -= summed;
  }
  return state;
}

/// The number for the batch's bytes [from, end), which are of one block.
template <typename Memory>
CAIRN_KERNEL U32 SumSlice(const SumTable& table, U32 from, U32 end, Memory& access) {
  U32 state = from % kSumBlock == 0 ? ~U32{0} : 0;
  const U32 block_end = from - from % kSumBlock + kSumBlock;
  const U32 last = block_end < table.total ? block_end : table.total;
  CAIRN_KEEP_LOOP
  for (U32 piece = FindPiece(table, from); from < end; ++piece) {
    const U32 piece_begin = piece == 0 ? table.begin : table.ends[piece - 1];
    const U32 until = table.ends[piece] < end ? table.ends[piece] : end;
    state = SumRun(state, table.tensors[piece] + (from - piece_begin), until - from, access);
    from = until;
  }
  return SkipSum(state, last - end);
}

/// One thread's slices.
template <typename Memory>
CAIRN_KERNEL void SumSlicesThread(const SumTable& table, U64 thread, U64 threads, Memory& access) {
  const U32 slices = SlicesOf(table);
  const U32 table_end = table.ends[table.pieces - 1];
  CAIRN_KEEP_LOOP
  for (U64 index = thread; index < slices; index += threads) {
    const U32 slice = (table.begin / kSumSlice + static_cast<U32>(index)) * kSumSlice;
    const U32 from = slice < table.begin ? table.begin : slice;
    const U32 end = slice + kSumSlice < table_end ? slice + kSumSlice : table_end;
    access.Store(table.slices + index * sizeof(U32), SumSlice(table, from, end, access));
  }
}

#ifdef __CUDACC_RTC__
extern "C" __global__ void __launch_bounds__(kThreadsPerBlock) cairn_sum_slices(const SumTable table) {
  GlobalMemory access;
  SumSlicesThread(table, static_cast<U64>(blockIdx.x) * blockDim.x + threadIdx.x,
                  static_cast<U64>(gridDim.x) * blockDim.x, access);
}
#endif

}  // namespace cairn::kernels
