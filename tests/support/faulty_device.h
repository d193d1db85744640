#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cairn/options.h"
#include "device/device.h"
#include "testing/forwarding_device.h"

namespace cairn {

/// Does what the device inside does, until it is told to fail. Safe from any thread.
///
/// Calls of Copy are counted from 1. A fault may be set before or while the device is in use.
class FaultyDevice final : public ForwardingDevice {
 public:
  explicit FaultyDevice(std::shared_ptr<Device> inner);
  /// Releases what is held.
  ~FaultyDevice() override;

  /// The nth Copy returns `status`; nothing of it is enqueued.
  void FailCopy(int nth, Status status);
  /// The nth Copy is enqueued, copies nothing, and its done gets `status`.
  void FailCopyLater(int nth, Status status);
  /// From the nth Copy on (which still returns Ok) every done gets a DeviceError, also of older batches; Health and
  /// every later call return it. A GPU behaves so after an illegal access: no copy runs any more, so this releases what
  /// is held and waits for what is under way, which must not depend on the caller.
  void BecomeStickyAt(int nth);
  /// The same, now.
  void BecomeSticky();

  /// Holds batches that are enqueued from now on until ReleaseCopies; lanes stay in order, and so do events behind
  /// them. Unsupported where the inner device has streams and is no HostDevice.
  Status HoldCopies();
  void ReleaseCopies();

  /// Calls of Copy so far.
  [[nodiscard]] int copies() const;
  /// Waits until Copy has been called `count` times; false where the deadline passes first.
  bool AwaitCopies(int count, Deadline deadline = Deadline::Infinite());

  Status Copy(CopyBatch batch, CopyDone done) override;

 private:
  struct State;
  [[nodiscard]] Status Failure() const override;
  Status Enqueue(CopyBatch batch, CopyDone done);
  const std::shared_ptr<State> state_;  // Shared with batches under way, which may outlive this.
};

}  // namespace cairn
