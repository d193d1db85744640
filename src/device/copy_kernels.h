#pragma once

// The kernels that copy between tensors of any strides and contiguous memory. One source for two compilers: NVRTC makes
// copy_kernels.ptx of it (scripts/make-ptx), which CudaKernels loads; the host's compiler makes the tests' harness of
// it, which runs all threads of a grid and checks every access. So it calls nothing.
//
// The memory is the host's, and the way there is PCIe, which likes wide accesses. So a thread makes or reads one whole
// word of 16 bytes of the memory at a time, out of units of the tensor. Only the words at both ends are partial.

#include "device/kernel_memory.h"

namespace cairn::kernels {

// Enumerators, because NVRTC would put constants into the PTX.
enum : U32 {
  /// Enough for every tensor: none has more than 2^62 bytes, and an outer dimension has at least 2 rows.
  kMaxDimensions = 62,
  /// As many as the 4096 bytes of a kernel's parameters hold.
  kMaxPieces = 339,
};

/// Rows of a tensor's logical bytes, and of memory: what a CopyPiece says, in numbers.
struct StridedCopy {
  struct Dimension {
    U64 size;
    /// In bytes, modulo 2^64.
    U64 stride;
  };
  /// The tensor's address, and the length of its contiguous rows: all of a contiguous tensor's bytes.
  U64 tensor;
  U64 row_bytes;
  /// The logical bytes of the first row are [begin, begin + width).
  U64 begin;
  U64 width;
  U64 rows;
  U64 tensor_pitch;
  U64 memory;
  U64 memory_pitch;
  /// Words of memory that a row may touch.
  U64 words;
  U32 into_tensor;
  /// What the tensor is read or written by: the largest power of two, up to kWord, that divides all addresses, lengths,
  /// pitches and strides here.
  U32 unit;
  U32 dimensions;
  U32 unused;
  /// Outermost first.
  Dimension outer[kMaxDimensions];
};

/// Contiguous pieces of tensors that lie back to back in memory. None is empty.
struct PieceTable {
  /// Where the first piece begins.
  U64 memory;
  U32 into_tensor;
  U32 pieces;
  U64 tensors[kMaxPieces];
  /// Where each piece ends, counted from `memory`.
  U32 ends[kMaxPieces];
};

static_assert(sizeof(StridedCopy) == 1080 && sizeof(PieceTable) <= 4096, "a kernel's parameters are too large");

/// The words that all pieces touch.
CAIRN_KERNEL U64 WordsOf(const PieceTable& table) {
  return (table.memory % kWord + table.ends[table.pieces - 1] + kWord - 1) / kWord;
}

/// A word in the making, or being taken apart. Offsets are multiples of the unit's size.
template <typename Unit>
CAIRN_KERNEL void Put(Word& word, U32 offset, Unit unit) {
  const U64 bits = static_cast<U64>(unit) << (offset % 8 * 8);
  if (offset < 8) {
    word.low |= bits;
  } else {
    word.high |= bits;
  }
}
template <>
CAIRN_KERNEL void Put<Word>(Word& word, U32 /*offset*/, Word unit) {
  word = unit;
}

template <typename Unit>
CAIRN_KERNEL Unit Take(const Word& word, U32 offset) {
  return static_cast<Unit>((offset < 8 ? word.low : word.high) >> (offset % 8 * 8));
}
template <>
CAIRN_KERNEL Word Take<Word>(const Word& word, U32 /*offset*/) {
  return word;
}

/// Moves one unit: from the tensor to memory, or back. With a whole word, memory's side is `word` instead.
template <typename Unit, typename Memory>
CAIRN_KERNEL void Move(Memory& access, bool into_tensor, bool whole, U64 tensor, U64 memory, Word& word) {
  const U32 offset = static_cast<U32>(memory % kWord);
  if (into_tensor) {
    access.Store(tensor, whole ? Take<Unit>(word, offset) : access.template Load<Unit>(memory));
  } else {
    const Unit unit = access.template Load<Unit>(tensor);
    if (whole) {
      Put(word, offset, unit);
    } else {
      access.Store(memory, unit);
    }
  }
}

/// Where a logical byte lies, and how many follow it in its row.
struct Place {
  U64 address;
  U64 left;
  /// Rows that follow it in the innermost dimension.
  U64 rows_left;
};

/// A GPU divides 64-bit numbers by a long subroutine, and most are small.
CAIRN_KERNEL U64 Divide(U64 number, U64 by) {
  if (((number | by) >> 32) == 0) return static_cast<U32>(number) / static_cast<U32>(by);
  return number / by;
}

CAIRN_KERNEL Place Find(const StridedCopy& copy, U64 logical) {
  U64 row = Divide(logical, copy.row_bytes);
  const U64 skip = logical - row * copy.row_bytes;
  Place place{copy.tensor + skip, copy.row_bytes - skip, 0};
  CAIRN_KEEP_LOOP
  for (U32 d = copy.dimensions; d-- > 0;) {
    const U64 outer = Divide(row, copy.outer[d].size);
    const U64 index = row - outer * copy.outer[d].size;
    place.address += index * copy.outer[d].stride;
    if (d + 1 == copy.dimensions) place.rows_left = copy.outer[d].size - 1 - index;
    row = outer;
  }
  return place;
}

/// Copies a word of memory, the index-th of all rows' words.
template <typename Unit, typename Memory>
CAIRN_KERNEL void CopyWord(const StridedCopy& copy, U64 index, Memory& access) {
  const U64 row = copy.rows == 1 ? 0 : Divide(index, copy.words);
  const U64 row_begin = copy.memory + row * copy.memory_pitch;
  const U64 row_end = row_begin + copy.width;
  const U64 at = row_begin - row_begin % kWord + (index - row * copy.words) * kWord;
  U64 from = at < row_begin ? row_begin : at;
  const U64 end = at + kWord < row_end ? at + kWord : row_end;
  if (from >= end) return;
  const bool into_tensor = copy.into_tensor != 0;
  const bool whole = end - from == kWord;
  Word word{0, 0};
  if (whole && into_tensor) word = access.template Load<Word>(at);
  U64 logical = copy.begin + row * copy.tensor_pitch + (from - row_begin);
  Place place{0, 0, 0};
  CAIRN_KEEP_LOOP
  for (; from < end; from += sizeof(Unit), logical += sizeof(Unit)) {
    // Divisions are slow: only a row at the end of the innermost dimension needs them.
    if (place.left == 0) {
      if (place.rows_left == 0) {
        place = Find(copy, logical);
      } else {
        --place.rows_left;
        place.address += copy.outer[copy.dimensions - 1].stride - copy.row_bytes;
        place.left = copy.row_bytes;
      }
    }
    Move<Unit>(access, into_tensor, whole, place.address, from, word);
    place.address += sizeof(Unit);
    place.left -= sizeof(Unit);
  }
  if (whole && !into_tensor) access.Store(at, word);
}

template <typename Unit, typename Memory>
CAIRN_KERNEL void CopyWords(const StridedCopy& copy, U64 thread, U64 threads, Memory& access) {
  const U64 words = copy.rows * copy.words;
  CAIRN_KEEP_LOOP
  for (U64 index = thread; index < words; index += threads) CopyWord<Unit>(copy, index, access);
}

/// One thread's part of the copy. `access` loads and stores integers of at most 8 bytes and Words, at addresses that
/// their size divides.
template <typename Memory>
CAIRN_KERNEL void CopyStridedThread(const StridedCopy& copy, U64 thread, U64 threads, Memory& access) {
  switch (copy.unit) {
    case 16:
      return CopyWords<Word>(copy, thread, threads, access);
    case 8:
      return CopyWords<U64>(copy, thread, threads, access);
    case 4:
      return CopyWords<U32>(copy, thread, threads, access);
    case 2:
      return CopyWords<U16>(copy, thread, threads, access);
    default:
      return CopyWords<U8>(copy, thread, threads, access);
  }
}

/// Moves the widest unit that both addresses and `left` bytes permit. Returns its size.
template <typename Memory>
CAIRN_KERNEL U32 MoveWidest(Memory& access, bool into_tensor, bool whole, U64 tensor, U64 memory, U64 left,
                            Word& word) {
  const U64 places = tensor | memory;
  if (places % 16 == 0 && left >= 16) {
    Move<Word>(access, into_tensor, whole, tensor, memory, word);
    return 16;
  }
  if (places % 8 == 0 && left >= 8) {
    Move<U64>(access, into_tensor, whole, tensor, memory, word);
    return 8;
  }
  if (places % 4 == 0 && left >= 4) {
    Move<U32>(access, into_tensor, whole, tensor, memory, word);
    return 4;
  }
  if (places % 2 == 0 && left >= 2) {
    Move<U16>(access, into_tensor, whole, tensor, memory, word);
    return 2;
  }
  Move<U8>(access, into_tensor, whole, tensor, memory, word);
  return 1;
}

/// One thread's part of the pieces.
template <typename Memory>
CAIRN_KERNEL void CopyPiecesThread(const PieceTable& table, U64 thread, U64 threads, Memory& access) {
  const U64 words = WordsOf(table);
  const U64 all_end = table.memory + table.ends[table.pieces - 1];
  const bool into_tensor = table.into_tensor != 0;
  CAIRN_KEEP_LOOP
  for (U64 index = thread; index < words; index += threads) {
    const U64 at = table.memory - table.memory % kWord + index * kWord;
    U64 from = at < table.memory ? table.memory : at;
    const U64 end = at + kWord < all_end ? at + kWord : all_end;
    const bool whole = end - from == kWord;
    Word word{0, 0};
    if (whole && into_tensor) word = access.template Load<Word>(at);
    CAIRN_KEEP_LOOP
    for (U32 piece = FindPiece(table, from - table.memory); from < end; ++piece) {
      const U64 piece_begin = table.memory + (piece == 0 ? 0 : table.ends[piece - 1]);
      const U64 piece_end = table.memory + table.ends[piece];
      const U64 until = piece_end < end ? piece_end : end;
      U64 tensor = table.tensors[piece] + (from - piece_begin);
      CAIRN_KEEP_LOOP
      while (from < until) {
        const U32 moved = MoveWidest(access, into_tensor, whole, tensor, from, until - from, word);
        from += moved;
        tensor += moved;
      }
    }
    if (whole && !into_tensor) access.Store(at, word);
  }
}

#ifdef __CUDACC_RTC__
extern "C" __global__ void __launch_bounds__(kThreadsPerBlock) cairn_copy_strided(const StridedCopy copy) {
  GlobalMemory access;
  CopyStridedThread(copy, static_cast<U64>(blockIdx.x) * blockDim.x + threadIdx.x,
                    static_cast<U64>(gridDim.x) * blockDim.x, access);
}

extern "C" __global__ void __launch_bounds__(kThreadsPerBlock) cairn_copy_pieces(const PieceTable table) {
  GlobalMemory access;
  CopyPiecesThread(table, static_cast<U64>(blockIdx.x) * blockDim.x + threadIdx.x,
                   static_cast<U64>(gridDim.x) * blockDim.x, access);
}
#endif

}  // namespace cairn::kernels
