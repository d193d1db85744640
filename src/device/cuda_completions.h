#pragma once

#include <memory>
#include <unordered_set>

#include "base/mutex.h"
#include "device/device.h"

namespace cairn {

/// The callbacks of copies under way, on their way through the driver as the argument of a host function.
///
/// The driver calls a host function once, or never: it drops them when the context has failed. Until called, a Ticket
/// belongs to the driver; Close makes those that are left harmless. Safe from any thread.
class CudaCompletions {
 public:
  struct Ticket;

  CudaCompletions();
  ~CudaCompletions();
  CudaCompletions(const CudaCompletions&) = delete;
  CudaCompletions& operator=(const CudaCompletions&) = delete;

  /// A ticket for HostFunction's argument.
  [[nodiscard]] Ticket* Add(CopyDone done);
  /// Takes back a ticket that the driver has refused.
  void Cancel(Ticket* ticket);
  /// What the driver calls, with a Ticket*: calls done(Ok) unless closed, and frees the ticket.
  static void HostFunction(void* ticket);

  /// Waits for callbacks that are running, and drops the rest: no callback runs afterwards. The dropped tickets
  /// themselves stay allocated, as the driver of a failed context may yet hold on to them.
  void Close();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace cairn
