#pragma once

#include <string>

#include "cairn/group.h"

namespace cairn {

/// One rank alone: it coordinates, and nobody is to be heard.
class SoloGroup : public Group {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void Send(const std::string& key, std::string word) override;
  void Collect(const std::string& key, Deadline deadline, OnWord on_word, OnEnd end) override;
  void Announce(const std::string& key, std::string word) override;
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override;
};

}  // namespace cairn
