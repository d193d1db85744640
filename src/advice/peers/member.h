#pragma once

#include <chrono>
#include <string>

#include "cairn/status.h"

namespace cairn::peers {

/// One rank of `cairn doctor --peers`.
struct MemberOptions {
  int rank = 0;
  int world = 2;
  /// Where rank 0's coordinator listens.
  std::string master;
  int port = 0;
  std::string host;
  std::string domain;
  /// For the others to come.
  std::chrono::nanoseconds timeout{};
  /// For each answer.
  std::chrono::nanoseconds patience{};
};

/// Joins the coordinator, measures with whom it says, serves the others' measurements, and returns when it says that
/// all is done. Its error, if there is one, is the coordinator's.
Status RunMember(const MemberOptions& options);

}  // namespace cairn::peers
