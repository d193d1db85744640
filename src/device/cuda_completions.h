#pragma once

#include <memory>
#include <unordered_set>

#include "base/mutex.h"
#include "device/device.h"

namespace cairn {

/// The callbacks of copies in flight. The driver holds each as the argument of a host function.
///
/// The driver calls a host function once, or never if the context failed. A Ticket belongs to the driver until it is
/// called; Close disarms the others. Safe from any thread.
class CudaCompletions {
 public:
  struct Ticket;

  CudaCompletions();
  ~CudaCompletions();
  CudaCompletions(const CudaCompletions&) = delete;
  CudaCompletions& operator=(const CudaCompletions&) = delete;

  /// A ticket for HostFunction's argument.
  [[nodiscard]] Ticket* Add(CopyDone done);
  /// Frees a ticket that the driver refused.
  void Cancel(Ticket* ticket);
  /// The driver calls this with a Ticket*. Calls done(Ok) unless closed, and frees the ticket.
  static void HostFunction(void* ticket);

  /// Waits for running callbacks and drops the others: no callback runs afterwards. Dropped tickets stay allocated,
  /// because the driver of a failed context may still hold them.
  void Close();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace cairn
