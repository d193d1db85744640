#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cairn/group.h"

namespace cairn {

/// One of several ranks within one process. For tests and experiments. The ends may be used from any thread and may
/// outlive each other; a thread of the group watches the deadlines. Destroying an end makes its rank leave, as `Leave`
/// does; no end may be destroyed from within a callback.
class LocalGroup : public Group {
 public:
  ~LocalGroup() override;
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override;
  void Send(const std::string& key, std::string word) override;
  void Collect(const std::string& key, Deadline deadline, OnWord on_word, OnEnd end) override;
  void Announce(const std::string& key, std::string word) override;
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override;

  /// Ends every wait of every rank, now and later, as the loss of a store does.
  void Break(const Status& why);
  /// As a rank does that closes: its own waits end Cancelled, and ranks that wait for it are notified.
  void Leave();

 private:
  struct Hub;
  friend std::vector<std::shared_ptr<LocalGroup>> MakeLocalGroup(int size);
  LocalGroup(std::shared_ptr<Hub> hub, int rank);

  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

/// `size` ranks, each with an end of its own.
[[nodiscard]] std::vector<std::shared_ptr<LocalGroup>> MakeLocalGroup(int size);

}  // namespace cairn
