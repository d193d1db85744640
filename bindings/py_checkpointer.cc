#include "py_checkpointer.h"

namespace py = pybind11;

namespace cairn {
namespace {

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

/// A Checkpointer's options by their names in Python, which has checked their types.
class Given {
 public:
  explicit Given(const py::dict& options) : options_(options) {}

  template <typename T>
  void Take(const char* name, T& option) const {
    option = options_[name].cast<T>();
  }
  void Take(const char* name, std::chrono::nanoseconds& option) const {
    option = SpanFrom(options_[name].cast<double>());
  }
  template <typename T>
  void TakeOneOf(const char* name, T& option, const Choices<T>& choices) const {
    const auto found = options_[name].cast<std::string>();
    std::string expected;
    for (const auto& [choice, value] : choices) {
      if (choice == found) return static_cast<void>(option = value);
      expected += (expected.empty() ? "\"" : ", \"") + choice + "\"";
    }
    RaiseIfError(Error(StatusCode::kInvalidArgument, "{}: expected one of {}, found \"{}\"", name, expected, found));
  }

 private:
  const py::dict& options_;
};

std::unique_ptr<PyCheckpointer> Open(const std::string& root, const py::dict& options, const PyStoreGroup* group,
                                     const std::optional<NodeRanks>& node) {
  const Given given(options);
  Options taken{.root = root};
  given.Take("memory", taken.memory_root);
  given.Take("disk_every", taken.disk_every);
  given.Take("read_only", taken.read_only);
  given.Take("open_timeout", taken.open_timeout);
  given.Take("take_over", taken.take_over);
  given.Take("keep_last", taken.keep_last);
  given.Take("keep_every", taken.keep_every);
  given.Take("max_in_flight", taken.max_in_flight);
  given.TakeOneOf("when_full", taken.when_full,
                  {{"wait", WhenFull::kWait}, {"skip", WhenFull::kSkip}, {"replace", WhenFull::kReplace}});
  given.Take("full_timeout", taken.full_timeout);
  given.Take("stall_timeout", taken.stall_timeout);
  given.Take("close_timeout", taken.close_timeout);
  given.Take("group_timeout", taken.group_timeout);
  given.Take("file_mode", taken.file_mode);
  given.Take("directory_mode", taken.directory_mode);
  given.Take("host_memory", taken.host_memory_bytes);
  given.Take("chunk", taken.chunk_bytes);
  given.Take("queue_depth", taken.queue_depth);
  given.Take("worker_threads", taken.worker_threads);
  given.Take("copy_streams", taken.copy_streams);
  given.Take("staging", taken.staging_bytes);
  given.Take("cuda_devices", taken.cuda_devices);
  given.Take("checksums", taken.checksums);
  given.Take("gpu_checksums", taken.gpu_checksums);
  given.TakeOneOf("nonfinite", taken.nonfinite,
                  {{"auto", MarkNonFinite::kAuto}, {"off", MarkNonFinite::kOff}, {"mark", MarkNonFinite::kMark}});
  given.Take("recycle", taken.recycle);
  given.TakeOneOf(
      "io_queue", taken.io_queue,
      {{"auto", IoQueueKind::kAuto}, {"io_uring", IoQueueKind::kUring}, {"threads", IoQueueKind::kThreads}});
  given.Take("trace_events", taken.trace_events);
  given.Take("stop_after_failures", taken.stop_after_failures);
  given.Take("metrics_file", taken.metrics_file);
  std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>> mirrors;
  given.Take("mirrors", mirrors);
  for (const auto& [target, every, keep_last, keep_every, bandwidth] : mirrors) {
    taken.mirrors.push_back({target, every, keep_last, keep_every, bandwidth});
  }
  given.Take("mirror_timeout", taken.mirror_timeout);
  given.Take("restore_from", taken.restore_from);
  given.Take("mirror_command", taken.mirror_command);
  std::optional<std::tuple<double, double, double>> steering;
  given.Take("steering", steering);
  if (steering) {
    const auto& [slowdown, mtbf, restart_time] = *steering;
    taken.steering = {.slowdown = slowdown, .mtbf = SpanFrom(mtbf), .restart_time = SpanFrom(restart_time)};
  }
  auto then = UnfencedWrites::Then::kFail;
  given.TakeOneOf("unfenced_writes", then,
                  {{"fail", UnfencedWrites::Then::kFail},
                   {"warn", UnfencedWrites::Then::kWarn},
                   {"ignore", UnfencedWrites::Then::kIgnore}});
  return std::make_unique<PyCheckpointer>(std::move(taken), group, node, then);
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
      .def(py::init(&Open), "root"_a, "options"_a, "group"_a, "node"_a)
      .def("save", &PyCheckpointer::Save, "step"_a, "tensors"_a, "values"_a, "streams"_a, "elsewhere"_a, "replace"_a,
           "pin"_a, "replicas"_a, "hold"_a, "held"_a, "entry"_a)
      .def("give_up", &PyCheckpointer::GiveUp, "step"_a, "why"_a, "code"_a)
      .def("should_save", &PyCheckpointer::ShouldSave, "step"_a)
      .def("set_up", &PyCheckpointer::SetUp, "cuda"_a)
      .def("wait_for_place", &PyCheckpointer::WaitForPlace, "timeout"_a)
      .def("wait_mirrored", &PyCheckpointer::WaitMirrored, "step"_a, "target"_a, "timeout"_a)
      .def("fence", &PyCheckpointer::Fence, "cuda"_a, "stream"_a, "timeout"_a)
      .def("pause_copies", &PyCheckpointer::PauseCopies, "at_most"_a)
      .def("begin_step", &PyCheckpointer::BeginStep)
      .def_property_readonly("has_unchecked", &PyCheckpointer::HasUnchecked)
      .def("end_step", &PyCheckpointer::EndStep, "written"_a)
      .def_property_readonly("has_frozen", &PyCheckpointer::HasFrozen)
      .def("note_step", &PyCheckpointer::NoteStep, "groups"_a, "state"_a)
      .def("ignore_versions", &PyCheckpointer::IgnoreVersions)
      .def("drain", &PyCheckpointer::Drain, "timeout"_a)
      .def("restore", &PyCheckpointer::Restore, "step"_a, "folder"_a, "fall_back"_a, "wait"_a, "plan"_a, "progress"_a)
      .def("read", &PyCheckpointer::Read, "step"_a, "folder"_a, "tensors"_a, "streams"_a, "resume"_a, "own"_a,
           "page_cache"_a, "progress"_a)
      .def("verify_newest", &PyCheckpointer::VerifyNewest)
      .def("checkpoints", &PyCheckpointer::List)
      .def("choose", &PyCheckpointer::Choose, "step"_a, "folder"_a, "inspect"_a)
      .def("inspect", &PyCheckpointer::Inspect, "folder"_a)
      .def("inspect_part", &PyCheckpointer::InspectPartOf, "folder"_a, "rank"_a, "names"_a)
      .def("verify", &PyCheckpointer::Verify, "step"_a, "folder"_a, "progress"_a)
      .def("pin", &PyCheckpointer::Pin, "step"_a, "pinned"_a)
      .def("pin_best", &PyCheckpointer::PinBest, "step"_a, "pinned"_a)
      .def("remove", &PyCheckpointer::Remove, "step"_a)
      .def("publish", &PyCheckpointer::Publish, "step"_a, "path"_a, "timeout"_a)
      .def("remove_published", &PyCheckpointer::RemovePublished, "path"_a, "timeout"_a)
      .def("check", &PyCheckpointer::Check)
      .def("count_restore", &PyCheckpointer::CountRestore, "done"_a)
      .def("metrics_text", &PyCheckpointer::MetricsText)
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
