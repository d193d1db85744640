#pragma once

#include <liburing.h>

#include <bitset>
#include <memory>

#include "cairn/status.h"

namespace cairn {

/// The one owner of an io_uring instance, not inherited by forked children.
class UringRing {
 public:
  /// A ring of `entries` submissions for the calling thread, tried out with a no-op: some sandboxes let a ring be made
  /// and refuse its use. Unsupported, with the failed call and its likely cause, where that is not to be had.
  [[nodiscard]] static Result<std::unique_ptr<UringRing>> Make(unsigned entries, bool newer_flags);
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  [[nodiscard]] io_uring* get() { return &ring_; }
  /// Whether the kernel has the opcode.
  [[nodiscard]] bool Has(unsigned opcode) const { return opcodes_.test(opcode); }
  /// In a forked child: the memory is not there, so nothing must be unmapped by the parent's bookkeeping.
  void Forget() { open_ = false; }

 private:
  UringRing() = default;
  [[nodiscard]] Status Setup(unsigned entries, bool newer_flags);
  [[nodiscard]] Status ReadOpcodes();
  [[nodiscard]] Status TryOut();

  io_uring ring_{};
  bool open_ = false;
  std::bitset<256> opcodes_;
};

}  // namespace cairn
