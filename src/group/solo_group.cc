#include "group/solo_group.h"

#include "base/status_macros.h"

namespace cairn {

void SoloGroup::Send(const std::string& /*key*/, std::string /*message*/) {}

void SoloGroup::Collect(const std::string& /*key*/, Deadline /*deadline*/, OnMessage /*on_message*/, OnEnd end) {
  end(Status::Ok());
}

void SoloGroup::Announce(const std::string& /*key*/, std::string /*message*/) {}

void SoloGroup::Await(const std::string& key, Deadline /*deadline*/, OnAnnounced on_announced) {
  on_announced(Error(StatusCode::kInternal, "\"{}\": rank 0 cannot await", key));
}

}  // namespace cairn
