#pragma once

#include <liburing.h>

#include <bitset>
#include <memory>

#include "cairn/status.h"

namespace cairn {

/// The only owner of an io_uring instance. Forked children do not inherit it.
class UringRing {
 public:
  /// A ring of `entries` submissions for the calling thread, tested with a no-op, because some sandboxes permit a ring
  /// but not its use. Unsupported, with the failed call and its likely cause, if it does not work.
  [[nodiscard]] static Result<std::unique_ptr<UringRing>> Make(unsigned entries, bool newer_flags);
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  [[nodiscard]] io_uring* get() { return &ring_; }
  /// Whether the kernel supports the opcode.
  [[nodiscard]] bool Has(unsigned opcode) const { return opcodes_.test(opcode); }
  /// In a forked child: prevents unmapping memory that the child does not have.
  void Forget() { open_ = false; }

 private:
  UringRing() = default;
  [[nodiscard]] Status Setup(unsigned entries, bool newer_flags);
  [[nodiscard]] Status ReadOpcodes();
  [[nodiscard]] Status SubmitNop();

  io_uring ring_{};
  bool open_ = false;
  std::bitset<256> opcodes_;
};

}  // namespace cairn
