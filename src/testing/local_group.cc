#include "testing/local_group.h"

#include <cstddef>
#include <utility>

#include "group/deadline_watch.h"
#include "group/mailbox.h"

namespace cairn {

/// What the ranks share.
struct LocalGroup::Hub {
  DeadlineWatch watch;
  // By rank. All are closed before the watch ends.
  std::vector<std::shared_ptr<Mailbox>> boxes;

  [[nodiscard]] Mailbox& of(int rank) const { return *boxes[static_cast<std::size_t>(rank)]; }
};

LocalGroup::LocalGroup(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

LocalGroup::~LocalGroup() { Leave(); }

int LocalGroup::size() const { return static_cast<int>(hub_->boxes.size()); }

void LocalGroup::Send(const std::string& key, std::string message) {
  if (!hub_->of(rank_).failed()) hub_->of(0).Receive(rank_, key, std::move(message));
}

void LocalGroup::Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) {
  hub_->of(rank_).Collect(key, deadline, std::move(on_message), std::move(end));
}

void LocalGroup::Announce(const std::string& key, std::string message) {
  if (rank_ != 0 || hub_->of(0).failed()) return;
  for (int rank = 1; rank < size(); ++rank) hub_->of(rank).Receive(0, key, message);
}

void LocalGroup::Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) {
  hub_->of(rank_).Await(key, deadline, std::move(on_announced));
}

void LocalGroup::Break(const Status& why) {
  for (const std::shared_ptr<Mailbox>& box : hub_->boxes) box->Fail(why);
}

void LocalGroup::Leave() {
  for (const std::shared_ptr<Mailbox>& box : hub_->boxes) box->Leave(rank_);
  hub_->of(rank_).Close();
}

std::vector<std::shared_ptr<LocalGroup>> MakeLocalGroup(int size) {
  const auto hub = std::make_shared<LocalGroup::Hub>();
  for (int rank = 0; rank < size; ++rank) hub->boxes.push_back(std::make_shared<Mailbox>(rank, size, hub->watch));
  std::vector<std::shared_ptr<LocalGroup>> ends;
  for (int rank = 0; rank < size; ++rank) {
    ends.push_back(std::shared_ptr<LocalGroup>(new LocalGroup(hub, rank)));  // The constructor is private.
  }
  return ends;
}

}  // namespace cairn
