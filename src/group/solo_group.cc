#include "group/solo_group.h"

#include <utility>

namespace cairn {

void SoloGroup::AllGather(const std::string& /*key*/, std::string bytes, Deadline /*deadline*/, Gathered done) {
  std::vector<std::string> all;
  all.push_back(std::move(bytes));
  done(std::move(all));
}

}  // namespace cairn
