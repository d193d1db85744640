#pragma once

#include "group/group.h"

namespace cairn {

/// One rank alone: every gather is complete at once.
class SoloGroup : public Group {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) override;
};

}  // namespace cairn
