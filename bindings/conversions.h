#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"

// Python's arguments -> the C++ API's structs, and its results -> dicts and tuples. All calls need the GIL; bad
// arguments raise.

namespace cairn {

/// (cuda index, handle)
using StreamArguments = std::vector<std::pair<int, std::uintptr_t>>;
[[nodiscard]] std::vector<Stream> StreamsFrom(const StreamArguments& arguments);
[[nodiscard]] DeviceId DeviceFrom(int cuda);
[[nodiscard]] std::vector<std::int64_t> IntsFrom(pybind11::handle tuple);
/// Of (logical name, global shape, offset), or None.
[[nodiscard]] std::optional<TensorPart> PartFrom(const pybind11::object& part);
/// From a list of (name, address, dtype, shape, strides in elements, cuda index or -1, bytes at the address), each with
/// its part behind it where it has one.
[[nodiscard]] State StateFrom(const pybind11::list& tensors);
[[nodiscard]] Which WhichFrom(std::optional<std::uint64_t> step, const std::string& folder);

[[nodiscard]] pybind11::dict FromInfo(const CheckpointInfo& info);
/// FromInfo's, and "tensors": (name, dtype, shape, bytes, file, alias of, part or None), "values": a dict a rank.
[[nodiscard]] pybind11::dict FromDetails(const CheckpointDetails& details);
[[nodiscard]] pybind11::dict FromStats(const SaveStats& stats);
[[nodiscard]] pybind11::dict FromStats(const CheckpointerStats& stats);
[[nodiscard]] pybind11::dict FromRestored(const Restored& restored);

}  // namespace cairn
