#include "advice/peers/exchange.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace cairn::peers {
namespace {

using nlohmann::json;
using Clock = Deadline::Clock;
using std::chrono::nanoseconds;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kBlock = 256U << 10;
// Round trips: the first ones set up caches and routes.
constexpr int kFirstTrips = 5;
constexpr std::size_t kLeastTrips = 5;
constexpr std::size_t kMostTrips = 200;
constexpr std::chrono::milliseconds kTripsTime{250};
// TCP finds its rate in some round trips.
constexpr int kWarmUpTrips = 10;
constexpr nanoseconds kLeastWarmUp = std::chrono::milliseconds(200);
constexpr nanoseconds kMostWarmUp = std::chrono::seconds(2);
constexpr int kParts = 9;
constexpr double kMostSeconds = 3600;

double ToSeconds(nanoseconds time) { return Seconds(time).count(); }

nanoseconds FromSeconds(double seconds) { return std::chrono::duration_cast<nanoseconds>(Seconds(seconds)); }

Deadline Earlier(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

/// Sends until the other end has said that it is enough. Returns what it has said.
Result<json> Stream(PeerSocket& socket, Deadline deadline) {
  const std::string block(kBlock, 'c');
  while (true) {
    CAIRN_RETURN_IF_ERROR(AwaitEvent(socket.fd(), POLLIN | POLLOUT, deadline));
    CAIRN_RETURN_IF_ERROR(socket.Fill());
    if (std::optional<json> enough = socket.TakeMessage()) {
      // What is still under way would be in the way of the next exchange.
      socket.Abort();
      return *std::move(enough);
    }
    if (deadline.passed()) return Status(StatusCode::kDeadlineExceeded, "does not end its measurement");
    CAIRN_RETURN_IF_ERROR(socket.SendSome(block).status());
  }
}

/// Counts a stream: bytes per second, after the warm-up. Then tells the sender, and drops what still comes.
///
/// The median of the time's parts, or the mean if that is higher: a busy host that stalls for a moment is not the
/// network.
Result<double> CountBytes(PeerSocket& socket, nanoseconds warm_up, const Pace& pace) {
  std::vector<char> block(kBlock);
  const Clock::time_point begin = Clock::now();
  Clock::time_point counted_from;
  std::uint64_t bytes = 0;
  std::array<double, kParts> parts{};
  nanoseconds took{0};
  while (took < pace.rate_time) {
    CAIRN_ASSIGN_OR_RETURN(const std::size_t received, socket.Receive(block, Deadline::In(pace.patience)));
    const Clock::time_point now = Clock::now();
    if (counted_from == Clock::time_point()) {
      if (now - begin >= warm_up) counted_from = now;
    } else {
      bytes += received;
      took = now - counted_from;
      if (took < pace.rate_time) {
        parts[static_cast<std::size_t>(took * kParts / pace.rate_time)] += static_cast<double>(received);
      }
    }
  }
  auto* const middle = parts.begin() + kParts / 2;
  std::nth_element(parts.begin(), middle, parts.end());
  const double rate =
      std::max(static_cast<double>(bytes) / ToSeconds(took), *middle * kParts / ToSeconds(pace.rate_time));
  const Deadline end = Deadline::In(pace.patience);
  CAIRN_RETURN_IF_ERROR(socket.Say({{"bytes_per_second", rate}}, end));
  while (!end.passed() && socket.Receive(block, end).ok()) continue;
  return rate;
}

Result<PeerSocket> Begin(const std::string& host, int port, json hello, Deadline deadline) {
  CAIRN_ASSIGN_OR_RETURN(PeerSocket socket, ConnectTo(host, port, deadline));
  CAIRN_RETURN_IF_ERROR(socket.Say(hello, deadline));
  CAIRN_RETURN_IF_ERROR(socket.Hear(deadline).status());
  return socket;
}

/// The median.
Result<nanoseconds> TimeRoundTrips(PeerSocket& socket, Deadline deadline) {
  std::vector<nanoseconds> trips;
  std::array<char, 1> byte{'c'};
  const Clock::time_point begin = Clock::now();
  for (int i = 0; trips.size() < kMostTrips; ++i) {
    const Clock::time_point sent = Clock::now();
    CAIRN_RETURN_IF_ERROR(socket.Send({byte.data(), 1}, deadline));
    CAIRN_RETURN_IF_ERROR(socket.Receive(byte, deadline).status());
    const Clock::time_point now = Clock::now();
    if (i >= kFirstTrips) trips.emplace_back(now - sent);
    if (trips.size() >= kLeastTrips && now - begin > kTripsTime) break;
  }
  const auto middle = trips.begin() + static_cast<std::ptrdiff_t>(trips.size() / 2);
  std::nth_element(trips.begin(), middle, trips.end());
  return *middle;
}

/// Until the other end closes.
Status Echo(PeerSocket& socket, Deadline deadline) {
  std::array<char, 1> byte{};
  while (true) {
    const Result<std::size_t> received = socket.Receive(byte, deadline);
    if (received.status().code() == StatusCode::kIoError) return Status::Ok();
    CAIRN_RETURN_IF_ERROR(received.status());
    CAIRN_RETURN_IF_ERROR(socket.Send({byte.data(), 1}, deadline));
  }
}

/// The longest of a stream.
nanoseconds StreamTime(const Pace& pace) { return kMostWarmUp + pace.rate_time + pace.patience; }

}  // namespace

json ToJson(const Pace& pace) {
  return {{"rate_seconds", ToSeconds(pace.rate_time)}, {"patience_seconds", ToSeconds(pace.patience)}};
}

Result<Pace> PaceOf(const JsonField& message) {
  CAIRN_ASSIGN_OR_RETURN(const double rate, message.At("rate_seconds").Number(kLeastNumber, kMostSeconds));
  CAIRN_ASSIGN_OR_RETURN(const double patience, message.At("patience_seconds").Number(kLeastNumber, kMostSeconds));
  return Pace{.rate_time = FromSeconds(rate), .patience = FromSeconds(patience)};
}

nanoseconds LongestMeasurement(const Pace& pace) { return 2 * (pace.patience + kMostWarmUp + pace.rate_time); }

Result<PairMeasured> MeasurePair(const std::string& host, int port, const std::string& token, const Pace& pace) {
  const Deadline end = Deadline::In(LongestMeasurement(pace));
  const auto begin = [&](const char* exchange, nanoseconds warm_up) {
    json hello = Hello();
    hello.update(ToJson(pace));
    hello.update({{"token", token}, {"exchange", exchange}, {"warm_up_seconds", ToSeconds(warm_up)}});
    return Begin(host, port, std::move(hello), Earlier(Deadline::In(pace.patience), end));
  };
  PairMeasured measured;
  nanoseconds warm_up{0};
  {
    CAIRN_ASSIGN_OR_RETURN(PeerSocket socket, begin("echo", warm_up));
    CAIRN_ASSIGN_OR_RETURN(const nanoseconds trip, TimeRoundTrips(socket, Earlier(Deadline::In(pace.patience), end)));
    measured.delay_seconds = ToSeconds(trip) / 2;
    warm_up = std::clamp(kWarmUpTrips * trip, kLeastWarmUp, kMostWarmUp);
  }
  CAIRN_ASSIGN_OR_RETURN(PeerSocket there, begin("count", warm_up));
  CAIRN_ASSIGN_OR_RETURN(const json counted, Stream(there, Earlier(Deadline::In(StreamTime(pace)), end)));
  const JsonField count(counted, "its count");
  CAIRN_ASSIGN_OR_RETURN(measured.there, count.At("bytes_per_second").Number(kLeastNumber, kMostRate));
  CAIRN_ASSIGN_OR_RETURN(PeerSocket back, begin("stream", warm_up));
  CAIRN_ASSIGN_OR_RETURN(measured.back, CountBytes(back, warm_up, pace));
  return measured;
}

Status ServeExchange(Lobby::Guest guest) {
  const JsonField hello(guest.hello, "its hello");
  CAIRN_ASSIGN_OR_RETURN(const Pace pace, PaceOf(hello));
  CAIRN_ASSIGN_OR_RETURN(const double warm_up, hello.At("warm_up_seconds").Number(0, ToSeconds(kMostWarmUp)));
  CAIRN_ASSIGN_OR_RETURN(const std::string exchange, hello.At("exchange").Name());
  if (exchange != "echo" && exchange != "count" && exchange != "stream") {
    return hello.At("exchange").Expected("echo, count or stream");
  }
  CAIRN_RETURN_IF_ERROR(guest.socket.Say({{"ready", true}}, Deadline::In(pace.patience)));
  if (exchange == "echo") return Echo(guest.socket, Deadline::In(pace.patience + kTripsTime));
  if (exchange == "count") return CountBytes(guest.socket, FromSeconds(warm_up), pace).status();
  return Stream(guest.socket, Deadline::In(StreamTime(pace))).status();
}

}  // namespace cairn::peers
