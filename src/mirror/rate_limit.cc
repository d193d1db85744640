#include "mirror/rate_limit.h"

#include <algorithm>
#include <thread>

namespace cairn {
namespace {

// How often to ask whether it is interrupted.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

IoTask<Status> RateLimit::Await(std::uint64_t bytes, const std::function<bool()>& interrupted) {
  if (per_second_ == 0) co_return Status::Ok();
  const Clock::time_point begin = std::max(next_, Clock::now());
  const std::chrono::duration<double> time(static_cast<double>(bytes) / static_cast<double>(per_second_));
  next_ = begin + std::chrono::duration_cast<Clock::duration>(time);
  while (Clock::now() < begin && !interrupted()) {
    const Clock::time_point until = std::min(begin, Clock::now() + kPause);
    const auto sleep = [until] {
      std::this_thread::sleep_until(until);
      return Status::Ok();
    };
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread("--bandwidth", sleep));
  }
  co_return Status::Ok();
}

}  // namespace cairn
