// Streams' handles, and what the capture of a stream into a graph forbids.
#include <algorithm>
#include <utility>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

std::vector<std::shared_ptr<Capture>> Captures() {
  std::vector<std::shared_ptr<Capture>> found;
  for (auto& [gpu, context] : driver().contexts) {
    for (FakeStream* stream : context.streams) {
      if (stream->capture != nullptr && stream->capture->origin == stream) found.push_back(stream->capture);
    }
  }
  return found;
}

// The captures that the legacy stream would have to wait for.
std::vector<std::shared_ptr<Capture>> BlockingCaptures(const FakeStream& stream) {
  std::vector<std::shared_ptr<Capture>> found;
  if (&stream != stream.context->legacy) return found;
  for (FakeStream* other : stream.context->streams) {
    if (other->blocking && other->capture != nullptr) found.push_back(other->capture);
  }
  return found;
}

}  // namespace

FakeStream* FindStream(CUstream handle) {
  Context& context = *current_contexts.back();
  if (handle == nullptr || handle == kLegacyStream) return context.legacy;
  if (handle == kPerThreadStream) {
    FakeStream*& mine = context.per_thread[std::this_thread::get_id()];
    if (mine == nullptr) mine = MakeStream(context, true);
    return mine;
  }
  auto* stream = reinterpret_cast<FakeStream*>(handle);
  if (context.streams.contains(stream)) return stream;
  Misuse("a stream of another context, or a destroyed one");
  return nullptr;
}

void Invalidate(Capture& capture) { capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED; }

CUresult CheckUnsafeCall() {
  if (thread_capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool prohibited = false;
  for (const std::shared_ptr<Capture>& capture : Captures()) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool counts =
        mine ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
             : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!counts) continue;
    Invalidate(*capture);
    prohibited = true;
  }
  return prohibited ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult FindForWork(CUstream handle, FakeStream** found) {
  *found = FindStream(handle);
  if (*found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto captures = BlockingCaptures(**found); !captures.empty()) {
    for (const std::shared_ptr<Capture>& capture : captures) Invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const Capture* const capture = (*found)->capture.get();
  return capture != nullptr && capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE
             ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : CUDA_SUCCESS;
}

CUresult FindForWaiting(CUstream handle, FakeStream** found) {
  if (const CUresult result = FindForWork(handle, found); result != CUDA_SUCCESS) return result;
  if ((*found)->capture == nullptr) return CUDA_SUCCESS;
  Invalidate(*(*found)->capture);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult StreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  FAKE_CUDA_ENTER("cuStreamIsCapturing", kContext);
  const FakeStream* stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!BlockingCaptures(*stream).empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : stream->capture->status;
  return CUDA_SUCCESS;
}

CUresult StreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  FAKE_CUDA_ENTER("cuStreamBeginCapture", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->origin = stream;
  return CUDA_SUCCESS;
}

CUresult StreamEndCapture(CUstream handle, CUgraph* graph) {
  FAKE_CUDA_ENTER("cuStreamEndCapture", kContext);
  *graph = nullptr;
  FakeStream* stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool unjoined =
      std::any_of(capture->forks.begin(), capture->forks.end(), [](const auto& fork) { return fork.second > 0; });
  for (const auto& [fork, left] : capture->forks) fork->capture = nullptr;
  stream->capture = nullptr;
  capture->ended = true;
  driver().changed.notify_all();
  if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS;
}

CUresult GraphDestroy(CUgraph /*graph*/) { return CUDA_SUCCESS; }

CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode) {
  FAKE_CUDA_ENTER("cuThreadExchangeStreamCaptureMode", kStarted);
  std::swap(*mode, thread_capture_mode);
  return CUDA_SUCCESS;
}

}  // namespace cairn::fake_cuda
