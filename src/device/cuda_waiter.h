#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/cuda_context.h"
#include "device/device.h"

namespace cairn {

/// An event of the driver's that is used again once nobody holds it.
using CudaEvent = std::shared_ptr<CUevent_st>;

/// Tells of what ends in one stream, in the stream's order: a thread sleeps in the driver until the next event. Safe
/// from any thread.
///
/// The thread never comes back from a stream that stands still. Close would wait for it, so a device with such a stream
/// is never destroyed.
class CudaWaiter {
 public:
  /// The context must outlive this.
  explicit CudaWaiter(const CudaContext& context) : context_(context) {}
  ~CudaWaiter();
  CudaWaiter(const CudaWaiter&) = delete;
  CudaWaiter& operator=(const CudaWaiter&) = delete;

  /// Called first, once, with the context current: starts the thread and creates as many events. More are created if
  /// more are held.
  Status Start(std::size_t events) CAIRN_EXCLUDES(mutex_);
  /// Has `done` called once what is in the stream has ended; with the sticky error if the context is lost. With the
  /// context current.
  Status Record(CUstream stream, CopyDone done) CAIRN_EXCLUDES(mutex_);
  /// The event of the last Record, unless Forget was called since.
  [[nodiscard]] CudaEvent last() const CAIRN_EXCLUDES(mutex_);
  /// Something that was not recorded has been enqueued behind the last Record.
  void Forget() CAIRN_EXCLUDES(mutex_);
  /// Waits for all that was recorded, and for its calls of `done`.
  void Close() CAIRN_EXCLUDES(mutex_);
  /// After Close, when nobody holds an event, with the context current.
  void DestroyEvents() CAIRN_EXCLUDES(events_mutex_);

 private:
  struct Recorded {
    CudaEvent event;
    CopyDone done;
  };

  void Run() CAIRN_EXCLUDES(mutex_);
  std::optional<Recorded> Next() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Status Await(CUevent event) const;
  [[nodiscard]] Result<CUevent> Create() const;
  Result<CudaEvent> Take() CAIRN_EXCLUDES(events_mutex_);
  void GiveBack(CUevent event) CAIRN_EXCLUDES(events_mutex_);

  const CudaContext& context_;
  // Locked last.
  Mutex events_mutex_;
  std::vector<CUevent> events_ CAIRN_GUARDED_BY(events_mutex_);

  // Held from recording an event until the thread has it, so that their orders are the same.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Recorded> recorded_ CAIRN_GUARDED_BY(mutex_);
  CudaEvent last_ CAIRN_GUARDED_BY(mutex_);
  bool closing_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairn
