#pragma once

#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

// A write lease on a regular file: the kernel's word that nobody else has it open or mapped. It ends with the
// descriptor. Who opens the file meanwhile waits until then, or for as long as the kernel lets a lease hold others up.

/// FailedPrecondition where somebody has the file open or mapped. Unsupported where the filesystem gives no leases,
/// cannot know who has the file open elsewhere, or would not write it in place.
[[nodiscard]] Status TakeLease(const UniqueFd& fd, const std::string& name);
/// Whether it is held still and nobody is waiting for it.
[[nodiscard]] bool HoldsLease(const UniqueFd& fd);
void GiveBackLease(const UniqueFd& fd);

}  // namespace cairn
