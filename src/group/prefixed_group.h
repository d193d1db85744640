#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cairn/group.h"

namespace cairn {

/// Another channel of the same group: its keys begin with `prefix`.
class PrefixedGroup : public Group {
 public:
  PrefixedGroup(std::shared_ptr<Group> group, std::string prefix)
      : group_(std::move(group)), prefix_(std::move(prefix)) {}

  [[nodiscard]] int rank() const override { return group_->rank(); }
  [[nodiscard]] int size() const override { return group_->size(); }
  void Send(const std::string& key, std::string message) override { group_->Send(prefix_ + key, std::move(message)); }
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override {
    group_->Collect(prefix_ + key, deadline, std::move(on_message), std::move(end));
  }
  void Announce(const std::string& key, std::string message) override {
    group_->Announce(prefix_ + key, std::move(message));
  }
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override {
    group_->Await(prefix_ + key, deadline, std::move(on_announced));
  }

 private:
  const std::shared_ptr<Group> group_;
  const std::string prefix_;
};

}  // namespace cairn
