// Streams, events, and the operations that order them.
#include <algorithm>
#include <utility>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

FakeEvent* FindEvent(CUevent handle) {
  auto* event = reinterpret_cast<FakeEvent*>(handle);
  if (driver().events.contains(event)) return event;
  Misuse("an event that was destroyed, or never created");
  return nullptr;
}

// For a query or a wait by the host. A capture forbids both.
CUresult FindPoint(const char* name, CUevent handle, std::shared_ptr<Point>* point) {
  const FakeEvent* const event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *point = event->point;
  if (*point == nullptr) {
    Misuse(std::string(name) + ": the event was never recorded, so it counts as reached");
    return CUDA_SUCCESS;
  }
  if ((*point)->capture == nullptr) return CUDA_SUCCESS;
  Invalidate(*(*point)->capture);
  return CUDA_ERROR_CAPTURED_EVENT;
}

// The stream becomes a part of the event's capture, or waits for a part of it.
CUresult JoinCapture(FakeStream& stream, const Point& point) {
  Capture& capture = *point.capture;
  if (capture.ended) return CUDA_ERROR_CAPTURED_EVENT;
  if (&stream == stream.context->legacy || (stream.capture != nullptr && stream.capture != point.capture)) {
    Invalidate(capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream.capture == nullptr) {
    stream.capture = point.capture;
    capture.forks[&stream] = 1;
  } else if (const auto joined = capture.forks.find(point.stream); joined != capture.forks.end()) {
    joined->second = std::max(0, joined->second - point.operations);
  }
  return CUDA_SUCCESS;
}

std::uint32_t ValueAt(CUdeviceptr at) {
  return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(at), __ATOMIC_ACQUIRE);
}

// These take pinned host memory too, by its address.
bool IsFlag(CUdeviceptr at) {
  return at % sizeof(cuuint32_t) == 0 && PlaceOf(at, sizeof(cuuint32_t)) == Place::kPinned;
}

}  // namespace

CUresult StreamCreate(CUstream* handle, unsigned int flags) {
  FAKE_CUDA_ENTER("cuStreamCreate", kContext);
  *handle = reinterpret_cast<CUstream>(MakeStream(*current_contexts.back(), (flags & CU_STREAM_NON_BLOCKING) == 0));
  return CUDA_SUCCESS;
}

// Returns at once: what was enqueued still runs.
CUresult StreamDestroy(CUstream handle) {
  FAKE_CUDA_ENTER("cuStreamDestroy", kContext);
  if (handle == nullptr || handle == kLegacyStream || handle == kPerThreadStream) return CUDA_ERROR_INVALID_HANDLE;
  FakeStream* stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  RetireStream(stream);
  return CUDA_SUCCESS;
}

CUresult StreamQuery(CUstream handle) {
  FAKE_CUDA_ENTER("cuStreamQuery", kContext | kUnsafeBesideCapture);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWaiting(handle, &stream); found != CUDA_SUCCESS) return found;
  return *stream->completed == stream->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult StreamSynchronize(CUstream handle) {
  FAKE_CUDA_ENTER("cuStreamSynchronize", kContext | kUnsafeBesideCapture);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWaiting(handle, &stream); found != CUDA_SUCCESS) return found;
  return AwaitStream(call, *stream);
}

