#include "conversions.h"

#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <type_traits>
#include <variant>

#include "py_calls.h"
#include "stored_tensors.h"

namespace py = pybind11;

namespace cairn {
namespace {

py::object FromValue(const Value& value) {
  return std::visit(
      [](const auto& plain) -> py::object {
        using T = std::decay_t<decltype(plain)>;
        if constexpr (std::is_same_v<T, std::nullptr_t>) {
          return py::none();
        } else if constexpr (std::is_same_v<T, Json>) {
          return py::str(plain.text);
        } else {
          return py::cast(plain);
        }
      },
      value);
}

}  // namespace

std::vector<Stream> StreamsFrom(const StreamArguments& arguments) {
  std::vector<Stream> streams;
  for (const auto& [cuda, handle] : arguments) streams.push_back({.device = DeviceFrom(cuda), .handle = handle});
  return streams;
}

DeviceId DeviceFrom(int cuda) { return cuda < 0 ? DeviceId{} : DeviceId{.kind = DeviceKind::kCuda, .index = cuda}; }

std::vector<std::int64_t> IntsFrom(py::handle tuple) {
  std::vector<std::int64_t> values;
  values.reserve(py::len(tuple));
  for (const py::handle item : tuple) values.push_back(item.cast<std::int64_t>());
  return values;
}

std::optional<TensorPart> PartFrom(const py::object& part) {
  if (part.is_none()) return std::nullopt;
  const auto fields = part.cast<py::tuple>();
  return TensorPart{.logical_name = fields[0].cast<std::string>(),
                    .global_shape = IntsFrom(fields[1]),
                    .offset = IntsFrom(fields[2])};
}

Selector SelectorFrom(std::optional<std::uint64_t> step, const std::string& folder) {
  return !folder.empty() ? Folder(folder) : step ? Step(*step) : Latest();
}

py::dict FromInfo(const CheckpointInfo& info) {
  py::dict fields;
  fields["step"] = info.step;
  fields["line"] = info.line;
  fields["root"] = info.root;
  fields["copy"] = info.copy;
  fields["attempt"] = info.attempt;
  fields["parent"] = info.parent;
  fields["world"] = info.world;
  fields["bytes"] = info.bytes;
  fields["pinned"] = info.pinned;
  const bool finite = info.nonfinite == NonFinite::kNone;
  fields["nonfinite"] = finite ? py::object(py::none()) : py::object(py::str(NonFiniteName(info.nonfinite)));
  fields["suspect"] = info.suspect;
  fields["path"] = info.path;
  fields["mirrors"] = py::tuple(py::cast(info.mirrors));
  fields["damage"] = info.status.ok() ? py::object(py::none()) : py::object(py::str(info.status.message()));
  return fields;
}

py::dict FromDetails(CheckpointDetails details) {
  py::dict fields = FromInfo(details.info);
  fields["tensors"] = std::make_shared<StoredTensors>(std::move(details.tensors));
  py::list values;
  for (const Values& of_rank : details.values) {
    py::dict all;
    for (const auto& [name, value] : of_rank) all[py::str(name)] = FromValue(value);
    values.append(all);
  }
  fields["values"] = values;
  return fields;
}

py::dict FromStats(const SaveStats& stats) {
  py::dict fields;
  fields["step"] = stats.step;
  fields["phase"] = std::string(SavePhaseName(stats.phase));
  fields["bytes"] = stats.bytes;
  fields["bytes_written"] = stats.bytes_written;
  fields["call"] = InSeconds(stats.call);
  fields["stall"] = InSeconds(stats.stall);
  fields["enqueued"] = InSeconds(stats.enqueued);
  fields["captured"] = InSeconds(stats.captured);
  fields["written"] = InSeconds(stats.written);
  fields["kept"] = InSeconds(stats.kept);
  fields["durable"] = InSeconds(stats.durable);
  fields["gpu_checksum_bytes"] = stats.gpu_checksum_bytes;
  fields["staged"] = stats.staged;
  fields["direct"] = stats.direct;
  fields["recycled"] = stats.recycled;
  return fields;
}

py::dict FromStats(const CheckpointerStats& stats) {
  py::dict fields;
  fields["io_queue"] = stats.io_queue;
  fields["io_queue_reason"] = stats.io_queue_reason;
  fields["pool_bytes"] = stats.pool_bytes;
  fields["ranks_of_node"] = stats.ranks_of_node;
  fields["pool_limit_bytes"] = stats.pool_limit_bytes;
  fields["pool_hugepage_bytes"] = stats.pool_hugepage_bytes;
  fields["pool_peak_bytes"] = stats.pool_peak_bytes;
  fields["chunk_bytes"] = stats.chunk_bytes;
  fields["saves_started"] = stats.saves_started;
  fields["saves_kept"] = stats.saves_kept;
  fields["saves_durable"] = stats.saves_durable;
  fields["saves_failed"] = stats.saves_failed;
  fields["bytes_written"] = stats.bytes_written;
  fields["saves_in_flight"] = stats.saves_in_flight;
  fields["since_durable"] = stats.since_durable ? py::object(py::float_(InSeconds(*stats.since_durable))) : py::none();
  fields["failures_in_a_row"] = stats.failures_in_a_row;
  fields["newest_step"] = stats.newest_step;
  fields["newest_age"] = stats.newest_age ? py::object(py::float_(InSeconds(*stats.newest_age))) : py::none();
  fields["disk_free_bytes"] = stats.disk_free_bytes;
  fields["shards_recycled"] = stats.shards_recycled;
  fields["not_recycled_reason"] = stats.not_recycled_reason;
  fields["save_interval"] = stats.save_interval;
  fields["save_interval_reason"] = stats.save_interval_reason;
  fields["memory"] = stats.memory_root;
  return fields;
}

py::dict FromEvent(const Event& event) {
  static constexpr std::array kKinds{"log", "captured", "durable", "failed", "removed", "fall back", "kept"};
  static constexpr std::array kSeverities{"info", "warning", "error"};
  const auto text = [](const auto& value) { return value.empty() ? py::object(py::none()) : py::cast(value); };
  py::dict fields;
  fields["cairn_event"] = kKinds.at(static_cast<std::size_t>(event.kind));
  fields["cairn_severity"] = kSeverities.at(static_cast<std::size_t>(event.severity));
  fields["cairn_step"] = event.step;
  fields["cairn_rank"] = event.rank;
  fields["cairn_phase"] = text(std::string(event.phase));
  fields["cairn_seconds"] = event.duration ? py::object(py::float_(InSeconds(*event.duration))) : py::none();
  fields["cairn_path"] = text(event.path);
  fields["cairn_code"] = text(event.status.ok() ? std::string() : std::string(StatusCodeName(event.status.code())));
  return fields;
}

py::dict FromRestored(const Restored& restored) {
  py::dict fields;
  fields["step"] = restored.step;
  fields["line"] = restored.line;
  fields["attempt"] = restored.attempt;
  fields["bytes"] = restored.bytes;
  return fields;
}

}  // namespace cairn
