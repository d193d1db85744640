#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cairn/group.h"

namespace cairn {

/// One of several ranks in one process, for tests and experiments. Safe from any thread. A thread of the group watches
/// the deadlines. The destructor does what `Leave` does, and must not run within a callback.
class LocalGroup : public Group {
 public:
  ~LocalGroup() override;
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override;
  void Send(const std::string& key, std::string message) override;
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override;
  void Announce(const std::string& key, std::string message) override;
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override;

  /// Simulates a lost store: ends every wait of every rank, now and later.
  void Break(const Status& why);
  /// Simulates a rank that closes: its waits end with Cancelled, and waits for it end with FailedPrecondition.
  void Leave();

 private:
  struct Hub;
  friend std::vector<std::shared_ptr<LocalGroup>> MakeLocalGroup(int size);
  LocalGroup(std::shared_ptr<Hub> hub, int rank);

  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

/// One LocalGroup for each of `size` ranks.
[[nodiscard]] std::vector<std::shared_ptr<LocalGroup>> MakeLocalGroup(int size);

}  // namespace cairn
