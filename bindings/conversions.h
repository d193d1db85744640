#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"

// Converts Python's arguments to the C++ API's structs, and results to dicts and tuples. All calls need the GIL.
// Invalid arguments raise.

namespace cairn {

/// (cuda index, handle)
using StreamArguments = std::vector<std::pair<int, std::uintptr_t>>;
[[nodiscard]] std::vector<Stream> StreamsFrom(const StreamArguments& arguments);
[[nodiscard]] DeviceId DeviceFrom(int cuda);
[[nodiscard]] std::vector<std::int64_t> IntsFrom(pybind11::handle tuple);
/// From (logical name, global shape, offset), or None.
[[nodiscard]] std::optional<TensorPart> PartFrom(const pybind11::object& part);
[[nodiscard]] Selector SelectorFrom(std::optional<std::uint64_t> step, const std::string& folder);

[[nodiscard]] pybind11::dict FromInfo(const CheckpointInfo& info);
/// FromInfo's fields, and "tensors": StoredTensors, "values": one dict for each rank.
[[nodiscard]] pybind11::dict FromDetails(CheckpointDetails details);
[[nodiscard]] pybind11::dict FromStats(const SaveStats& stats);
[[nodiscard]] pybind11::dict FromStats(const CheckpointerStats& stats);
/// As attributes of a record of Python's logging.
[[nodiscard]] pybind11::dict FromEvent(const Event& event);
[[nodiscard]] pybind11::dict FromRestored(const Restored& restored);

}  // namespace cairn
