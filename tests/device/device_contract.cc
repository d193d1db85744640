#include "device/device_contract.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

namespace cairn {

void DeviceContract::SetUp() {
  std::string why_not;
  under_test_ = GetParam().make(why_not);
  if (under_test_ == nullptr) GTEST_SKIP() << why_not;
  ASSERT_GE(device().lanes(), 2);
}

void DeviceContract::TearDown() {
  under_test_.reset();
  if (GetParam().check) GetParam().check();
}

std::vector<std::byte> Pattern(std::uint64_t bytes, std::uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::byte& byte : pattern) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return pattern;
}

StridedLayout Contiguous(std::byte* at, std::uint64_t bytes) {
  return {.base = at, .row_bytes = bytes, .bytes = bytes};
}

StridedLayout Rows(std::byte* at, std::uint64_t row_bytes, std::int64_t rows, std::int64_t stride) {
  return {.base = at,
          .row_bytes = row_bytes,
          .outer = {{rows, stride}},
          .bytes = row_bytes * static_cast<std::uint64_t>(rows)};
}

std::vector<std::byte> Copied(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

EventId Acquire(Device& device) {
  Result<EventId> event = device.AcquireEvent();
  EXPECT_EQ(event.status(), Status::Ok());
  return event.ok() ? *event : 0;
}

Status CopyAndWait(Device& device, CopyBatch batch) {
  auto done = std::make_shared<std::promise<Status>>();
  std::future<Status> outcome = done->get_future();
  const Status enqueued = device.Copy(std::move(batch), [done](Status status) { done->set_value(std::move(status)); });
  if (!enqueued.ok()) return enqueued;
  // After a sticky error nothing is called.
  while (outcome.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout) {
    if (Status health = device.Health(); !health.ok()) return health;
  }
  return outcome.get();
}

}  // namespace cairn
