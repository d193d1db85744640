#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>

// What threads that run Python are doing. They are named by Python's `ident`. All calls need the GIL.

namespace cairn {

using ThreadIdent = unsigned long;

[[nodiscard]] inline ThreadIdent ThisThread() { return PyThread_get_thread_ident(); }
[[nodiscard]] ThreadIdent MainThread();

/// A place in a thread's Python code, where it may be in the midst of an operation on tensors. An operation that was
/// under way at one look has ended if a later look finds another place, or none.
struct ThreadPlace {
  const PyObject* frame = nullptr;
  long instruction = 0;
  friend bool operator==(const ThreadPlace&, const ThreadPlace&) = default;
};

/// Nothing if the thread has ended, or is in a function of Python's own or of torch's that only waits: for a lock, a
/// queue, or a backward pass, whose writes are other threads'.
[[nodiscard]] std::optional<ThreadPlace> PlaceOf(ThreadIdent thread);
/// How long the thread, which must not have ended, has run on a core.
[[nodiscard]] std::chrono::nanoseconds RunTimeOf(ThreadIdent thread);

}  // namespace cairn
