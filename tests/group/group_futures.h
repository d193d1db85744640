#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/group.h"

namespace cairn {

inline constexpr std::chrono::milliseconds kSoon{20};

/// The result of one Collect.
struct Collected {
  // In order of arrival.
  std::vector<std::pair<int, std::string>> messages;
  Status end;

  // By rank; "" for the coordinator and for missing messages.
  [[nodiscard]] std::vector<std::string> by_rank(int size) const {
    std::vector<std::string> all(static_cast<std::size_t>(size));
    for (const auto& [rank, message] : messages) all[static_cast<std::size_t>(rank)] = message;
    return all;
  }
};

inline std::future<Collected> Collect(Group& group, const std::string& key, Deadline deadline = Deadline::Infinite()) {
  auto result = std::make_shared<Collected>();
  auto promise = std::make_shared<std::promise<Collected>>();
  group.Collect(
      key, deadline,
      [result](int rank, std::string message) { result->messages.emplace_back(rank, std::move(message)); },
      [result, promise](Status end) {
        result->end = std::move(end);
        promise->set_value(*result);
      });
  return promise->get_future();
}

inline std::future<Result<std::string>> Await(Group& group, const std::string& key,
                                              Deadline deadline = Deadline::Infinite()) {
  auto promise = std::make_shared<std::promise<Result<std::string>>>();
  group.Await(key, deadline, [promise](Result<std::string> message) { promise->set_value(std::move(message)); });
  return promise->get_future();
}

}  // namespace cairn
