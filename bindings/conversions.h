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
/// From a list of (name, address, dtype, shape, strides in elements, cuda index or -1, bytes at the address), followed
/// by its part if it has one.
[[nodiscard]] State StateFrom(const pybind11::list& tensors);
[[nodiscard]] Which WhichFrom(std::optional<std::uint64_t> step, const std::string& folder);

[[nodiscard]] pybind11::dict FromInfo(const CheckpointInfo& info);
/// FromInfo's fields, and "tensors": (name, dtype, shape, bytes, file, alias of, part or None), "values": one dict for
/// each rank.
[[nodiscard]] pybind11::dict FromDetails(const CheckpointDetails& details);
[[nodiscard]] pybind11::dict FromStats(const SaveStats& stats);
[[nodiscard]] pybind11::dict FromStats(const CheckpointerStats& stats);
[[nodiscard]] pybind11::dict FromRestored(const Restored& restored);

}  // namespace cairn
