#include "py_checkpointer.h"

namespace py = pybind11;

namespace cairn {
namespace {

std::unique_ptr<PyCheckpointer> Open(
    const std::string& root, bool read_only, std::uint64_t keep_last, std::uint64_t keep_every, int max_in_flight,
    const std::string& when_full, double full_timeout, double stall_timeout, double close_timeout, double open_timeout,
    bool take_over, unsigned file_mode, unsigned directory_mode, std::uint64_t host_memory, std::uint64_t chunk,
    int queue_depth, int worker_threads, int copy_streams, std::uint64_t staging, std::vector<int> cuda_devices,
    bool checksums, bool gpu_checksums, const std::string& nonfinite, bool recycle, const std::string& io_queue,
    std::size_t trace_events, const PyStoreGroup* group, const std::optional<NodeRanks>& node, double group_timeout,
    std::optional<std::tuple<double, double, double>> steering, const std::string& unfenced_writes) {
  const auto one_of = [](const char* what, const std::string& found, const auto& choices) {
    std::string expected;
    for (const auto& [name, value] : choices) {
      if (name == found) return value;
      expected += (expected.empty() ? "\"" : ", \"") + std::string(name) + "\"";
    }
    Raise(Status(StatusCode::kInvalidArgument,
                 std::string(what) + ": expected one of " + expected + ", found \"" + found + "\""));
  };
  static const std::vector<std::pair<std::string, WhenFull>> kWhenFull = {
      {"wait", WhenFull::kWait}, {"skip", WhenFull::kSkip}, {"replace", WhenFull::kReplace}};
  static const std::vector<std::pair<std::string, IoQueueKind>> kIo = {
      {"auto", IoQueueKind::kAuto}, {"io_uring", IoQueueKind::kUring}, {"threads", IoQueueKind::kThreads}};
  static const std::vector<std::pair<std::string, MarkNonFinite>> kNonFinite = {
      {"auto", MarkNonFinite::kAuto}, {"off", MarkNonFinite::kOff}, {"mark", MarkNonFinite::kMark}};
  static const std::vector<std::pair<std::string, UnfencedWrites::Then>> kUnfencedWrites = {
      {"fail", UnfencedWrites::Then::kFail},
      {"warn", UnfencedWrites::Then::kWarn},
      {"ignore", UnfencedWrites::Then::kIgnore}};
  std::optional<SteeringOptions> steered;
  if (steering) {
    const auto& [slowdown, mtbf, restart_time] = *steering;
    steered = SteeringOptions{.slowdown = slowdown, .mtbf = SpanFrom(mtbf), .restart_time = SpanFrom(restart_time)};
  }
  return std::make_unique<PyCheckpointer>(Options{.root = root,
                                                  .read_only = read_only,
                                                  .open_timeout = SpanFrom(open_timeout),
                                                  .take_over = take_over,
                                                  .keep_last = keep_last,
                                                  .keep_every = keep_every,
                                                  .max_in_flight = max_in_flight,
                                                  .when_full = one_of("when_full", when_full, kWhenFull),
                                                  .full_timeout = SpanFrom(full_timeout),
                                                  .stall_timeout = SpanFrom(stall_timeout),
                                                  .close_timeout = SpanFrom(close_timeout),
                                                  .group_timeout = SpanFrom(group_timeout),
                                                  .file_mode = file_mode,
                                                  .directory_mode = directory_mode,
                                                  .steering = steered,
                                                  .host_memory_bytes = host_memory,
                                                  .chunk_bytes = chunk,
                                                  .queue_depth = queue_depth,
                                                  .worker_threads = worker_threads,
                                                  .copy_streams = copy_streams,
                                                  .staging_bytes = staging,
                                                  .cuda_devices = std::move(cuda_devices),
                                                  .checksums = checksums,
                                                  .gpu_checksums = gpu_checksums,
                                                  .nonfinite = one_of("nonfinite", nonfinite, kNonFinite),
                                                  .recycle = recycle,
                                                  .io_queue = one_of("io_queue", io_queue, kIo),
                                                  .trace_events = trace_events},
                                          group, node, one_of("unfenced_writes", unfenced_writes, kUnfencedWrites));
}

}  // namespace

void BindCheckpointer(py::module_& module) {
  using namespace py::literals;
  py::class_<CopyPause>(module, "CopyPause")
      .def("end", &CopyPause::End)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](CopyPause& self, const py::args&) { self.End(); });
  py::class_<EventLog, std::shared_ptr<EventLog>>(module, "Events").def("take", &EventLog::Take);
  py::class_<PyCheckpointer>(module, "Checkpointer")
      .def(py::init(&Open), py::kw_only(), "root"_a, "read_only"_a, "keep_last"_a, "keep_every"_a, "max_in_flight"_a,
           "when_full"_a, "full_timeout"_a, "stall_timeout"_a, "close_timeout"_a, "open_timeout"_a, "take_over"_a,
           "file_mode"_a, "directory_mode"_a, "host_memory"_a, "chunk"_a, "queue_depth"_a, "worker_threads"_a,
           "copy_streams"_a, "staging"_a, "cuda_devices"_a, "checksums"_a, "gpu_checksums"_a, "nonfinite"_a,
           "recycle"_a, "io_queue"_a, "trace_events"_a, "group"_a, "node"_a, "group_timeout"_a, "steering"_a,
           "unfenced_writes"_a)
      .def("save", &PyCheckpointer::Save, "step"_a, "tensors"_a, "values"_a, "streams"_a, "elsewhere"_a, "replace"_a,
           "pin"_a, "replicas"_a, "hold"_a, "held"_a, "entry"_a)
      .def("give_up", &PyCheckpointer::GiveUp, "step"_a, "why"_a)
      .def("should_save", &PyCheckpointer::ShouldSave, "step"_a)
      .def("set_up", &PyCheckpointer::SetUp, "cuda"_a)
      .def("wait_for_place", &PyCheckpointer::WaitForPlace, "timeout"_a)
      .def("fence", &PyCheckpointer::Fence, "cuda"_a, "stream"_a, "timeout"_a)
      .def("pause_copies", &PyCheckpointer::PauseCopies, "at_most"_a)
      .def("begin_step", &PyCheckpointer::BeginStep)
      .def_property_readonly("has_unchecked", &PyCheckpointer::HasUnchecked)
      .def("end_step", &PyCheckpointer::EndStep, "written"_a)
      .def("ignore_versions", &PyCheckpointer::IgnoreVersions)
      .def("drain", &PyCheckpointer::Drain, "timeout"_a)
      .def("restore", &PyCheckpointer::Restore, "step"_a, "folder"_a, "tensors"_a, "streams"_a, "resume"_a, "own"_a,
           "page_cache"_a, "progress"_a)
      .def("checkpoints", &PyCheckpointer::List)
      .def("choose", &PyCheckpointer::Choose, "step"_a, "folder"_a, "damaged"_a)
      .def("inspect", &PyCheckpointer::Inspect, "folder"_a)
      .def("inspect_part", &PyCheckpointer::InspectPartOf, "folder"_a, "rank"_a, "names"_a)
      .def("verify", &PyCheckpointer::Verify, "step"_a, "folder"_a, "progress"_a)
      .def("pin", &PyCheckpointer::Pin, "step"_a, "pinned"_a)
      .def("pin_best", &PyCheckpointer::PinBest, "step"_a, "pinned"_a)
      .def("remove", &PyCheckpointer::Remove, "step"_a)
      .def("publish", &PyCheckpointer::Publish, "step"_a, "path"_a, "timeout"_a)
      .def("remove_published", &PyCheckpointer::RemovePublished, "path"_a, "timeout"_a)
      .def("raise_last_failure", &PyCheckpointer::RaiseLastFailure)
      .def("write_trace", &PyCheckpointer::WriteTrace, "path"_a)
      .def("stats", &PyCheckpointer::Stats)
      .def("end_waits_in", &PyCheckpointer::EndWaitsIn, "seconds"_a)
      .def("waits_end", &PyCheckpointer::WaitsEnd)
      .def("close", &PyCheckpointer::Close, "timeout"_a, "by_caller"_a)
      .def_property_readonly("closed", &PyCheckpointer::closed)
      .def_property_readonly("released", &PyCheckpointer::released)
      .def_property_readonly("watcher", &PyCheckpointer::watcher)
      .def_property_readonly("events", &PyCheckpointer::events);
}

}  // namespace cairn