CUresult StreamWaitEvent(CUstream handle, CUevent handle_of_event, unsigned int flags) {
  FAKE_CUDA_ENTER("cuStreamWaitEvent", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  const FakeEvent* const event = FindEvent(handle_of_event);
  if (event == nullptr || flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_HANDLE;
  if (event->point == nullptr) {
    Misuse("cuStreamWaitEvent: the event was never recorded, so nothing waits");
    return CUDA_SUCCESS;
  }
  if (event->context->sticky != CUDA_SUCCESS) return event->context->sticky;
  if (event->point->capture != nullptr) return JoinCapture(*stream, *event->point);
  if (stream->capture != nullptr) {
    Invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (Broken("events")) return CUDA_SUCCESS;
  return Enqueue(call, *stream, {.ready = [point = event->point] { return point->reached; }});
}

CUresult StreamWaitValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
  FAKE_CUDA_ENTER("cuStreamWaitValue32", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  if (!IsFlag(at)) return CUDA_ERROR_INVALID_VALUE;
  return Enqueue(call, *stream, {.ready = [at, value] { return !IsFlag(at) || ValueAt(at) >= value; }, .polls = true});
}

CUresult StreamWriteValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned int /*flags*/) {
  FAKE_CUDA_ENTER("cuStreamWriteValue32", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  if (!IsFlag(at)) return CUDA_ERROR_INVALID_VALUE;
  return Enqueue(call, *stream, {.run = [at, value] {
                   const Lock lock(driver().mutex);
                   if (!IsFlag(at)) return CUDA_ERROR_ILLEGAL_ADDRESS;
                   __atomic_store_n(reinterpret_cast<std::uint32_t*>(at), value, __ATOMIC_RELEASE);
                   return CUDA_SUCCESS;
                 }});
}

// For benchmarks that compare with it: Cairn calls none.
CUresult LaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  FAKE_CUDA_ENTER("cuLaunchHostFunc", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle, &stream); found != CUDA_SUCCESS) return found;
  return Enqueue(call, *stream, {.run = [function, argument] {
                   function(argument);
                   return CUDA_SUCCESS;
                 }});
}

CUresult EventCreate(CUevent* handle, unsigned int flags) {
  FAKE_CUDA_ENTER("cuEventCreate", kContext);
  auto* event = new FakeEvent{.context = current_contexts.back(), .flags = flags};
  driver().events.insert(event);
  *handle = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

CUresult EventDestroy(CUevent handle) {
  FAKE_CUDA_ENTER("cuEventDestroy", kContext);
  FakeEvent* const event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->awaited > 0) Misuse("cuEventDestroy: a thread waits for the event");
  driver().events.erase(event);
  delete event;
  return CUDA_SUCCESS;
}

CUresult EventRecord(CUevent handle, CUstream handle_of_stream) {
  FAKE_CUDA_ENTER("cuEventRecord", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle_of_stream, &stream); found != CUDA_SUCCESS) return found;
  FakeEvent* const event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->context != stream->context) {
    Misuse("cuEventRecord: the event and the stream are of two contexts");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (event->awaited > 0) Misuse("cuEventRecord: a thread waits for what the event stood for");
  auto point = std::make_shared<Point>();
  event->point = point;
  if (stream->capture != nullptr) {
    point->capture = stream->capture;
    point->stream = stream;
    const auto fork = stream->capture->forks.find(stream);
    point->operations = fork == stream->capture->forks.end() ? 0 : fork->second;
    return CUDA_SUCCESS;
  }
  return Enqueue(call, *stream, {.reaches = std::move(point)});
}

CUresult EventQuery(CUevent handle) {
  FAKE_CUDA_ENTER("cuEventQuery", kContext | kUnsafeBesideCapture);
  std::shared_ptr<Point> point;
  if (const CUresult found = FindPoint(call.name(), handle, &point); found != CUDA_SUCCESS) return found;
  return point == nullptr || point->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult EventSynchronize(CUevent handle) {
  FAKE_CUDA_ENTER("cuEventSynchronize", kContext | kUnsafeBesideCapture);
  std::shared_ptr<Point> point;
  if (const CUresult found = FindPoint(call.name(), handle, &point); found != CUDA_SUCCESS) return found;
  if (point == nullptr) return CUDA_SUCCESS;
  FakeEvent& event = *FindEvent(handle);
  if ((event.flags & CU_EVENT_BLOCKING_SYNC) == 0) {
    Misuse("cuEventSynchronize: the event lacks CU_EVENT_BLOCKING_SYNC, so the thread spins");
  }
  const Context& context = *event.context;
  ++event.awaited;
  call.Admit();
  driver().changed.wait(call.lock(), [&] { return context.sticky != CUDA_SUCCESS || point->reached; });
  AwaitDelay(call.lock());
  driver().changed.wait(call.lock(), [] { return !driver().waits_are_held; });
  if (driver().events.contains(&event)) --event.awaited;
  return context.sticky;
}

}  // namespace cairn::fake_cuda
