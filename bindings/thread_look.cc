#include "thread_look.h"

#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace py = pybind11;

namespace cairn {
namespace {

// Functions that wait, by the end of their file's path. None calls a function that it was given.
constexpr std::pair<std::string_view, std::string_view> kWaits[] = {
    {"/threading.py", "wait"},
    {"/threading.py", "join"},
    {"/threading.py", "_wait_for_tstate_lock"},
    {"/concurrent/futures/thread.py", "_worker"},
    {"/selectors.py", "select"},
    {"/torch/autograd/graph.py", "_engine_run_backward"},
};

}  // namespace

ThreadIdent MainThread() {
  return py::module_::import("threading").attr("main_thread")().attr("ident").cast<ThreadIdent>();
}

std::optional<ThreadPlace> PlaceOf(ThreadIdent thread) {
  const py::dict frames = py::module_::import("sys").attr("_current_frames")();
  const py::int_ ident(thread);
  if (!frames.contains(ident)) return std::nullopt;
  const py::object frame = frames[ident];
  const py::object code = frame.attr("f_code");
  const auto file = code.attr("co_filename").cast<std::string>();
  const auto name = code.attr("co_name").cast<std::string>();
  const bool waits = std::any_of(std::begin(kWaits), std::end(kWaits), [&](const auto& one) {
    return name == one.second && std::string_view(file).ends_with(one.first);
  });
  if (waits) return std::nullopt;
  return ThreadPlace{frame.ptr(), frame.attr("f_lasti").cast<long>()};
}

std::chrono::nanoseconds RunTimeOf(ThreadIdent thread) {
  clockid_t clock = 0;
  timespec time{};
  if (pthread_getcpuclockid(static_cast<pthread_t>(thread), &clock) != 0 || clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace cairn
