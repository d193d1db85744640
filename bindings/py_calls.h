#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "cairn/cairn.h"

// How Python's calls reach C++: times, errors, the GIL, signals.

namespace cairn {

inline constexpr std::chrono::milliseconds kSignalInterval{100};

using Seconds = std::chrono::duration<double>;

inline double InSeconds(std::chrono::nanoseconds span) { return Seconds(span).count(); }

// No timeout, or one that is too long to be counted, means for ever.
inline Deadline DeadlineFrom(std::optional<double> timeout) {
  if (!timeout || *timeout > 1e9) return Deadline::Infinite();
  return Deadline::In(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(std::max(*timeout, 0.0))));
}

inline std::chrono::nanoseconds SpanFrom(double seconds) {
  if (!(seconds >= 0))
    throw pybind11::value_error("expected a timeout of 0 s or more, found " + std::to_string(seconds));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(std::min(seconds, 1e9)));
}

/// The text with the names that options have in Python, where they take text, too ("4GiB"), and so have no unit. Not in
/// paths and names of tensors.
inline std::string WithPythonNames(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"host_memory_bytes", "host_memory"}, {"chunk_bytes", "chunk"}, {"staging_bytes", "staging"}};
  const auto stands_alone = [&text](std::size_t begin, std::size_t end) {
    return (begin == 0 || text[begin - 1] == ' ') &&
           (end == text.size() || std::string_view(" :,=").find(text[end]) != std::string_view::npos);
  };
  for (const auto& [name, python] : kNames) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      if (stands_alone(at, at + name.size())) text.replace(at, name.size(), python);
    }
  }
  return text;
}

/// The way out, as a user of the Python package reads it.
inline std::string_view Hint(StatusDetail detail) {
  switch (detail) {
    case StatusDetail::kStepCommitted:
      return ": save(..., replace=True) writes it again";
    case StatusDetail::kRanksMissing:
      return ": every rank calls save for every step, none alone";
    default:  // cairn._opening has the others'.
      return "";
  }
}

/// The only place where a Status becomes an exception: the class in cairn._errors with the code's name.
[[noreturn]] inline void Raise(const Status& status) {
  const pybind11::object type =
      pybind11::module_::import("cairn._errors").attr(std::string(StatusCodeName(status.code())).c_str());
  const pybind11::object error = type(WithPythonNames(status.message()).append(Hint(status.detail())));
  error.attr("detail") = static_cast<int>(status.detail());
  PyErr_SetObject(type.ptr(), error.ptr());
  throw pybind11::error_already_set();
}
inline void RaiseIfError(const Status& status) {
  if (!status.ok()) Raise(status);
}
/// For where nobody can catch: sys.unraisablehook reports it, by default on stderr.
inline void WriteUnraisable(const Status& status) {
  const pybind11::error_scope keep_current;
  try {
    Raise(status);
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("a cairn.Checkpointer that was not closed");
  }
}
inline void ValueOrRaise(const Status& status) { RaiseIfError(status); }
template <typename T>
T ValueOrRaise(Result<T> result) {
  RaiseIfError(result.status());
  return std::move(result).value();
}

/// Runs a call that may take the GIL. Once the interpreter ends, Python before 3.14 ends any other thread there by
/// pthread_exit. That unwinds the stack, and so aborts the process at the next destructor, or drops Python's objects
/// without the GIL. Here such a thread waits for the process's end instead, as with Python 3.14.
template <typename Call>
auto StayingAtExit(const Call& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    while (true) ::pause();
  }
}

/// Releases the GIL while it lives.
class GilReleased {
 public:
  GilReleased() : thread_(PyEval_SaveThread()) {}
  ~GilReleased() {
    StayingAtExit([this] { PyEval_RestoreThread(thread_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const thread_;
};

/// Runs `call` without the GIL.
template <typename Call>
auto Unlocked(const Call& call) {
  const GilReleased released;
  return call();
}

/// Holds the GIL while it lives, on a thread that has released it.
class GilHeld {
 public:
  GilHeld() : before_(StayingAtExit([] { return PyGILState_Ensure(); })) {}
  ~GilHeld() { PyGILState_Release(before_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  const PyGILState_STATE before_;
};

/// Runs `call` with the GIL, on a thread that has released it.
template <typename Call>
auto Locked(const Call& call) {
  const GilHeld held;
  return StayingAtExit(call);
}

/// Whether a wait has ended at the deadline that it was given. A failure that is a deadline too, such as that of a disk
/// that hangs, has a detail.
inline bool AtItsDeadline(const Status& status) {
  return status.code() == StatusCode::kDeadlineExceeded && status.detail() == StatusDetail::kNone;
}

/// Repeats `wait(deadline)` in slices until it does not end at its deadline, or until `end()`, which a signal may make
/// earlier. A signal's exception ends it.
template <typename End, typename Wait>
Status InSlices(const End& end, const Wait& wait) {
  while (true) {
    const Deadline slice = Deadline::At(std::min(end().when(), Deadline::Clock::now() + kSignalInterval));
    Status status = wait(slice);
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    if (!AtItsDeadline(status) || end().passed()) return status;
  }
}

/// The same, without the GIL while it waits.
template <typename End, typename Wait>
Status Interruptible(const End& end, const Wait& wait) {
  return InSlices(end, [&](Deadline slice) { return Unlocked([&] { return wait(slice); }); });
}

using PyProgress = std::function<void(std::uint64_t, std::uint64_t)>;

/// Progress of a long read, reported to Python on the caller's own thread. The read ends when the callback or a signal
/// raises.
class InterruptibleProgress {
 public:
  explicit InterruptibleProgress(const PyProgress& progress) : progress_(progress) {}

  [[nodiscard]] Progress callback() {
    return [this](std::uint64_t done, std::uint64_t total) {
      Locked([&] {
        try {
          if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
          if (progress_) progress_(done, total);
        } catch (pybind11::error_already_set& error) {
          raised_.emplace(std::move(error));
        }
      });
      return !raised_.has_value();
    };
  }
  void RethrowIfRaised() {
    if (raised_) throw pybind11::error_already_set(*raised_);
  }

 private:
  const PyProgress& progress_;
  std::optional<pybind11::error_already_set> raised_;
};

/// Python's part of a restore that ranks make together: what it raises is this rank's status, and raised as it is if
/// that ends the restore.
class RaisedStatus {
 public:
  /// Needs no GIL.
  template <typename Call>
  Status Try(const Call& call) {
    return Locked([&] {
      try {
        call();
        return Status::Ok();
      } catch (pybind11::error_already_set& error) {
        const auto [code, message, detail] = pybind11::module_::import("cairn._errors")
                                                 .attr("status_of")(error.value())
                                                 .cast<std::tuple<int, std::string, int>>();
        status_ = Status(static_cast<StatusCode>(code), message, static_cast<StatusDetail>(detail));
        interrupted_ = !error.matches(PyExc_Exception);
        raised_.emplace(std::move(error));
        return status_;
      }
    });
  }
  /// Whether a signal's exception was raised, which ends the restore whatever other ranks say.
  [[nodiscard]] bool interrupted() const { return interrupted_; }
  void RaiseIfError(const Status& end) {
    if (interrupted_ || (raised_ && end == status_)) throw pybind11::error_already_set(*raised_);
    cairn::RaiseIfError(end);
  }

 private:
  Status status_;
  bool interrupted_ = false;
  std::optional<pybind11::error_already_set> raised_;
};

}  // namespace cairn
