#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "bench/pipeline/socket.h"
#include "cairn/group.h"
#include "group/deadline_watch.h"
#include "group/mailbox.h"

namespace cairn::bench {

/// Two ranks whose messages go over one TCP connection. A node that ends, or is killed, has left the group at once: its
/// kernel closes the connection.
///
/// Messages are short, so a Send that the kernel takes at once counts as one that does not block.
class SocketGroup : public Group {
 public:
  SocketGroup(int rank, std::unique_ptr<Socket> socket);
  /// Leaves.
  ~SocketGroup() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return 2; }
  void Send(const std::string& key, std::string message) override { Write(key, message); }
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override;
  void Announce(const std::string& key, std::string message) override { Write(key, message); }
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override;

 private:
  void Write(const std::string& key, const std::string& message) CAIRN_EXCLUDES(sending_);
  void Listen();

  const int rank_;
  const std::unique_ptr<Socket> socket_;
  DeadlineWatch watch_;
  const std::shared_ptr<Mailbox> mailbox_;
  Mutex sending_;  // A message is sent whole.
  std::thread listener_;
};

}  // namespace cairn::bench
