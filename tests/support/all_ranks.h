#pragma once

#include <functional>
#include <future>
#include <vector>

namespace cairn {

/// Makes a call that the ranks of one process must make together: `call(rank)` for each rank, at once.
inline void OnAllRanks(int ranks, const std::function<void(int rank)>& call) {
  std::vector<std::future<void>> pending;
  for (int rank = 0; rank < ranks; ++rank) pending.push_back(std::async(std::launch::async, call, rank));
  for (auto& one : pending) one.get();
}

}  // namespace cairn
