#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "advice/json_field.h"
#include "advice/peers/lobby.h"
#include "cairn/status.h"

namespace cairn::peers {

/// What one rank measures with another.
struct PairMeasured {
  /// Half of the median round trip.
  double delay_seconds = 0;
  /// Bytes per second, to the other rank and from it, of one TCP connection after a warm-up.
  double there = 0;
  double back = 0;
};

/// How to measure.
struct Pace {
  /// Of a rate, after the warm-up.
  std::chrono::nanoseconds rate_time{};
  /// After which a rank that does not answer has failed.
  std::chrono::nanoseconds patience{};
};
[[nodiscard]] nlohmann::json ToJson(const Pace& pace);
/// InvalidArgument if the message has none, or none that makes sense.
Result<Pace> PaceOf(const JsonField& message);

/// A measurement ends within this time, if only by an error.
[[nodiscard]] std::chrono::nanoseconds LongestMeasurement(const Pace& pace);

/// Measures with the rank that listens there and serves who knows the token. A connection for each of three exchanges:
/// round trips, then a stream there, then one back; who receives a stream counts it and says when it is enough.
Result<PairMeasured> MeasurePair(const std::string& host, int port, const std::string& token, const Pace& pace);

/// Serves one exchange that another rank has begun. `hello` has the other's wishes.
Status ServeExchange(Lobby::Guest guest);

}  // namespace cairn::peers
