// Copies. Each checks its memory twice: when it is enqueued, and when it runs.
#include <cstring>
#include <iterator>
#include <utility>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

struct Ends {
  Place to = Place::kPageable;
  Place from = Place::kPageable;

  friend bool operator==(const Ends&, const Ends&) = default;
  [[nodiscard]] bool pageable() const { return to == Place::kPageable || from == Place::kPageable; }
  [[nodiscard]] bool cut() const { return to == Place::kCut || from == Place::kCut; }
};

struct Piece {
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  std::size_t bytes = 0;
  Ends ends;
};

Ends EndsOf(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return {.to = PlaceOf(to, bytes), .from = PlaceOf(from, bytes)};
}

bool TargetsOverlap(const std::vector<Piece>& pieces) {
  std::map<CUdeviceptr, std::size_t> targets;
  for (const Piece& piece : pieces) {
    const auto [at, fresh] = targets.try_emplace(piece.to, piece.bytes);
    if (!fresh || (std::next(at) != targets.end() && piece.to + piece.bytes > std::next(at)->first)) return true;
    if (at != targets.begin() && std::prev(at)->first + std::prev(at)->second > piece.to) return true;
  }
  return false;
}

// What both ends were at the call, they must still be: not freed, not unregistered. No memory goes away while this
// runs.
CUresult Run(const std::vector<Piece>& pieces) {
  std::vector<CUdeviceptr> addresses;
  {
    const Lock lock(driver().mutex);
    for (const Piece& piece : pieces) {
      const Ends now = EndsOf(piece.to, piece.from, piece.bytes);
      if (now != piece.ends || now.cut() || now.to == Place::kFreed || now.from == Place::kFreed) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      addresses.push_back(piece.to);
      addresses.push_back(piece.from);
    }
  }
  const GpuAccess access(addresses);
  // In reverse: no order is guaranteed within a batch.
  const std::size_t left_out = Broken("copies") ? 1 : 0;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    std::memcpy(reinterpret_cast<void*>(piece->to), reinterpret_cast<const void*>(piece->from),
                piece->bytes - left_out);
  }
  return CUDA_SUCCESS;
}

// Pageable memory is staged: the call returns only once the copy was made.
CUresult AwaitIfPageable(Call& call, FakeStream& stream, const Ends& ends) {
  if (!ends.pageable() || stream.capture != nullptr) return CUDA_SUCCESS;
  Misuse(std::string(call.name()) + ": pageable host memory, so the caller waits for the copy");
  return AwaitStream(call, stream);
}

}  // namespace

CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle) {
  FAKE_CUDA_ENTER("cuMemcpyAsync", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  const Piece piece{to, from, bytes, EndsOf(to, from, bytes)};
  if (bytes == 0) return CUDA_SUCCESS;
  if (const CUresult lost = Enqueue(call, *stream, {.run = [piece] { return Run({piece}); }}); lost != CUDA_SUCCESS) {
    return lost;
  }
  return AwaitIfPageable(call, *stream, piece.ends);
}

// The signature of CUDA 12.8. That of 13.0, without `failed`, is not supported.
CUresult MemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                          CUmemcpyAttributes* attributes, std::size_t* first, std::size_t attribute_count,
                          std::size_t* failed, CUstream handle) {
  FAKE_CUDA_ENTER("cuMemcpyBatchAsync", kContext);
  if (failed != nullptr) *failed = SIZE_MAX;
  if (handle == nullptr || handle == kLegacyStream || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute_count != 1 || *first != 0 || attributes->flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE ||
      attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  if (stream->capture != nullptr) {  // There is no such node of a graph.
    Invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < count; ++i) {
    pieces.push_back({to[i], from[i], sizes[i], EndsOf(to[i], from[i], sizes[i])});
    if (sizes[i] != 0 && !pieces.back().ends.pageable()) continue;
    if (sizes[i] != 0) Misuse("cuMemcpyBatchAsync: pageable host memory, which a batch in stream order cannot take");
    if (failed != nullptr) *failed = i;
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (TargetsOverlap(pieces)) Misuse("cuMemcpyBatchAsync: two copies write the same bytes, in no order");
  return Enqueue(call, *stream,
                 {.run = [pieces = std::move(pieces)] { return Run(pieces); }, .weight = static_cast<int>(count)});
}

CUresult Memcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream handle) {
  FAKE_CUDA_ENTER("cuMemcpy2DAsync", kContext);
  const CUDA_MEMCPY2D copy = *given;
  if (copy.srcPitch < copy.WidthInBytes || copy.dstPitch < copy.WidthInBytes || copy.srcPitch > kMaxPitch ||
      copy.dstPitch > kMaxPitch || copy.WidthInBytes == 0 || copy.Height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (copy.srcXInBytes != 0 || copy.srcY != 0 || copy.dstXInBytes != 0 || copy.dstY != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool from_gpu = copy.srcMemoryType == CU_MEMORYTYPE_DEVICE;
  const bool to_gpu = copy.dstMemoryType == CU_MEMORYTYPE_DEVICE;
  if ((!from_gpu && copy.srcMemoryType != CU_MEMORYTYPE_HOST) ||
      (!to_gpu && copy.dstMemoryType != CU_MEMORYTYPE_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  const CUdeviceptr from = from_gpu ? copy.srcDevice : reinterpret_cast<CUdeviceptr>(copy.srcHost);
  const CUdeviceptr to = to_gpu ? copy.dstDevice : reinterpret_cast<CUdeviceptr>(copy.dstHost);
  std::vector<Piece> rows;
  for (std::size_t row = 0; row < copy.Height; ++row) {
    const CUdeviceptr row_to = to + row * copy.dstPitch;
    const CUdeviceptr row_from = from + row * copy.srcPitch;
    rows.push_back({row_to, row_from, copy.WidthInBytes, EndsOf(row_to, row_from, copy.WidthInBytes)});
    const Ends& ends = rows.back().ends;
    // What is named as the host's must not be the GPU's. The other mistake shows when the copy runs.
    if ((!to_gpu && ends.to == Place::kGpu) || (!from_gpu && ends.from == Place::kGpu)) return CUDA_ERROR_INVALID_VALUE;
    if ((to_gpu && ends.to != Place::kGpu) || (from_gpu && ends.from != Place::kGpu)) rows.back().ends.to = Place::kCut;
  }
  Ends all{.to = to_gpu ? Place::kGpu : PlaceOf(to, 1), .from = from_gpu ? Place::kGpu : PlaceOf(from, 1)};
  const CUresult lost = Enqueue(call, *stream, {.run = [rows = std::move(rows)] { return Run(rows); }});
  if (lost != CUDA_SUCCESS) return lost;
  return AwaitIfPageable(call, *stream, all);
}

CUresult MemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream handle) {
  FAKE_CUDA_ENTER("cuMemsetD8Async", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  return Enqueue(call, *stream, {.run = [=] {
                   {
                     const Lock lock(driver().mutex);
                     if (PlaceOf(at, bytes) != Place::kGpu) return CUDA_ERROR_ILLEGAL_ADDRESS;
                   }
                   const GpuAccess access({at});
                   std::memset(reinterpret_cast<void*>(at), value, bytes);
                   return CUDA_SUCCESS;
                 }});
}

}  // namespace cairn::fake_cuda
