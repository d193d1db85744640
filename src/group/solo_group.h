#pragma once

#include <string>

#include "base/status_macros.h"
#include "cairn/group.h"

namespace cairn {

/// A group of one rank, which is the coordinator and has no peers.
class SoloGroup : public Group {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void Send(const std::string& /*key*/, std::string /*message*/) override {}
  void Collect(const std::string& /*key*/, Deadline /*deadline*/, OnMessage /*on_message*/, OnEnd end) override {
    end(Status::Ok());
  }
  void Announce(const std::string& /*key*/, std::string /*message*/) override {}
  void Await(const std::string& key, Deadline /*deadline*/, OnAnnounced on_announced) override {
    on_announced(Error(StatusCode::kInternal, "\"{}\": rank 0 cannot await", key));
  }
};

}  // namespace cairn
